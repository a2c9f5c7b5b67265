"""What servers do to membership: full memory, a restart, a freeze, a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from cluster.bootstrap import bootstrap
from cluster.clock import Clock
from cluster.errors import StoreFull
from cluster.membership import HeldPartition, Membership, NodeInfo
from cluster.store.store import Store, open_store
from tests.cluster.membership.test_membership import FAST, FORGIVING, Node, nodes_on, shares, until
from tests.servers import KINDS, Server, run_cluster, run_server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with run_server(request.param, tmp_path, "--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with run_cluster(request.param, tmp_path) as running:
        yield running


async def fill(store: Store) -> None:
    await store.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFull):
        await store.call("SET", store.keys.probe("full"), "1")


async def test_full_memory_stops_neither_renewals_nor_takeovers_nor_burials(server: Server) -> None:
    async with open_store(server.url) as store, nodes_on(store) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        await fill(store)
        renewals = a.member.statistics().renewals
        await until(lambda: a.member.statistics().renewals > renewals + 10)
        assert shares(a, b) == [8, 8]
        b.life.cancel()
        await until(lambda: shares(a) == [16] and a.told_dead == [b.member.incarnation])
        assert await store.call("ZCARD", store.keys.dead(0)) == 1
        c = await nodes.start("c")
        await until(lambda: shares(a, c) == [8, 8])
        await c.member.leave()
        await until(lambda: shares(a) == [16])
        assert a.member.statistics().failed_renewals == 0
        assert a.member.statistics().lease_renewals_failed == 0


async def test_a_full_store_lets_nodes_join_but_founds_no_cluster(server: Server) -> None:
    async with open_store(server.url) as store, open_store(server.url, prefix="new") as other:
        record = await bootstrap(store, None)
        await fill(store)
        assert (await bootstrap(store, None)).created_at_ms == record.created_at_ms
        with pytest.raises(StoreFull):
            await bootstrap(other, None)


async def test_a_restarted_server_buries_nobody(server: Server) -> None:
    async with open_store(server.url) as store, nodes_on(store, FORGIVING) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        names = {a.member.incarnation, b.member.incarnation}
        server.kill()
        await until(lambda: not a.member.may_act() and not b.member.may_act())
        await trio.to_thread.run_sync(server.start)
        await until(lambda: a.member.may_act() and b.member.may_act() and shares(a, b) == [8, 8])
        for node in (a, b):
            await renewed(node, 5)
        assert {a.member.incarnation, b.member.incarnation} == names
        assert not a.told_dead
        assert not b.told_dead


async def test_a_frozen_server_buries_nobody(server: Server) -> None:
    async with open_store(server.url) as store, nodes_on(store, FORGIVING) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        server.signal(signal.SIGSTOP)
        try:
            await until(lambda: not a.member.may_act() and not b.member.may_act())
            await trio.sleep(2 * FAST.session_ttl)  # nothing happens but time
        finally:
            server.signal(signal.SIGCONT)
        await until(lambda: a.member.may_act() and b.member.may_act() and shares(a, b) == [8, 8])
        for node in (a, b):
            await renewed(node, 5)
            assert not node.fenced
            assert not node.told_dead


async def renewed(node: Node, times: int) -> None:
    before = node.member.statistics().renewals
    await until(lambda: node.member.statistics().renewals >= before + times)


async def test_scripts_touch_one_slot_each(cluster: Server) -> None:
    url = cluster.url.replace("redis://", "redis+cluster://").removesuffix("/0")
    async with open_store(url) as store:
        assert store.clustered
        await bootstrap(store, None)
        kept: set[int] = set()

        async def housekeep(held: HeldPartition) -> None:
            kept.add(held.partition)
            await trio.sleep_forever()

        first, second = (
            Membership(store, Clock(), NodeInfo(name=name), housekeep, timing=FAST) for name in ("a", "b")
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(first.run)
            await until(lambda: len(first.held) == 16 and len(kept) == 16)
            await nursery.start(second.run)
            await until(lambda: len(first.held) == len(second.held) == 8)
            await second.leave()
            await until(lambda: len(first.held) == 16)
            dead: list[str] = []
            first.on_buried(dead.append)
            await store.call("ZADD", store.keys.sessions("alive"), 1, "gone~1")
            await until(lambda: dead == ["gone~1"])
            await first.leave()
