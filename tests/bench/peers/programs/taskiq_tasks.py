"""taskiq over Redis streams: its own worker command runs this module, as a program it enqueues."""

from __future__ import annotations

import asyncio
import os
import sys

from noting import note, send_all
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=os.environ["BENCH_REDIS_URL"])


@broker.task
async def work(due: float) -> None:
    note(due)


async def main(count: int, rate: float) -> None:
    await broker.startup()
    await send_all(rate, count, work.kiq)
    await broker.shutdown()


if __name__ == "__main__":
    # The module the worker knows, so that the task has the same name here and there.
    import taskiq_tasks

    asyncio.run(taskiq_tasks.main(int(sys.argv[1]), float(sys.argv[2])))
