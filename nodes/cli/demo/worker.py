"""The demo's worker process: a plain ``durable-workflow`` worker that tells what it does.

Each event is one JSON line on standard output: ``{"event", "name", "attempt"}``.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Generator
from typing import Any

from durable_workflow import ActivityRetryPolicy, Client, Worker, activity, workflow

from nodes.cli.processes import end_with_parent

TASK_QUEUE = "demo"
WORKFLOW_TYPE = "demo.order"
TIMER_SECONDS = 1
SHIP_SECONDS = 2.5


def tell(event: str, name: str, attempt: int = 0) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps({"event": event, "name": name, "attempt": attempt}) + "\n")
    sys.stdout.flush()


@activity.defn(name="reserve")
async def reserve(order: str) -> str:
    tell("started", "reserve", activity.context().info.attempt_number)
    tell("finished", "reserve")
    return f"{order}: 2 items reserved"


@activity.defn(name="charge")
async def charge(order: str) -> str:
    attempt = activity.context().info.attempt_number
    tell("started", "charge", attempt)
    if attempt == 1:
        tell("failed", "charge", attempt)
        raise RuntimeError("the payment service is busy")
    tell("finished", "charge")
    return f"{order}: 42.00 charged"


@activity.defn(name="ship")
async def ship(order: str) -> str:
    tell("started", "ship", activity.context().info.attempt_number)
    await asyncio.sleep(SHIP_SECONDS)
    tell("finished", "ship")
    return f"{order}: shipped"


@workflow.defn(name=WORKFLOW_TYPE)
class Order:
    """Reserve, charge, wait, ship."""

    def run(self, ctx: Any, order: str) -> Generator[Any, Any, list[str]]:
        retry = ActivityRetryPolicy(max_attempts=3, backoff_seconds=[1])
        reserved = yield ctx.schedule_activity("reserve", [order])
        charged = yield ctx.schedule_activity("charge", [order], retry_policy=retry)
        yield ctx.sleep(TIMER_SECONDS)
        shipped = yield ctx.schedule_activity("ship", [order], retry_policy=retry)
        return [reserved, charged, shipped]


async def work(url: str) -> None:
    """Work until SIGTERM."""
    async with Client(url) as client:
        worker = Worker(
            client,
            task_queue=TASK_QUEUE,
            workflows=[Order],
            activities=[reserve, charge, ship],
            poll_timeout=10,
        )
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: asyncio.ensure_future(worker.stop())
        )
        tell("ready", TASK_QUEUE)
        await worker.run()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    asyncio.run(work(sys.argv[1]))
