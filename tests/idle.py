"""Many parked polls and no work: what that costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from tests.bench.raw import connect
from tests.cluster_processes import NodeProcess
from tests.waiting import eventually
from tests.wire import metric, open_wire

POLL_SECONDS = 60
AT_ONCE = 500
"""Polls that are sent together: a node reads each within its time."""


@asynccontextmanager
async def parked_polls(nodes: Sequence[NodeProcess], count: int, queues: int) -> AsyncIterator[None]:
    """``count`` polls, half for activities, spread over nodes and ``queues``, all waiting."""
    async with connect(nodes[0].url) as first:
        for number in range(queues):
            await first.register(f"w{number}", f"q{number}")
    async with trio.open_nursery() as nursery:

        async def poll(number: int) -> None:
            queue = number // 4 % queues
            kind = ("workflow", "activity")[number // 2 % 2]
            async with connect(nodes[number % len(nodes)].url) as connection:
                assert await connection.poll(kind, f"w{queue}", f"q{queue}", POLL_SECONDS) is None

        for start in range(0, count, AT_ONCE):
            wanted = min(start + AT_ONCE, count)
            for number in range(start, wanted):
                nursery.start_soon(poll, number)
            await eventually(partial(_parked, nodes, wanted), 30)
        yield
        nursery.cancel_scope.cancel()


async def _parked(nodes: Sequence[NodeProcess], count: int) -> bool:
    return await total(nodes, "headrace_polls_parked") == count


async def total(nodes: Sequence[NodeProcess], name: str) -> float:
    """The sum of a metric over nodes."""
    found = 0.0
    for node in nodes:
        async with open_wire(node.url) as wire:
            found += await metric(wire, name)
    return found
