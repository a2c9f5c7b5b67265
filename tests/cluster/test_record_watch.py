"""A node ends when the store no longer holds the cluster it joined."""

from __future__ import annotations

import pytest
import structlog
import trio

from cluster.bootstrap import bootstrap
from cluster.errors import ClusterGone, StoreError
from cluster.record_watch import watch_record
from cluster.store.store import Store, open_store
from tests.faults import open_proxy
from tests.waiting import PATIENCE, eventually

SOON = 0.01


async def test_a_record_that_is_gone_ends_the_watch(store: Store) -> None:
    record = await bootstrap(store, 8)
    await store.call("DEL", store.keys.cluster())
    with (
        structlog.testing.capture_logs() as logs,
        trio.fail_after(PATIENCE),
        pytest.raises(ClusterGone, match="is gone: Redis lost its data") as gone,
    ):
        await watch_record(store, record, SOON)
    assert "\n" not in str(gone.value)
    assert [(line["event"], line["emptied"]) for line in logs] == [("cluster_gone", True)]


@pytest.mark.parametrize("field", ["partitions", "created_at"])
async def test_the_record_of_another_cluster_ends_it_too(store: Store, field: str) -> None:
    """Another node found the emptied store first and began anew."""
    record = await bootstrap(store, 8)
    await store.call("HINCRBY", store.keys.cluster(), field, 1)
    with trio.fail_after(PATIENCE), pytest.raises(ClusterGone, match="is another one"):
        await watch_record(store, record, SOON)
    # A node that joins now knows the new record.
    with trio.move_on_after(0.1) as looking:
        await watch_record(store, await bootstrap(store, None), SOON)
    assert looking.cancelled_caught


async def test_a_store_that_was_away_ends_nothing(redis_url: str, prefix: str) -> None:
    host, port = redis_url.removeprefix("redis://").partition("/")[0].split(":")
    async with open_proxy((host, int(port))) as proxy, open_store(proxy.url, prefix=prefix) as store:
        record = await bootstrap(store, 8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_record, store, record, SOON)
            proxy.refusing = True
            await proxy.cut()
            with pytest.raises(StoreError):
                await store.call("GET", store.keys.cluster(), idempotent=True)
            proxy.refusing = False
            await eventually(lambda: _looked_again(store))
            nursery.cancel_scope.cancel()


async def _looked_again(store: Store) -> bool:
    try:
        return bool(await store.call("EXISTS", store.keys.cluster(), idempotent=True))
    except StoreError:
        return False
