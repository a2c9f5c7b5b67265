"""The admission scripts by themselves, on both servers, on a Cluster, and on a full Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.admission.limits import LimitBook, LimitName, QueueLimits
from cluster.admission.tickets import (
    Closed,
    Dispatches,
    Granted,
    Ticket,
    admit,
    adopt,
    discharge,
    new_tickets,
    old_tickets,
)
from cluster.errors import StoreFull
from cluster.store.keys import encode
from cluster.store.store import Store, open_store
from tests.cluster.admission.test_limits_hold import tree
from tests.cluster.admission.world import ACTIVITY, open_world
from tests.servers import run_cluster, run_server
from tests.store_time import early_in_a_minute
from tests.waiting import eventually

NAMESPACE, QUEUE = "n:s", "a queue"


def limits(**fields: Any) -> QueueLimits:
    return LimitBook(NAMESPACE, {}, tree(**fields), {}).of(ACTIVITY, QUEUE)


async def count_leases(store: Store) -> None:
    await store.call("HSET", store.keys.terms(NAMESPACE), "on:a", "somebody")


async def ask(store: Store, what: QueueLimits, wanted: int, **more: Any) -> Granted:
    names = more.pop("tickets", new_tickets(wanted) if what.counts_leases else ())
    answer = await admit(
        store, NAMESPACE, QUEUE, what, version=0, node="me", wanted=wanted, tickets=names, **more
    )
    assert isinstance(answer, Granted)
    return answer


async def test_the_first_limit_in_gate_order_is_named(store: Store) -> None:
    await early_in_a_minute(store)
    await count_leases(store)
    what = limits(
        max_active_leases=2,
        max_active_leases_per_namespace=2,
        max_dispatches_per_minute=2,
        max_dispatches_per_minute_per_namespace=2,
        budget_group="g",
        max_dispatches_per_minute_per_budget_group=2,
    )
    assert (await ask(store, what, 0)).standing.refused is None
    granted = await ask(store, what, 5)
    assert granted.number == 2 == len(granted.tickets)
    for used_up in LimitName:
        assert (await ask(store, what, 1)).standing.refused is used_up
        later = list(LimitName)[list(LimitName).index(used_up) + 1 :]
        what = limits(budget_group="g", **{name.value: 2 for name in later})


@pytest.mark.parametrize("wanted", [1, 3, 7])
async def test_nothing_is_taken_beyond_the_smallest_room(store: Store, wanted: int) -> None:
    await early_in_a_minute(store)
    await count_leases(store)
    what = limits(max_active_leases=5, max_dispatches_per_minute=4)
    granted = await ask(store, what, wanted)
    assert granted.number == min(wanted, 4)
    again = await ask(store, what, 7)
    assert again.number == 4 - granted.number
    assert again.standing.count(LimitName.QUEUE_LEASES) == 4
    assert again.standing.count(LimitName.QUEUE_DISPATCHES) == 4
    assert again.standing.refused is LimitName.QUEUE_DISPATCHES


async def test_a_claim_must_come_soon_and_within_its_minute(store: Store) -> None:
    await count_leases(store)
    granted = await ask(store, limits(max_active_leases=5), 1)
    assert granted.claim_by_ms == granted.standing.now_ms + 5000
    counted = await ask(store, limits(max_dispatches_per_minute=5), 1)
    now, left = counted.standing.now_ms, counted.standing.minute_left_ms
    assert (now + left) % 60_000 == 0
    assert counted.claim_by_ms == min(now + 5000, now + left - 1)


async def test_refunds_go_to_the_minute_of_the_ticket_and_never_below_zero(store: Store) -> None:
    await count_leases(store)
    what = limits(
        max_active_leases=9,
        max_dispatches_per_minute=9,
        max_dispatches_per_minute_per_namespace=9,
        budget_group="g h",
        max_dispatches_per_minute_per_budget_group=9,
    )
    granted = await ask(store, what, 3)
    minute = granted.standing.now_ms // 60_000
    bucket = f"{store.keys.admission(NAMESPACE)}:m:a:{minute}"
    names = (f"q:{encode(QUEUE)}", "n", "g:g%20h")
    assert await store.call("HMGET", bucket, *names) == [b"3"] * 3
    items = [Ticket(ACTIVITY, name, refund=True) for name in granted.tickets[:2]]
    assert await discharge(store, NAMESPACE, items) == 2
    assert await discharge(store, NAMESPACE, items) == 0
    assert await store.call("HMGET", bucket, *names) == [b"1"] * 3
    assert await discharge(store, NAMESPACE, [Ticket(ACTIVITY, granted.tickets[2])]) == 1
    assert await store.call("HMGET", bucket, *names) == [b"1"] * 3
    too_many = Dispatches(ACTIVITY, QUEUE, minute, True, "g h", 5)
    await discharge(store, NAMESPACE, [too_many])
    assert await store.call("HMGET", bucket, *names) == [b"0"] * 3
    assert 0 < await store.call("PTTL", bucket) <= 120_000


async def test_old_terms_and_uncounted_leases_are_told(store: Store) -> None:
    what = limits(max_active_leases=1)
    answer = await admit(
        store, NAMESPACE, QUEUE, what, version=0, node="me", wanted=1, tickets=new_tickets(1)
    )
    assert answer is Closed.UNCOUNTED
    await store.call("HSET", store.keys.terms(NAMESPACE), "v", 3)
    for version in (0, 2, 4):
        answer = await admit(store, NAMESPACE, QUEUE, what, version=version, node="me", wanted=1)
        assert answer is Closed.STALE


async def test_a_ticket_is_only_dropped_while_it_is_the_one_that_was_seen(store: Store) -> None:
    await count_leases(store)
    granted = await ask(store, limits(max_active_leases=5), 1)
    [name] = granted.tickets
    assert await discharge(store, NAMESPACE, [Ticket(ACTIVITY, name, record="another")]) == 0
    key = f"{store.keys.admission(NAMESPACE)}:i:a"
    record = (await store.call("HGET", key, name)).decode()
    assert await discharge(store, NAMESPACE, [Ticket(ACTIVITY, name, record=record)]) == 1


async def test_as_many_nodes_are_told_of_room_as_there_is(store: Store) -> None:
    await count_leases(store)
    heard: list[str] = []
    channels = [store.keys.room_channel(f"node{number}") for number in range(4)]
    store.on_message(f"{store.keys.prefix}:room:", lambda channel, _: heard.append(channel))
    await store.subscribe(*channels)
    what = limits(max_active_leases=2)
    granted = await ask(store, what, 2)
    for number in range(4):
        await admit(
            store,
            NAMESPACE,
            QUEUE,
            what,
            version=0,
            node=f"node{number}",
            wanted=1,
            tickets=new_tickets(1),
        )
    await discharge(store, NAMESPACE, [Ticket(ACTIVITY, granted.tickets[0])])
    await eventually(lambda: len(heard) == 1)
    await discharge(store, NAMESPACE, [Ticket(ACTIVITY, granted.tickets[1])])
    await eventually(lambda: len(heard) == 2)
    assert heard == channels[:2], "those that waited longest"


async def test_tickets_are_audited_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.admission.tickets.AUDIT_AFTER_MS", -1000)
    await count_leases(store)
    names = [*(await ask(store, limits(max_active_leases=99), 16)).tickets]
    rows = [part for number in range(9) for part in (b"adopted%d" % number, b"q")]
    assert await adopt(store, NAMESPACE, ACTIVITY, rows) == 9
    assert await adopt(store, NAMESPACE, ACTIVITY, rows) == 0
    names += [f"adopted{number}" for number in range(9)]
    found: list[str] = []
    after = None
    while chunk := await old_tickets(store, NAMESPACE, ACTIVITY, after, 4):
        found += [ticket.name for ticket in chunk]
        after = chunk[-1]
    assert sorted(found) == sorted(names)


async def test_a_full_redis_takes_tickets_back_but_gives_none(tmp_path: Path, prefix: str) -> None:
    with run_server("redis", tmp_path) as server:
        async with open_store(server.url, prefix=prefix) as store:
            await count_leases(store)
            what = limits(max_active_leases=5, max_dispatches_per_minute=100)
            granted = await ask(store, what, 3)
            with server.client() as client:
                client.config_set("maxmemory", 1)
            with pytest.raises(StoreFull):
                await ask(store, what, 1)
            assert (await ask(store, what, 0)).standing.count(LimitName.QUEUE_LEASES) == 3
            items = [Ticket(ACTIVITY, name, refund=True) for name in granted.tickets]
            assert await discharge(store, NAMESPACE, items) == 3


@pytest.fixture
async def cluster_url(tmp_path: Path) -> AsyncIterator[str]:
    with run_cluster("valkey", tmp_path) as server:
        yield f"redis+cluster://127.0.0.1:{server.port}"


async def test_the_limits_hold_on_a_redis_cluster(cluster_url: str, prefix: str) -> None:
    overrides = tree(max_active_leases=3, max_dispatches_per_minute=1000)
    async with open_world(cluster_url, prefix, members=2, overrides=overrides) as world:
        await early_in_a_minute(world.store)
        await world.add(12)
        claims = [await world.members[turn % 2].poll(0.3) for turn in range(5)]
        held = [claim for claim in claims if claim is not None]
        assert len(held) == 3 == await world.tickets()
        for claim in held:
            await world.finish(claim)
        assert await world.members[1].poll(5) is not None
