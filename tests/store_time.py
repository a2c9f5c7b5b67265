"""The clock of the store, by which tasks are ordered, leases end and dispatches are counted."""

from __future__ import annotations

from cluster.store.store import Store
from tests.waiting import eventually

LATEST_SECOND = 40
"""Of a minute, for a test that counts what happens within one."""


async def store_ms(store: Store) -> int:
    """The time of the store in milliseconds."""
    seconds, micros = await store.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def next_millisecond(store: Store) -> None:
    """Wait until what becomes ready is younger than all that is ready.

    Of two tasks of one millisecond in different partitions either may come first.
    """
    began_ms = await store_ms(store)

    async def moved_on() -> bool:
        return await store_ms(store) > began_ms

    await eventually(moved_on)


async def early_in_a_minute(store: Store) -> None:
    """Wait until the minute of the store has enough left for a test of a limit per minute."""

    async def early() -> bool:
        return await store_ms(store) // 1000 % 60 <= LATEST_SECOND

    await eventually(early, within=60)
