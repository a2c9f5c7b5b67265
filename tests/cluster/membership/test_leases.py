"""Partition leases against a real server: one holder at a time, epochs never equal (E4)."""

from __future__ import annotations

import pytest
import trio

from cluster.errors import OutcomeUnknown
from cluster.membership.leases import LeaseStore, LeaseView, Standing
from cluster.membership.timing import Timing
from cluster.store.store import Store
from tests.cluster.membership.links import Link
from tests.store_time import store_ms
from tests.waiting import PATIENCE

SHORT = Timing(lease_ttl=0.15)


def taken(view: LeaseView) -> dict[int, str]:
    return {lease.partition: view.nonce for lease in view.leases if lease.standing is Standing.TAKEN}


async def expired(leases: LeaseStore) -> None:
    """Look, wanting nothing, until all leases have run out."""
    with trio.fail_after(PATIENCE):
        while any(lease.owner for lease in (await leases.exchange("watcher", {}, 0)).leases):  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_takes_no_more_than_wanted_and_nothing_of_others(store: Store) -> None:
    a, b = LeaseStore(store, Timing()), LeaseStore(store, Timing())
    mine = taken(await a.exchange("a", {}, 5))
    assert len(mine) == 5
    theirs = taken(await b.exchange("b", {}, 100))
    assert len(theirs) == 11
    assert not mine.keys() & theirs.keys()
    view = await a.exchange("a", mine, 100)
    assert {lease.partition for lease in view.leases if lease.standing is Standing.KEPT} == mine.keys()
    assert {lease.partition for lease in view.leases if lease.owner == "b"} == theirs.keys()
    assert not taken(view)


async def test_a_nonce_is_needed_to_renew(store: Store) -> None:
    a = LeaseStore(store, Timing())
    mine = taken(await a.exchange("a", {}, 1))
    stale = LeaseStore(store, Timing())
    view = await stale.exchange("a", dict.fromkeys(mine, "an older nonce"), 0)
    assert all(lease.standing is Standing.NOT_OURS for lease in view.leases)


async def test_one_that_ran_out_untaken_goes_on(store: Store) -> None:
    a = LeaseStore(store, SHORT)
    view = await a.exchange("a", {}, 3)
    await expired(LeaseStore(store, SHORT))
    again = await a.exchange("a", taken(view), 0)
    assert [lease.standing for lease in again.leases[:3]] == [Standing.KEPT] * 3
    assert [lease.epoch for lease in again.leases[:3]] == [lease.epoch for lease in view.leases[:3]]


async def test_one_that_was_taken_is_lost(store: Store) -> None:
    a, b = LeaseStore(store, SHORT), LeaseStore(store, SHORT)
    first = await a.exchange("a", {}, 1)
    await expired(b)
    second = await b.exchange("b", {}, 1)
    third = await a.exchange("a", taken(first), 0)
    assert third.leases[0].owner == "b"
    assert third.leases[0].standing is Standing.NOT_OURS
    assert first.leases[0].epoch < second.leases[0].epoch == third.leases[0].epoch


async def test_epochs_grow_however_fast_tenures_change(store: Store) -> None:
    leases = LeaseStore(store, Timing())
    epochs = []
    for turn in range(60):
        view = await leases.exchange(f"n{turn % 2}", {}, 1)
        epochs.append(view.leases[0].epoch)
        await leases.release(f"n{turn % 2}", taken(view))
    assert epochs == sorted(set(epochs))


async def test_epochs_exceed_what_a_rolled_back_store_remembers(store: Store) -> None:
    leases = LeaseStore(store, Timing())
    before = await leases.exchange("a", {}, 1)
    await store.call("DEL", store.keys.lease(0))
    after = await leases.exchange("b", {}, 1)
    assert before.leases[0].epoch <= after.leases[0].epoch <= await store_ms(store)
    assert before.nonce != after.nonce, "owner and nonce decide where epochs could be equal"


async def test_a_taking_that_went_unheard_is_recognised(store: Store, link: Link) -> None:
    leases = LeaseStore(link.as_store(), Timing())
    link.lose_replies = 1
    with pytest.raises(OutcomeUnknown):
        await leases.exchange("a", {}, 2)
    epochs = [int(await store.call("HGET", store.keys.lease(p), "epoch")) for p in (0, 1)]
    view = await leases.exchange("a", {}, 0)
    assert taken(view).keys() == {0, 1}
    assert [lease.epoch for lease in view.leases[:2]] == epochs


async def test_release_frees_only_what_is_still_held(store: Store) -> None:
    a, b = LeaseStore(store, SHORT), LeaseStore(store, Timing())
    mine = taken(await a.exchange("a", {}, 2))
    await expired(LeaseStore(store, SHORT))
    theirs = taken(await b.exchange("b", {}, 1))
    await a.release("a", mine)
    await b.release("b", dict.fromkeys(theirs, "an older nonce"))
    view = await b.exchange("b", theirs, 0)
    assert [lease.owner for lease in view.leases[:2]] == ["b", ""]
    assert await store.call("HKEYS", store.keys.lease(1)) == [b"epoch"]


async def test_on_a_cluster_each_call_touches_one_partition(store: Store, link: Link) -> None:
    link.clustered = True
    a, b = LeaseStore(link.as_store(), Timing()), LeaseStore(store, Timing())
    theirs = taken(await b.exchange("b", {}, 3))
    mine = taken(await a.exchange("a", {}, 4))
    assert len(mine) == 4
    assert not mine.keys() & theirs.keys()
    link.calls.clear()
    kept = await a.exchange("a", mine, 0)
    assert [lease.standing for lease in kept.leases] == [Standing.KEPT] * 4
    assert link.calls == [("partitions", 1)] * 4
    await a.release("a", mine)
    assert {size for _, size in link.calls} == {1}
    view = await b.exchange("b", theirs, 0)
    assert {lease.partition for lease in view.leases if lease.owner} == theirs.keys()


@pytest.mark.parametrize("seed", range(3))
async def test_racing_nodes_never_share_a_partition(store: Store, seed: int) -> None:
    stores = [LeaseStore(store, Timing()) for _ in range(6)]
    views: list[LeaseView] = []

    async def race(index: int) -> None:
        views.append(await stores[index].exchange(f"n{index}", {}, 3 + seed))

    async with trio.open_nursery() as nursery:
        for index in range(6):
            nursery.start_soon(race, index)
    partitions = [partition for view in views for partition in taken(view)]
    assert sorted(partitions) == list(range(16))
