"""Ten thousand schedules due in the same second: all fire within ten seconds, none twice."""

from __future__ import annotations

import pytest
import trio

from cluster.store.store import Store
from tests.cluster.schedules.lab import create_due, firing_nodes, runs_of

SECONDS = 10.0


async def fire_all(store: Store, count: int) -> float:
    """Let two nodes fire ``count`` schedules; returns the seconds it took."""
    nodes = await firing_nodes(store)
    limit = trio.CapacityLimiter(64)

    async def create(number: int) -> None:
        async with limit:
            await create_due(nodes[0], f"s{number}")

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(create, number)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.do_everything_due)
    took = trio.current_time() - began
    runs = [run for partition in range(store.keys.partitions) for run in await runs_of(store, partition)]
    assert len(runs) == len(set(runs)) == count
    assert sum(node.due.failures for node in nodes) == 0
    return took


async def test_some_hundreds_fire_in_time(valkey_store: Store) -> None:
    assert await fire_all(valkey_store, 500) < SECONDS


@pytest.mark.bench
@pytest.mark.timeout(600)
async def test_ten_thousand_fire_in_time(valkey_store: Store) -> None:
    took = await fire_all(valkey_store, 10_000)
    print(f"10000 schedules fired in {took:.1f} s by two nodes in one process")
    assert took < SECONDS
