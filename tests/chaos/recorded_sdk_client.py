"""A client of the public SDK that starts workflows and waits for results, and writes down what it is told.

``python -m tests.chaos.recorded_sdk_client URL TENANT PARENT_PID RECORD [--id=] [--open=] [--count=]
[--seconds=]`` keeps so many ``stamping`` workflows open. After SIGTERM it starts nothing more, waits for
those that are open, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

import httpx
from durable_workflow import Client, DurableWorkflowError, WorkflowAlreadyStarted, WorkflowHandle

from nodes.cli.processes import end_with_parent
from tests.chaos.record import Answered, Observed, Outcome, Recorder, Verb, now
from tests.chaos.recorded_sdk_worker import QUEUE, WORKFLOW

RESULT_SECONDS = 5.0
PAUSE_SECONDS = 0.1
LOOK_SECONDS = 0.2


class SdkClient:
    """``run`` until ``stopping`` is set and all is over."""

    def __init__(self, client: Client, recorder: Recorder, options: argparse.Namespace) -> None:
        self._client = client
        self._recorder = recorder
        self._options = options
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for place in range(self._options.open):
                tasks.create_task(self._work(place))

    async def _work(self, place: int) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            await self._one(f"{self._options.id}-{place}-{number}")

    async def _one(self, execution: str) -> None:
        for ask in (self._start, self._look):
            done = await ask(execution)
            while not done:
                await asyncio.sleep(PAUSE_SECONDS)
                done = await ask(execution)

    async def _start(self, execution: str) -> bool:
        options = self._options
        op = self._recorder.invoke(Verb.START, options.tenant, execution)
        try:
            await self._client.start_workflow(
                workflow_type=WORKFLOW,
                task_queue=QUEUE,
                workflow_id=execution,
                input=[options.tenant, execution, options.count, options.seconds],
                duplicate_policy="use-existing",
            )
        except WorkflowAlreadyStarted:  # by a start whose answer was lost; it is over by now
            pass
        except (DurableWorkflowError, httpx.HTTPError, OSError) as error:
            name = type(error).__name__
            self._recorder.note(Answered(op=op, outcome=Outcome.UNKNOWN, reason=name))
            return False
        self._recorder.note(Answered(op=op, outcome=Outcome.OK))
        return True

    async def _look(self, execution: str) -> bool:
        sent = now()
        handle = WorkflowHandle(self._client, execution)
        try:
            tokens = await handle.result(poll_interval=LOOK_SECONDS, timeout=RESULT_SECONDS)
        except (TimeoutError, DurableWorkflowError, httpx.HTTPError, OSError):
            return False
        seen = Observed(
            tenant=self._options.tenant,
            execution=execution,
            status="completed",
            sent=sent,
            terminal=True,
            results=tuple(tokens),
        )
        self._recorder.note(seen)
        return True


async def ask(options: argparse.Namespace, recorder: Recorder) -> None:
    async with Client(options.url, namespace=options.tenant) as client:
        asking = SdkClient(client, recorder, options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asking.stopping.set)
        print("ready", flush=True)
        await asking.run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tenant")
    parser.add_argument("parent", type=int)
    parser.add_argument("record")
    parser.add_argument("--id", default=f"sdk-client-{os.getpid()}")
    parser.add_argument("--open", type=int, default=2)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1)
    options = parser.parse_args()
    end_with_parent(options.parent)
    logging.basicConfig(level=logging.WARNING)
    with Recorder(Path(options.record), options.id) as recorder:
        asyncio.run(ask(options, recorder))


if __name__ == "__main__":
    main()
