"""A long job that polls, beats, and goes on from its checkpoint when an attempt fails half-way.

Run it against any node: ``HEADRACE_URL=http://127.0.0.1:8080 python examples/long_job.py``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import trio

from headrace import (
    Client,
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

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080")
WORKER_URL = os.environ.get("HEADRACE_WORKER_URL", URL)
PAGES = 10
PATIENT = StepOptions(
    execute=MethodOptions(
        timeout=3_600, heartbeat_timeout=10, retry=RetryPolicy(initial_interval=0.2, maximum_attempts=3)
    )
)


@dataclass
class Progress:
    page: int = 0
    copied: int = 0


class Import(Flow, name="example-import"):
    @step(options=PATIENT)
    async def copy(self, ctx: StepContext, pages: int) -> Decision:
        progress: Progress = ctx.checkpoint(Progress, default=Progress())
        print(f"attempt {ctx.attempt} begins at page {progress.page}")
        while progress.page < pages:
            await trio.sleep(0.05)  # stands for a long poll of something slow
            progress = Progress(progress.page + 1, progress.copied + 10)
            ctx.heartbeat(progress)
            if ctx.attempt == 1 and progress.page == pages // 2:
                await trio.sleep(0.2)
                raise TimeoutError("the source hung up")
        return complete({"copied": progress.copied, "attempts": ctx.attempt})


async def main() -> None:
    async with Worker(WORKER_URL, flows=[Import], max_concurrent_tasks=2) as worker, Client(URL) as client:
        with trio.fail_after(30):
            await worker.wait_pull_registered()
        flow = await client.start(Import, PAGES)
        result = await flow.result(timeout_seconds=60)
        print(f"copied {result['copied']} rows in {result['attempts']} attempts")


if __name__ == "__main__":
    trio.run(main)
