"""The public SDK accepts what this server says about itself, without a warning."""

from __future__ import annotations

import asyncio
import logging
import warnings
from functools import partial
from typing import Any

import durable_workflow
import pytest
import trio

from nodes.api.app import create_app
from nodes.api.limits import ListenerLimits
from nodes.api.serving import Address, open_listener, serve
from nodes.node import Node
from tests.unit.api.fakes import Client
from tests.waiting import LONG_PATIENCE, eventually


@durable_workflow.workflow.defn(name="greeter")
class Greeter:
    def run(self, context: Any, name: str) -> Any:
        return (yield context.schedule_activity("greet", [name]))


@durable_workflow.activity.defn(name="greet")
def greet(name: str) -> str:
    return f"hello, {name}"


async def _work(url: str, stop: trio.Event, token: trio.lowlevel.TrioToken) -> None:
    """Run a worker (in asyncio) until ``stop`` is set."""
    async with durable_workflow.Client(url, token="any") as client:
        worker = durable_workflow.Worker(
            client, task_queue="jobs", workflows=[Greeter], activities=[greet], worker_id="sdk"
        )
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(lambda: trio.from_thread.run(stop.wait, trio_token=token))
        await worker.stop()
        await asyncio.wait_for(running, 20)


async def test_a_worker_starts_and_stops_cleanly(
    node: Node, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="durable_workflow")
    limits = ListenerLimits(node.settings.max_payload_bytes)
    stop, leave = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    with trio.fail_after(LONG_PATIENCE), warnings.catch_warnings():
        warnings.simplefilter("error")
        async with trio.open_nursery() as nursery:
            address: Address = await nursery.start(
                partial(
                    serve,
                    client.pipeline,
                    create_app(client.pipeline, limits.body_bytes),
                    open_listener("127.0.0.1", 0),
                    limits,
                    shutdown=stop.wait,
                )
            )
            nursery.start_soon(trio.to_thread.run_sync, lambda: asyncio.run(_work(address.url, leave, token)))

            async def registered() -> bool:
                return await node.workers.get("default", "sdk") is not None

            await eventually(registered)
            await eventually(lambda: node.polls.parked == 2)
            leave.set()

            async def deregistered() -> bool:
                return await node.workers.get("default", "sdk") is None

            await eventually(deregistered)
            stop.set()

    assert [record.message for record in caplog.records if record.name.startswith("durable_workflow")] == []
