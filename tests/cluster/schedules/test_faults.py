"""A fire whose outcome its node never heard of has happened once all the same."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import trio

from cluster.schedules.names import fire_timer
from cluster.store.store import Store, open_store
from tests.cluster.schedules.lab import (
    NAMESPACE,
    create_due,
    fire_events,
    firing_nodes,
    home,
    runs_of,
)
from tests.faults import open_proxy
from tests.waiting import eventually


async def test_a_fire_whose_reply_is_lost_happened_once(redis_url: str, prefix: str, store: Store) -> None:
    (other,) = await firing_nodes(store, 1)
    await create_due(other)
    parts = urlsplit(redis_url)
    async with (
        open_proxy((parts.hostname or "", parts.port or 0)) as proxy,
        open_store(proxy.url, prefix=prefix) as behind,
    ):
        (node,) = await firing_nodes(behind, 1)
        due_ms = (await node.schedules.describe(NAMESPACE, "s")).state.next_due_ms
        assert due_ms is not None
        proxy.lose_reply_to = b"ScheduleTriggered"
        await node.schedules.fire(fire_timer(NAMESPACE, "s"), due_ms)
        assert proxy.lost.is_set()
    (event,) = await fire_events(other)
    assert await runs_of(store, home(store)) == [event.run_id]


async def test_a_node_that_ends_before_its_commit_leaves_the_fire_to_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await firing_nodes(store)
    await create_due(one)
    decided = trio.Event()

    async def never(*_: object) -> None:
        decided.set()
        await trio.sleep_forever()

    monkeypatch.setattr(one.store, "commit", never)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.do_everything_due)
        await decided.wait()
        nursery.cancel_scope.cancel()
    monkeypatch.undo()
    assert await fire_events(other) == []

    async def fired() -> bool:
        await other.do_everything_due()
        return len(await fire_events(other)) == 1

    await eventually(fired)


async def test_a_trigger_that_is_too_large_is_counted_as_a_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = await firing_nodes(store, 1)
    await create_due(node, memo={"text": "x" * 3_000})
    monkeypatch.setattr("cluster.store.transaction.MAX_BYTES", 3_000)
    done = await node.schedules.trigger(NAMESPACE, "s", None, {})
    assert done["outcome"] == "trigger_failed"
    await node.do_everything_due()
    state = (await node.schedules.describe(NAMESPACE, "s")).state
    assert (state.fires_count, state.failures_count) == (0, 2)
    assert state.next_due_ms is not None
    assert state.next_due_ms > node.clock.now_ms()
