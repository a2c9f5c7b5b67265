"""The worker process of the scenarios, ``python -m tests.e2e.scenarios.worker``, with the arguments of
``tests.sdk_worker``.

It works on QUEUE, on QUEUE of a namespace called QUEUE, and as build ``one`` on ``QUEUE-builds``, and keeps
the histories of as many runs as ``--sticky`` says. It writes ``ready`` to standard output once it polls, and
one JSON line per activity attempt that it runs to the events file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from typing import Any

from durable_workflow import Client, Worker
from durable_workflow.interceptors import (
    ActivityHandler,
    ActivityInterceptorContext,
    PassthroughWorkerInterceptor,
)
from durable_workflow.retry_policy import TransportRetryPolicy

from nodes.cli.processes import end_with_parent
from tests.e2e.scenarios.programs import ACTIVITIES, WORKFLOWS
from tests.telling import TellReady

BUILD = "one"
SLOTS = 60
POLL_SECONDS = 20.0
PATIENT = TransportRetryPolicy(max_attempts=15, max_backoff_seconds=1.0)
"""Outlasts the death of a node and HAProxy's discovery of it."""


class NoteAttempts(PassthroughWorkerInterceptor):
    """Adds a line to the events file for each attempt of an activity that is not local.

    Appends of one write are not torn.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    async def execute_activity(self, context: ActivityInterceptorContext, next: ActivityHandler) -> Any:
        if not context.remote:
            return await next(context)
        names = ("workflow_id", "activity_attempt_id", "attempt_number")
        noted = {"type": context.activity_type, **{name: context.task.get(name) for name in names}}
        os.write(self._file, (json.dumps(noted) + "\n").encode())
        return await next(context)


async def work(url: str, queue: str, events: int, sticky: int) -> None:
    def worker(client: Client, queue: str, build: str | None = None) -> Worker:
        return Worker(
            client,
            task_queue=queue,
            build_id=build,
            workflows=WORKFLOWS,
            activities=ACTIVITIES,
            poll_timeout=POLL_SECONDS,
            max_concurrent_workflow_tasks=SLOTS,
            max_concurrent_activity_tasks=SLOTS,
            interceptors=[NoteAttempts(events)],
            sticky_cache_capacity=sticky,
        )

    logging.getLogger("durable_workflow").addHandler(TellReady())
    async with (
        Client(url, retry_policy=PATIENT) as client,
        Client(url, retry_policy=PATIENT, namespace=queue) as elsewhere,
    ):
        await client.create_namespace(queue)
        await asyncio.gather(
            worker(client, queue).run(),
            worker(client, f"{queue}-builds", BUILD).run(),
            worker(elsewhere, queue).run(),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("queue")
    parser.add_argument("parent", type=int)
    parser.add_argument("events")
    parser.add_argument("--sticky", type=int, required=True)
    options = parser.parse_args()
    end_with_parent(options.parent)
    logging.basicConfig(level=logging.INFO)
    events = os.open(options.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    asyncio.run(work(options.url, options.queue, events, options.sticky))


if __name__ == "__main__":
    main()
