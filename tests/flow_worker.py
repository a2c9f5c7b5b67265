"""A pull worker in a process of its own, to be killed: ``python -m tests.flow_worker PARENT FLOW URL...``.

It prints what its handlers begin, one line each: ``<step execution> <attempt>``.
"""

from __future__ import annotations

import sys

import trio

from headrace import (
    Decision,
    Flow,
    MethodOptions,
    RetryPolicy,
    StepContext,
    StepOptions,
    Worker,
    complete,
    step,
)
from nodes.cli.processes import end_with_parent

SOON = StepOptions(execute=MethodOptions(retry=RetryPolicy(initial_interval=0.05, maximum_attempts=3)))


class Patient(Flow, name="patient"):
    """Its step ends when it is tried again."""

    @step(options=SOON)
    async def work(self, ctx: StepContext) -> Decision:
        print(ctx.step_execution_id, ctx.attempt, flush=True)
        if ctx.attempt == 1:
            ctx.heartbeat({"seen": True})
            await trio.sleep_forever()
        return complete({"attempt": ctx.attempt, "worker": ctx.worker_id, "checkpoint": ctx.checkpoint()})


async def main(flow_type: str, urls: list[str]) -> None:
    kind = type("Patient", (Patient,), {"name": flow_type})
    async with Worker(urls, [kind], max_concurrent_tasks=2) as worker:
        await worker.wait_pull_registered()
        print("ready", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    trio.run(main, sys.argv[2], sys.argv[3:])
