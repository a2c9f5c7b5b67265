"""Counting over all partitions."""

from __future__ import annotations

import pytest

from cluster.census import CensusTaker
from cluster.errors import StoreRefused
from cluster.store.store import Store


async def test_an_error_of_the_store_comes_by_itself(store: Store) -> None:
    """And not in a group, which nobody up the way would take for one: that was a 500 while Redis was away."""
    keys = store.keys
    for partition in range(2):
        await store.call("SET", keys.failing(partition, "default"), "no sorted set")
    taker = CensusTaker(store)
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await taker.count("default")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await taker.failing("default")
