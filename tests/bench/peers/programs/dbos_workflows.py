"""DBOS over PostgreSQL: workflows run in the process that starts them, so "work" has nothing to do.

``drive ACTIVITIES AT_ONCE COUNT``: workflows of so many steps in a closed loop; see ``noting.closed_loop``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from dbos import DBOS, DBOSConfig
from noting import closed_loop


@DBOS.step()
async def echo(value: str) -> str:
    return value


@DBOS.workflow()
async def work(activities: int) -> str:
    value = "in"
    for _ in range(activities):
        value = await echo(value)
    return value


async def drive(activities: int, at_once: int, count: int) -> None:
    config: DBOSConfig = {
        "name": "work",
        "system_database_url": os.environ["BENCH_URL"],
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        await closed_loop(lambda: work(activities), at_once, count)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        while True:
            time.sleep(3600)
    else:
        asyncio.run(drive(*map(int, sys.argv[2:5])))
