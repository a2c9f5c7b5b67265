"""saq over Redis: its own worker command runs this module, as a program it enqueues."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from noting import note, send_all
from saq import Queue

queue = Queue.from_url(os.environ["BENCH_REDIS_URL"])


async def work(_context: dict[str, Any], *, due: float) -> None:
    note(due)


settings = {"queue": queue, "functions": [work], "concurrency": 64}


async def main(count: int, rate: float) -> None:
    async def send(due: float) -> None:
        await queue.enqueue("work", due=due)

    await queue.connect()
    await send_all(rate, count, send)
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
