"""streaq over Redis: its own worker command runs this module, as a program it enqueues."""

from __future__ import annotations

import asyncio
import os
import sys

from noting import note, send_all
from streaq import Worker

worker: Worker[None] = Worker(redis_url=os.environ["BENCH_REDIS_URL"], concurrency=64)


@worker.task()
async def work(due: float) -> None:
    note(due)


async def main(count: int, rate: float) -> None:
    async def send(due: float) -> None:
        await work.enqueue(due)

    async with worker:
        await send_all(rate, count, send)


if __name__ == "__main__":
    import streaq_tasks

    asyncio.run(streaq_tasks.main(int(sys.argv[1]), float(sys.argv[2])))
