"""Whole nodes against a real server: share, hand-over, death, pauses and cuts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from cluster.clock import Clock
from cluster.membership import HeldPartition, Membership, NodeInfo, NodeLoad, Timing
from cluster.store.store import Store
from tests.cluster.membership.links import Link
from tests.waiting import PATIENCE

FAST = Timing().scaled(0.2)
FORGIVING = replace(FAST, patience=10.0, suspicion_void=30.0)
"""Nobody is buried, however long the machine takes to let everybody renew again."""

UNHURRIED = replace(Timing().scaled(1000), retry_every=0.05)
"""Nothing is renewed in the time of a test unless somebody says that there is reason to."""


@dataclass
class Node:
    """A member and what it was told; ``life`` ends it without a word."""

    link: Link
    member: Membership
    keeping: set[int]
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
    fenced: list[str] = field(default_factory=list)
    told_dead: list[str] = field(default_factory=list)
    draining: bool = False

    def drain(self) -> None:
        self.draining = True
        self.member.yield_partitions()


class Nodes:
    """Starts nodes in one nursery."""

    def __init__(self, store: Store, nursery: trio.Nursery, timing: Timing) -> None:
        self._store = store
        self._nursery = nursery
        self._timing = timing

    async def start(self, name: str) -> Node:
        keeping: set[int] = set()

        async def housekeep(held: HeldPartition) -> None:
            assert held.partition not in keeping
            keeping.add(held.partition)
            try:
                await trio.sleep_forever()
            finally:
                keeping.remove(held.partition)

        link = Link(self._store)
        member = Membership(
            link.as_store(),
            Clock(),
            NodeInfo(name=name),
            housekeep,
            load=lambda: NodeLoad(draining=node.draining),
            timing=self._timing,
        )
        node = Node(link, member, keeping)
        member.on_fenced(node.fenced.append)
        member.on_buried(node.told_dead.append)

        async def live(task_status: trio.TaskStatus[None]) -> None:
            with node.life:
                await member.run(task_status)

        await self._nursery.start(live)
        return node


@asynccontextmanager
async def nodes_on(store: Store, timing: Timing = FAST) -> AsyncIterator[Nodes]:
    async with trio.open_nursery() as nursery:
        yield Nodes(store, nursery, timing)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> float:
    """Wait for ``condition``; for how many seconds it did not hold, as far as could be seen."""
    started = missing = trio.current_time()
    with trio.fail_after(PATIENCE):
        while True:
            now = trio.current_time()
            if condition():
                return missing - started
            missing = now
            await trio.sleep(0.005)


async def renewals_until(node: Node, condition: Callable[[], bool]) -> int:
    """How often ``node`` renewed until ``condition`` held: a time that a slow machine stretches."""
    before = node.member.statistics().renewals
    await until(condition)
    return node.member.statistics().renewals - before


def shares(*nodes: Node) -> list[int]:
    """How many partitions each keeps, or nothing while some partition is not kept by exactly one."""
    kept = sorted(partition for node in nodes for partition in node.keeping)
    return sorted(len(node.keeping) for node in nodes) if kept == list(range(16)) else []


async def test_a_lonely_node_keeps_everything(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a = await nodes.start("a")
        assert a.member.may_act()
        await until(lambda: shares(a) == [16])
        assert all(held.may_act() for held in a.member.held.values())
        assert [session.info.name for session in a.member.live] == ["a"]
        assert {held.owner for held in a.member.held.values()} == {a.member.incarnation}


async def test_a_node_that_drains_yields_its_partitions_and_stays(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a, b, c = [await nodes.start(name) for name in "abc"]
        await until(lambda: bool(shares(a, b, c)))
        a.drain()
        await until(lambda: shares(b, c) == [8, 8])
        assert a.member.may_act()
        assert not a.keeping
        b.drain()
        await until(lambda: shares(c) == [16])
        # Nobody is left who could take them.
        c.drain()
        before = c.member.statistics().renewals
        await until(lambda: c.member.statistics().renewals > before + 3)
        assert shares(c) == [16]
        await a.member.leave()
        d = await nodes.start("d")
        await until(lambda: shares(d) == [16])


async def test_what_a_draining_node_kept_is_elsewhere_before_anybody_renews(store: Store) -> None:
    """It gives up everything at once and says so aloud: nobody waits for the next renewal."""
    async with nodes_on(store, UNHURRIED) as nodes:
        a, b, c = [await nodes.start(name) for name in "abc"]
        await until(lambda: shares(a, b, c) in ([4, 6, 6], [5, 5, 6]))
        a.link.calls.clear()
        a.drain()
        await until(lambda: shares(b, c) == [8, 8])
        released = [keys for script, keys in a.link.calls if script == "release"]
        assert sum(released) in (4, 5, 6)
        if not store.clustered:
            assert len(released) <= 2  # its look at the leases may fall between the ends of housekeepers


async def test_a_node_says_that_it_drains_until_it_was_heard(store: Store) -> None:
    async with nodes_on(store, UNHURRIED) as nodes:
        a, b = [await nodes.start(name) for name in "ab"]
        await until(lambda: shares(a, b) == [8, 8])
        a.link.lose_replies = 1
        a.drain()
        await until(lambda: shares(b) == [16])
        assert a.member.statistics().failed_renewals + a.member.statistics().lease_renewals_failed == 1


async def test_shares_follow_arrivals_and_departures(store: Store) -> None:
    async with nodes_on(store, Timing()) as nodes:
        a = await nodes.start("a")
        await until(lambda: shares(a) == [16])
        b = await nodes.start("b")
        assert await renewals_until(a, lambda: shares(a, b) == [8, 8]) <= 3
        c = await nodes.start("c")
        assert await renewals_until(a, lambda: shares(a, b, c) in ([4, 6, 6], [5, 5, 6])) <= 3
        await a.member.leave()
        assert not a.member.may_act()
        assert not a.keeping
        at_once = await renewals_until(b, lambda: shares(b, c) == [8, 8])
        assert at_once <= 1, "a clean leave is told"
        assert not b.told_dead
        assert not c.told_dead


async def test_the_last_to_leave_leaves_only_epochs(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a = await nodes.start("a")
        await until(lambda: shares(a) == [16])
        await a.member.leave()
        await a.member.leave()
    keys = store.keys
    assert await store.call("EXISTS", *(keys.sessions(f) for f in ("alive", "info", "suspect", "dead"))) == 0
    for partition in range(16):
        assert await store.call("HKEYS", keys.lease(partition)) == [b"epoch"]
        assert await store.call("EXISTS", keys.dead(partition)) == 0


async def test_what_a_killed_node_kept_is_kept_within_the_lease_and_it_is_buried(store: Store) -> None:
    timing = Timing().scaled(0.5)
    async with nodes_on(store, timing) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        before = a.member.statistics().renewals
        b.life.cancel()
        assert await renewals_until(a, lambda: shares(a) == [16]) <= 4
        assert not a.told_dead
        await until(lambda: bool(a.told_dead))
        assert a.member.statistics().renewals - before <= 12
        assert a.told_dead == [b.member.incarnation]
        for partition in range(16):
            assert await store.call("ZSCORE", store.keys.dead(partition), b.member.incarnation) is not None
        late = await nodes.start("c")
        await until(lambda: shares(a, late) == [8, 8] and late.told_dead == [b.member.incarnation])


async def test_nobody_is_told_of_a_burial_before_the_partitions_know(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a = await nodes.start("a")
        await until(lambda: shares(a) == [16])
        a.link.refused.add("bury")
        await store.call("ZADD", store.keys.sessions("alive"), 1, "gone~1")
        await until(lambda: a.member.statistics().burials_known == 1)
        renewals = a.member.statistics().renewals
        await until(lambda: a.member.statistics().renewals > renewals + 3)
        assert not a.told_dead
        a.link.refused.clear()
        await until(lambda: a.told_dead == ["gone~1"])
        for partition in range(16):
            assert await store.call("ZSCORE", store.keys.dead(partition), "gone~1") is not None


async def test_a_node_that_stood_still_too_long_comes_back_as_another(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        was, tenures = b.member.incarnation, list(b.member.held.values())
        b.link.freeze()
        await until(lambda: a.told_dead == [was])
        assert not b.member.may_act()
        assert len(a.member.held) == 16
        b.link.thaw()
        await until(lambda: b.fenced == [was])
        assert b.member.incarnation != was
        await until(lambda: shares(a, b) == [8, 8] and b.member.may_act())
        assert not any(tenure.may_act() for tenure in tenures)
        assert b.member.statistics().fenced == 1


async def test_a_node_that_stood_still_shortly_stays_who_it_is(store: Store) -> None:
    async with nodes_on(store, FORGIVING) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        was = b.member.incarnation
        b.link.freeze()
        await until(lambda: len(a.member.held) == 16)
        await until(lambda: not b.member.may_act())
        b.link.thaw()
        await until(lambda: shares(a, b) == [8, 8] and b.member.may_act())
        assert b.member.incarnation == was
        assert not b.fenced
        assert not a.told_dead


async def test_while_redis_is_away_a_node_only_stops_acting(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a = await nodes.start("a")
        await until(lambda: shares(a) == [16])
        was = a.member.incarnation
        a.link.is_cut = True
        took = await until(lambda: not a.member.may_act())
        assert took <= FAST.session_ttl - FAST.session_margin + 0.2
        assert not any(held.may_act() for held in a.member.held.values())
        assert len(a.keeping) == 16, "housekeeping waits, it is not stopped"
        a.link.is_cut = False
        await until(lambda: a.member.may_act() and all(held.may_act() for held in a.member.held.values()))
        assert a.member.incarnation == was
        assert a.member.statistics().partitions_lost == 0
        assert a.member.statistics().failed_renewals > 0


async def test_nobody_acts_when_others_may_take_over(store: Store) -> None:
    async with nodes_on(store) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        tenures = list(b.member.held.values())
        b.link.freeze()

        def taken_over() -> bool:
            assert not any(tenure.may_act() and tenure.partition in a.member.held for tenure in tenures)
            return len(a.member.held) == 16

        await until(taken_over)


async def test_idle_nodes_ask_little(store: Store) -> None:
    async with nodes_on(store, Timing()) as nodes:
        a, b = await nodes.start("a"), await nodes.start("b")
        await until(lambda: shares(a, b) == [8, 8])
        renewals = a.member.statistics().renewals
        a.link.calls.clear()
        await until(lambda: a.member.statistics().renewals >= renewals + 3)
        assert len(a.link.calls) <= 8


async def test_the_clock_learns_from_renewals(store: Store) -> None:
    clock = Clock()

    async def housekeep(held: HeldPartition) -> None:
        await trio.sleep_forever()

    member = Membership(store, clock, NodeInfo(name="a"), housekeep)
    async with trio.open_nursery() as nursery:
        await nursery.start(member.run)
        await member.wait_joined()
        before = clock.now_us()
        seconds, micros = await store.call("TIME")
        assert before - 500_000 <= int(seconds) * 1_000_000 + int(micros) <= clock.now_us() + 500_000
        await member.leave()
