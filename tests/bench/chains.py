"""Chains of steps, each result leading to the next step, and how long the next one takes to come."""

from __future__ import annotations

import random
from itertools import count

import trio

from tests.bench.raw import connect
from tests.bench.stream_load import STEP_TYPE, slot_workers

WARM_UP = 1.0
FLOWS, CONNECTIONS, SLOTS = 40, 4, 16
STEPS = 10_000
"""Of a chain whose hand-outs are timed: so many that nearly none begins meanwhile."""
_numbers = count()


class Chains:
    """Keeps a number of chains alive on a node: one that ends is replaced. Its flow type is its own, so that
    what is left of earlier ones takes no slot.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.flow_type = f"chain{next(_numbers)}"
        self._send, self._receive = trio.open_memory_channel[None](10_000)
        self.ended = 0

    def over(self, _flow_id: str) -> None:
        self.ended += 1
        self._send.send_nowait(None)

    async def begin(self, flows: int) -> None:
        for _ in range(flows):
            self._send.send_nowait(None)

    async def replace(self) -> None:
        async with connect(self._url) as client:
            async for _ in self._receive:
                flow_id = f"f{next(_numbers)}"
                body = {"flow_type": self.flow_type, "flow_id": flow_id, "start_step": STEP_TYPE}
                await client.post("/flows", body)


async def hand_outs(url: str, rate: float, seconds: float) -> list[float]:
    """Milliseconds from a result to the same flow's next step, about ``rate`` of them a second.

    Each of the flows thinks for a random time before it gives its result, so that they come one by one.
    """
    chains = Chains(url)
    await chains.begin(FLOWS)
    async with (
        slot_workers(url, chains.flow_type, CONNECTIONS, SLOTS, STEPS, chains.over) as workers,
        trio.open_nursery() as nursery,
    ):
        for worker in workers:
            worker.think = lambda: random.expovariate(rate / FLOWS)
        nursery.start_soon(chains.replace)
        await trio.sleep(WARM_UP)
        for worker in workers:
            worker.gaps.clear()
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return [gap * 1000 for worker in workers for gap in worker.gaps]
