"""A worker of the public SDK that writes down every attempt its activity begins, in a process of its own.

``python -m tests.chaos.recorded_sdk_worker URL TENANT PARENT_PID RECORD [--id=]``

Its workflow ``stamping`` is a chain of ``stamp`` activities; each returns the token of its attempt, and the
workflow's result is the list of them. When the SDK asked for a task, and how long it may keep it, is not
seen from here, so its leases are judged by their numbers and results only.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Final

from durable_workflow import ActivityRetryPolicy, Client, Worker, activity, workflow

from nodes.cli.processes import end_with_parent
from tests.chaos.record import HandedOut, Recorder
from tests.telling import TellReady

QUEUE: Final = "stamps"
WORKFLOW: Final = "stamping"
MOST_ATTEMPTS: Final = 60
POLL_SECONDS: Final = 2.0


def stamper(recorder: Recorder, tenant: str) -> Callable[[str, str, float], Awaitable[str]]:
    """The activity; ``tenant`` is whom its worker works for."""

    @activity.defn(name="stamp")
    async def stamp(belongs_to: str, execution: str, seconds: float) -> str:
        info = activity.context().info
        token = f"{info.task_id}/{info.activity_attempt_id}"
        recorder.note(
            HandedOut(
                tenant=tenant,
                belongs_to=belongs_to,
                execution=execution,
                task=info.task_id,
                attempt=info.attempt_number,
                token=token,
                most_attempts=MOST_ATTEMPTS,
            )
        )
        await asyncio.sleep(seconds)
        return token

    return stamp


@workflow.defn(name=WORKFLOW)
class Stamping:
    """``count`` stamps, one after the other."""

    def run(
        self, ctx: Any, tenant: str, execution: str, count: int, seconds: float
    ) -> Generator[Any, Any, list[str]]:
        retry = ActivityRetryPolicy(max_attempts=MOST_ATTEMPTS, backoff_seconds=[0])
        tokens = []
        for _ in range(count):
            tokens.append(
                (yield ctx.schedule_activity("stamp", [tenant, execution, seconds], retry_policy=retry))
            )
        return tokens


async def work(options: argparse.Namespace, recorder: Recorder) -> None:
    """Work until killed."""
    async with Client(options.url, namespace=options.tenant) as client:
        worker = Worker(
            client,
            task_queue=QUEUE,
            worker_id=options.id,
            workflows=[Stamping],
            activities=[stamper(recorder, options.tenant)],
            poll_timeout=POLL_SECONDS,
        )
        logging.getLogger("durable_workflow").addHandler(TellReady())
        await worker.run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tenant")
    parser.add_argument("parent", type=int)
    parser.add_argument("record")
    parser.add_argument("--id", default=f"sdk-worker-{os.getpid()}")
    options = parser.parse_args()
    end_with_parent(options.parent)
    logging.basicConfig(level=logging.INFO)
    with Recorder(Path(options.record), options.id) as recorder:
        asyncio.run(work(options, recorder))


if __name__ == "__main__":
    main()
