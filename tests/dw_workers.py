"""Workers for the examples of ``dw``: ``python -m tests.dw_workers URL orders|parcels PARENT_PID``.

They write ``ready`` once they work.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Generator
from typing import Any

import durable_workflow as sdk
import trio
from durable_workflow import workflow

import headrace
from headrace import (
    Decision,
    Flow,
    RpcContext,
    StepContext,
    Wait,
    channel,
    complete,
    goto,
    rpc,
    step,
    wait_all,
)
from nodes.cli.processes import end_with_parent
from tests.telling import TellReady


@workflow.defn(name="order")
class Order:
    """Waits until it is approved; items can be added meanwhile."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.approved = False

    @workflow.signal("approve")
    def approve(self, answer: bool = True) -> None:
        self.approved = answer

    @workflow.update("add_item")
    def add_item(self, item: str) -> int:
        self.items.append(item)
        return len(self.items)

    @workflow.query("status")
    def status(self) -> str:
        return "approved" if self.approved else "open"

    def run(self, ctx: Any, *_: Any) -> Generator[Any, Any, list[str]]:
        yield ctx.wait_condition(lambda: self.approved, key="approval")
        return self.items


@workflow.defn(name="greet")
class Greet:
    def run(self, ctx: Any, name: str) -> Generator[Any, Any, str]:
        yield ctx.sleep(0)
        return f"hello {name}"


@workflow.defn(name="report")
class Report:
    def run(self, ctx: Any) -> Generator[Any, Any, None]:
        yield ctx.sleep(0)
        raise ValueError("nothing to report")


class Parcel(Flow, name="parcel"):
    """Packed at once, and over when somebody has signed for it."""

    @step
    async def pack(self, ctx: StepContext, label: Any) -> Decision:
        return goto(Parcel.hand_over, label)

    @step
    async def hand_over(self, ctx: StepContext, _label: Any) -> Decision:
        return complete("handed over")

    @hand_over.wait_for
    def signed(self, ctx: StepContext, _label: Any) -> Wait:
        return wait_all(channel("signed"))

    @rpc
    async def where(self, ctx: RpcContext) -> str:
        return "on its way"


async def orders(url: str) -> None:
    async with sdk.Client(url) as client:
        logging.getLogger("durable_workflow").addHandler(TellReady())
        worker = sdk.Worker(
            client, task_queue="orders", workflows=[Order, Greet, Report], activities=[], poll_timeout=5
        )
        await worker.run()


async def parcels(url: str) -> None:
    async with headrace.Worker(url, flows=[Parcel], max_concurrent_tasks=4) as worker:
        await worker.wait_pull_registered()
        print("ready", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[3]))
    logging.basicConfig(level=logging.INFO)
    if sys.argv[2] == "orders":
        asyncio.run(orders(sys.argv[1]))
    else:
        trio.run(parcels, sys.argv[1])
