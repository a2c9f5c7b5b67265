"""The public durable-workflow SDK against a node: "work" runs a worker, "drive" a closed loop of workflows.

``drive ACTIVITIES AT_ONCE COUNT`` prints the seconds it took and its CPU seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator
from typing import Any
from uuid import uuid4

from durable_workflow import Client, Worker, activity, workflow
from noting import closed_loop

QUEUE = "work"


@activity.defn(name="echo")
async def echo(value: str) -> str:
    return value


@workflow.defn(name="work")
class Work:
    def run(self, ctx: Any, activities: int) -> Generator[Any, Any, str]:
        value = "in"
        for _ in range(activities):
            value = yield ctx.schedule_activity("echo", [value])
        return value


async def work() -> None:
    async with Client(os.environ["BENCH_WORKER_URL"]) as client:
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Work],
            activities=[echo],
            max_concurrent_workflow_tasks=40,
            max_concurrent_activity_tasks=40,
        )
        await worker.run()


async def drive(activities: int, at_once: int, count: int) -> None:
    seconds = 0.05 if at_once == 1 else 0.5  # between looks at a result; by default it is half a second
    async with Client(os.environ["BENCH_URL"]) as client:

        async def one() -> None:
            handle = await client.start_workflow(
                workflow_type="work", task_queue=QUEUE, workflow_id=uuid4().hex, input=[activities]
            )
            await client.get_result(handle, poll_interval=seconds, timeout=60)

        await closed_loop(one, at_once, count)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work())
    else:
        asyncio.run(drive(*map(int, sys.argv[2:5])))
