"""The workflow plane with a client that costs little: it starts, decides and acts in one process.

``drive ACTIVITIES AT_ONCE COUNT`` runs workflows in a closed loop and prints the seconds it took, and its CPU
seconds; "work" has nothing to do. It speaks to ``BENCH_WORKER_URL``: the worker listener or the main port.
"""

from __future__ import annotations

import os
import sys
import time
from uuid import uuid4

import trio

from tests.bench.raw import Connection, connect
from tests.wire import complete, schedule

URL = os.environ["BENCH_WORKER_URL"]
QUEUE, WORKER = "work", "lean"


class Loop:
    """Workflows of ``activities`` activities each; a worker counts the tasks of each to know where it is."""

    def __init__(self, activities: int, count: int) -> None:
        self.activities = activities
        self.left = count
        self._seen: dict[str, int] = {}
        self._ended: dict[str, trio.Event] = {}

    async def start(self) -> None:
        """Start one after the other, each when the one before has ended."""
        async with connect(URL) as connection:
            while self.left > 0:
                self.left -= 1
                name = uuid4().hex
                ended = self._ended[name] = trio.Event()
                await connection.start(name, QUEUE)
                await ended.wait()
                del self._ended[name], self._seen[name]

    async def decide(self, connection: Connection) -> None:
        """One workflow task."""
        task = await connection.poll("workflow", WORKER, QUEUE)
        if task is None:
            return
        name = task["workflow_id"]
        done = self._seen[name] = self._seen.get(name, -1) + 1
        if done < self.activities:
            await connection.complete_workflow(task, schedule("x", QUEUE))
        else:
            await connection.complete_workflow(task, complete("out"))
            self._ended[name].set()

    async def act(self, connection: Connection) -> None:
        """One activity task."""
        task = await connection.poll("activity", WORKER, QUEUE)
        if task is not None:
            await connection.complete_activity(task)


async def drive(activities: int, at_once: int, count: int) -> None:
    loop = Loop(activities, count)

    async def deciding() -> None:
        async with connect(URL) as connection:
            while True:
                await loop.decide(connection)

    async def acting() -> None:
        async with connect(URL) as connection:
            while True:
                await loop.act(connection)

    async with connect(URL) as connection:
        await connection.register(WORKER, QUEUE)
    async with trio.open_nursery() as workers:
        for _ in range(max(2, at_once // 2)):
            workers.start_soon(deciding)
            workers.start_soon(acting)
        began, used = time.monotonic(), time.process_time()
        async with trio.open_nursery() as starters:
            for _ in range(at_once):
                starters.start_soon(loop.start)
        print(time.monotonic() - began, time.process_time() - used, flush=True)
        workers.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        trio.run(trio.sleep_forever)
    else:
        activities, at_once, count = map(int, sys.argv[2:5])
        trio.run(drive, activities, at_once, count)
