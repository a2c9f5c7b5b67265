"""Headrace with a client that costs little, so that the server's own limit shows.

"steps" and "activities" work, "hold" takes steps and never answers, "send COUNT RATE" starts standalone
activities. They do what a worker library does on the wire; they decode no more of a task than they need.
"""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import AsyncExitStack
from itertools import count as numbers
from typing import Any
from uuid import uuid4

import trio
from noting import moments, note

from tests.bench.raw import connect
from tests.bench.stream_load import slot_workers

URL, WORKER_URL = os.environ["BENCH_URL"], os.environ["BENCH_WORKER_URL"]
QUEUE, WORKER = "work", "lean"
CONNECTIONS, SLOTS = int(os.environ.get("BENCH_CONNECTIONS", "8")), 8
URLS = os.environ.get("BENCH_URLS", URL).split(",")
"""The nodes that share the connections."""
_types = int(os.environ.get("BENCH_TYPES", "0"))
TYPES = [f"work{number}" for number in range(_types)] or ["work"]
POLLERS = 64


async def steps() -> None:
    async with AsyncExitStack() as stack:
        for url in URLS:
            share = CONNECTIONS // len(URLS)
            opened = slot_workers(url, TYPES, share, SLOTS, 0, lambda _flow: None, decide)
            await stack.enter_async_context(opened)
        await trio.sleep_forever()


async def hold() -> None:
    """Take tasks and never answer."""

    def forever() -> float:
        note(time.monotonic())
        return math.inf

    async with slot_workers(URL, TYPES, CONNECTIONS, SLOTS, 0, lambda _flow: None) as workers:
        for worker in workers:
            worker.think = forever
        print("ready", flush=True)
        await trio.sleep_forever()


def decide(task: dict[str, Any]) -> dict[str, Any]:
    """The output for a step whose input is ``[due, steps left]``; with a payload it is one of many."""
    due, left, *payload = task["input"]
    note(due)
    if payload:
        return {"decision": {"dead_end": True}}
    if left > 1:
        return {"decision": {"next": [{"step_type": "run", "input": [due, left - 1]}]}}
    return {"decision": {"complete": None}}


async def activities() -> None:
    async def poller() -> None:
        async with connect(WORKER_URL) as connection:
            while True:
                task = await connection.poll("activity", WORKER, QUEUE)
                if task is not None:
                    note(time.monotonic())
                    await connection.complete_activity(task)

    async with connect(WORKER_URL) as connection:
        await connection.register(WORKER, QUEUE)
    async with trio.open_nursery() as nursery:
        for _ in range(POLLERS):
            nursery.start_soon(poller)


async def send(count: int, rate: float) -> None:
    prefix, order, due = uuid4().hex, numbers(), moments(rate, count)

    async def sender() -> None:
        async with connect(URL) as connection:
            while (number := next(order)) < count:
                await trio.sleep(max(0.0, due[number] - time.monotonic()))
                body = {"activity_type": "x", "task_queue": QUEUE, "activity_id": f"{prefix}-{number}"}
                await connection.post("/activities", body)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(sender)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        trio.run(send, int(sys.argv[2]), float(sys.argv[3]))
    else:
        trio.run({"steps": steps, "activities": activities, "hold": hold}[sys.argv[1]])
