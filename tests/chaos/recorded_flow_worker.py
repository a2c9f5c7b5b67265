"""A worker of the stream plane that writes down every attempt its handlers begin, in a process of its own.

``python -m tests.chaos.recorded_flow_worker URL TENANT PARENT_PID RECORD [--id=] [--slots=]``

Its flow ``sealing`` is a chain of steps; each adds the token of its attempt to the list it was given,
and the flow's result is that list.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
    goto,
    step,
)
from nodes.cli.processes import end_with_parent
from tests.chaos.record import HandedOut, Recorder, now

FLOW: Final = "sealing"
MOST_ATTEMPTS: Final = 60
OPTIONS: Final = {"execute": {"retry": {"initial_interval_seconds": 0.05, "maximum_attempts": MOST_ATTEMPTS}}}
"""Of the first step, as clients send them."""


@dataclass
class Sealed:
    """What goes from step to step: whose flow it is, how many seals it needs, those it has."""

    tenant: str
    count: int
    seconds: float
    tokens: list[str] = field(default_factory=list)


class Sealing(Flow, name=FLOW):
    """``recorder`` and ``tenant`` are set before the worker starts."""

    recorder: Recorder
    tenant: str

    @step(
        options=StepOptions(
            execute=MethodOptions(retry=RetryPolicy(initial_interval=0.05, maximum_attempts=MOST_ATTEMPTS))
        )
    )
    async def seal(self, ctx: StepContext, work: Sealed) -> Decision:
        task = f"{ctx.flow_id}/{ctx.step_execution_id}"
        # The same for whoever gets this number: two of them would be two hand-outs of one attempt.
        token = f"{task}/{ctx.attempt}"
        self.recorder.note(
            HandedOut(
                tenant=self.tenant,
                belongs_to=work.tenant,
                execution=ctx.flow_id,
                task=task,
                attempt=ctx.attempt,
                token=token,
                sent=now(),
                most_attempts=MOST_ATTEMPTS,
            )
        )
        await trio.sleep(work.seconds)
        tokens = [*work.tokens, token]
        if len(tokens) == work.count:
            return complete(tokens)
        return goto(Sealing.seal, Sealed(work.tenant, work.count, work.seconds, tokens))


async def main(options: argparse.Namespace) -> None:
    with Recorder(Path(options.record), options.id) as recorder:
        flow = Sealing()
        flow.recorder, flow.tenant = recorder, options.tenant
        async with Worker(
            options.url,
            [flow],
            namespace=options.tenant,
            worker_id=options.id,
            max_concurrent_tasks=options.slots,
            reserved_rpc_slots=0,
        ) as worker:
            await worker.wait_pull_registered()
            print("ready", flush=True)
            await trio.sleep_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tenant")
    parser.add_argument("parent", type=int)
    parser.add_argument("record")
    parser.add_argument("--id", default=f"flow-worker-{os.getpid()}")
    parser.add_argument("--slots", type=int, default=4)
    parsed = parser.parse_args()
    end_with_parent(parsed.parent)
    trio.run(main, parsed)
