"""Headrace's own worker library: "work" runs a worker, "COUNT RATE" starts flows over HTTP.

``BENCH_CHAINS`` is the number of flows that share the steps, each a chain; 0: every step is a flow.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count as numbers
from uuid import uuid4

import trio
from noting import moments, note

from headrace import Decision, Flow, StepContext, Worker, complete, goto, step
from tests.bench.raw import connect

URL = os.environ["BENCH_URL"]
START_URL = os.environ.get("BENCH_START_URL", URL)
"""Where flows are started; workers connect to the other one."""
CHAINS = int(os.environ.get("BENCH_CHAINS", "0"))
TYPES = int(os.environ.get("BENCH_TYPES", "0"))
"""So many flow types, each a queue of its own, in turns; 0: one."""
SLOTS = 64
CONNECTIONS = 16


class Work(Flow, name="work"):
    @step
    async def run(self, ctx: StepContext, todo: tuple[float, int]) -> Decision:
        due, left = todo
        note(due)
        return goto(Work.run, (due, left - 1)) if left > 1 else complete()


async def work() -> None:
    async with Worker(URL, [Work], max_concurrent_tasks=SLOTS) as worker:
        await worker.wait_pull_registered()
        await trio.sleep_forever()


async def send(count: int, rate: float) -> None:
    flows = CHAINS or count
    prefix, order = uuid4().hex, numbers()
    due = moments(rate, flows)

    async def sender() -> None:
        async with connect(START_URL) as connection:
            while (number := next(order)) < flows:
                await trio.sleep(max(0.0, due[number] - time.monotonic()))
                left = count // flows + (number < count % flows)
                await connection.post(
                    "/flows",
                    {
                        "flow_type": f"work{number % TYPES}" if TYPES else "work",
                        "flow_id": f"{prefix}-{number}",
                        "start_step": "run",
                        "input": [due[number], left],
                    },
                )

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(sender)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        trio.run(work)
    else:
        trio.run(send, int(sys.argv[1]), float(sys.argv[2]))
