"""Fan out over 100 items, and fan in: every item ends with a message, one step waits for them all.

Run it against any node: ``HEADRACE_URL=http://127.0.0.1:8080 python examples/fan_out.py``.
"""

from __future__ import annotations

import os

import trio

from headrace import (
    Client,
    Decision,
    Flow,
    StepContext,
    Wait,
    Worker,
    channel,
    complete,
    dead_end,
    fan_out,
    goto,
    step,
    wait_all,
)

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080")
WORKER_URL = os.environ.get("HEADRACE_WORKER_URL", URL)
ITEMS = 100


class Squares(Flow, name="example-squares"):
    @step
    async def split(self, ctx: StepContext, count: int) -> Decision:
        work = [goto(Squares.square, number) for number in range(count)]
        return fan_out(goto(Squares.total, count), *work)

    @step
    def square(self, ctx: StepContext, number: int) -> Decision:
        """A plain function: it runs in a thread."""
        ctx.publish("squares", number * number)
        return dead_end()

    @step
    async def total(self, ctx: StepContext, count: int) -> Decision:
        return complete(sum(ctx.received("squares")))

    @total.wait_for
    def all_squares(self, ctx: StepContext, count: int) -> Wait:
        return wait_all(channel("squares", count))


async def main() -> None:
    async with Worker(WORKER_URL, flows=[Squares], max_concurrent_tasks=16) as worker, Client(URL) as client:
        with trio.fail_after(30):
            await worker.wait_pull_registered()
        flow = await client.start(Squares, ITEMS)
        total = await flow.result(int, timeout_seconds=60)
        print(f"the sum of {ITEMS} squares is {total}")
        if total != sum(number * number for number in range(ITEMS)):
            raise SystemExit("that is wrong")


if __name__ == "__main__":
    trio.run(main)
