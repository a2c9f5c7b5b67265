"""What task queues hold, for many queues at once."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.queues.overview import CHUNK, CHUNKS_AT_ONCE, look_at
from cluster.store.store import Store


async def test_thousands_of_queues_are_looked_at_a_few_chunks_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once they kept Redis busy for seconds, for everybody, and timed out behind each other."""
    under_way, most, asked = 0, 0, 0
    run = Store.run

    async def counted(self: Store, *args: Any, **options: Any) -> Any:
        nonlocal under_way, most, asked
        under_way += 1
        asked += 1
        most = max(most, under_way)
        try:
            return await run(self, *args, **options)
        finally:
            under_way -= 1

    monkeypatch.setattr(Store, "run", counted)
    await look_at(store, "default", [f"queue-{number}" for number in range(5 * CHUNK + 1)])
    partitions = store.keys.partitions
    assert (most, asked) == (CHUNKS_AT_ONCE * partitions, 6 * partitions)
