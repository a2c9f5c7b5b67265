"""The public SDK's client, used from trio tests: each call runs on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import trio
from durable_workflow import Client

T = TypeVar("T")


async def with_client(url: str, job: Callable[[Client], Awaitable[T]], within: float = 120.0) -> T:
    """Run ``job(client)`` in a thread under asyncio; fails after ``within`` seconds."""

    async def run() -> T:
        async with Client(url) as client:
            return await asyncio.wait_for(job(client), within)

    return await trio.to_thread.run_sync(partial(asyncio.run, run()), abandon_on_cancel=True)


async def execute(
    url: str, workflow_type: str, queue: str, *arguments: Any, within: float = 120.0, **options: Any
) -> Any:
    """Start a workflow and wait for its result."""
    workflow_id = options.pop("workflow_id", None) or uuid4().hex

    async def job(client: Client) -> Any:
        handle = await client.start_workflow(
            workflow_type=workflow_type,
            task_queue=queue,
            workflow_id=workflow_id,
            input=list(arguments),
            **options,
        )
        return await client.get_result(handle, poll_interval=0.05, timeout=within)

    return await with_client(url, job, within + 10)
