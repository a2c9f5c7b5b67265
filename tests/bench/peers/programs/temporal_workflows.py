"""Temporal: "work" runs a worker, "drive" runs workflows in a closed loop and prints what came of it.

``drive ACTIVITIES AT_ONCE COUNT``: workflows of so many activities, one after the other.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

from noting import closed_loop
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "work"


@activity.defn
async def echo(value: str) -> str:
    return value


@workflow.defn
class Work:
    @workflow.run
    async def run(self, activities: int) -> str:
        value = "in"
        for _ in range(activities):
            value = await workflow.execute_activity(echo, value, start_to_close_timeout=timedelta(seconds=60))
        return value


async def work() -> None:
    client = await Client.connect(os.environ["BENCH_URL"])
    with ThreadPoolExecutor(4) as pool:
        await Worker(
            client, task_queue=QUEUE, workflows=[Work], activities=[echo], activity_executor=pool
        ).run()


async def drive(activities: int, at_once: int, count: int) -> None:
    client = await Client.connect(os.environ["BENCH_URL"])

    async def one() -> None:
        await client.execute_workflow(Work.run, activities, id=uuid4().hex, task_queue=QUEUE)

    await closed_loop(one, at_once, count)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work())
    else:
        asyncio.run(drive(*map(int, sys.argv[2:5])))
