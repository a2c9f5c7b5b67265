"""An order: charge, then wait for the parcel service, and ask it again when it says nothing.

Run it against any node: ``HEADRACE_URL=http://127.0.0.1:8080 python examples/order.py``.
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
    RpcContext,
    Step,
    StepContext,
    StepOptions,
    Wait,
    Worker,
    channel,
    complete,
    goto,
    rpc,
    timer,
    wait_any,
)

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080")
WORKER_URL = os.environ.get("HEADRACE_WORKER_URL", URL)
PATIENCE_SECONDS = 1.0


@dataclass
class Purchase:
    item: str
    cents: int


class Charge(Step[Purchase], name="charge"):
    options = StepOptions(execute=MethodOptions(retry=RetryPolicy(initial_interval=0.2, maximum_attempts=5)))

    async def execute(self, ctx: StepContext, purchase: Purchase) -> Decision:
        if ctx.attempt == 1:
            raise ConnectionError("the bank does not answer")
        print(f"charged {purchase.cents} cents once, as {ctx.idempotency_key}")
        ctx.attributes["state"] = "charged"
        return goto(Ship, purchase)


class Ship(Step[Purchase], name="ship"):
    def wait_for(self, ctx: StepContext, purchase: Purchase) -> Wait:
        return wait_any(channel("shipping"), timer(PATIENCE_SECONDS, id="patience"))

    async def execute(self, ctx: StepContext, purchase: Purchase) -> Decision:
        if ctx.satisfied("shipping"):
            (parcel,) = ctx.received("shipping")
            ctx.attributes["state"] = "shipped"
            return complete({"item": purchase.item, "parcel": parcel})
        print("no word from the parcel service, asking again")
        ctx.attributes["state"] = "asked again"
        return goto(Ship, purchase)


class Order(Flow, name="example-order"):
    steps = (Charge, Ship)

    @rpc
    async def state(self, ctx: RpcContext) -> str:
        return str(ctx.attributes.get("state", "new"))


async def main() -> None:
    async with Worker(WORKER_URL, flows=[Order], max_concurrent_tasks=4) as worker, Client(URL) as client:
        with trio.fail_after(30):
            await worker.wait_pull_registered()
        order = await client.start(Order, Purchase("kettle", 4_200))
        while (state := await order.rpc(Order.state)) != "asked again":
            print(f"the order is {state}")
            await trio.sleep(0.2)
        await order.publish("shipping", "parcel-17")
        print("the result:", await order.result(timeout_seconds=60))


if __name__ == "__main__":
    trio.run(main)
