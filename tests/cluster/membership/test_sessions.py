"""Sessions against a real server: two-step burial, its exceptions, and renewals when memory is full."""

from __future__ import annotations

import pytest
import trio

from cluster.membership.sessions import Buried, NodeInfo, Roll, SessionStore, new_incarnation
from cluster.membership.timing import Timing
from cluster.store.store import Store
from tests.cluster.membership.links import Link
from tests.waiting import PATIENCE

FAST = Timing(session_ttl=0.15, session_margin=0.02, patience=0.3, suspicion_void=30)
NOBODY = NodeInfo()


class Node:
    """One node's sessions, renewed only when the test says so."""

    def __init__(self, store: Store, name: str, timing: Timing = FAST) -> None:
        self.sessions = SessionStore(store, timing)
        self.incarnation = new_incarnation(name)

    async def renew(self) -> Roll:
        roll = await self.sessions.renew(self.incarnation, NOBODY)
        assert isinstance(roll, Roll)
        return roll


async def mark_of(store: Store, incarnation: str) -> tuple[int, str] | None:
    mark = await store.call("HGET", store.keys.sessions("suspect"), incarnation)
    if mark is None:
        return None
    at, generation = mark.decode().split(" ", 1)
    return int(at), generation


async def suspected(store: Store, watcher: Node, victim: Node) -> tuple[int, str]:
    """Let ``watcher`` look until ``victim`` is suspected."""
    with trio.fail_after(PATIENCE):
        while True:
            await watcher.renew()
            if mark := await mark_of(store, victim.incarnation):
                return mark
            await trio.sleep(0.01)


async def buried(watcher: Node, victim: Node) -> int:
    """Let ``watcher`` look until ``victim`` is buried; the time of it in ms."""
    with trio.fail_after(PATIENCE):
        while True:
            for burial in (await watcher.renew()).burials:
                if burial.incarnation == victim.incarnation:
                    return burial.at_ms
            await trio.sleep(0.01)


async def test_the_living_see_each_other(store: Store) -> None:
    timing = Timing().scaled(10)
    sessions = SessionStore(store, timing)
    info = NodeInfo(name="a", build="1.0", level=3, address="10.0.0.1:80", started_at=5)
    await sessions.renew("a~1", info)
    await store.call("HSET", store.keys.sessions("info"), "b~1", '{"name": "b", "level": "new form"}')
    roll = await SessionStore(store, timing).renew("b~1", NOBODY)
    assert isinstance(roll, Roll)
    assert {session.incarnation: session.info for session in roll.live} == {"a~1": info, "b~1": NOBODY}
    assert all(60 < session.expires_in <= 70 for session in roll.live)
    assert not roll.burials
    assert roll.next_verdict_in is not None
    assert 60 < roll.next_verdict_in <= 70


async def test_death_is_a_verdict_in_two_steps(store: Store) -> None:
    a, b = Node(store, "a"), Node(store, "b")
    expires = int((await a.renew()).now_us / 1000) + 150
    suspicion, generation = await suspected(store, b, a)
    assert generation == store.generation
    burial = await buried(b, a)
    assert suspicion >= expires
    assert burial - suspicion >= 300
    assert isinstance(await a.sessions.renew(a.incarnation, NOBODY), Buried)
    assert [session.incarnation for session in (await b.renew()).live] == [b.incarnation]
    assert await mark_of(store, a.incarnation) is None


async def test_who_comes_back_before_the_burial_lives(store: Store) -> None:
    a, b = Node(store, "a"), Node(store, "b")
    await a.renew()
    await suspected(store, b, a)
    await a.renew()
    assert await mark_of(store, a.incarnation) is None
    again, _ = await suspected(store, b, a)
    assert await buried(b, a) - again >= 300, "an old suspicion does not count"


async def test_a_suspicion_from_another_store_generation_starts_over(store: Store, link: Link) -> None:
    a, b = Node(store, "a"), Node(link.as_store(), "b")
    await a.renew()
    first, _ = await suspected(store, b, a)
    link.generation = "after a failover"
    assert not (await b.renew()).burials
    second = await mark_of(store, a.incarnation)
    assert second is not None
    assert second[1] == "after a failover"
    assert second[0] >= first
    assert await buried(b, a) - second[0] >= 300


async def test_a_suspicion_nobody_acted_on_starts_over(store: Store) -> None:
    timing = Timing(session_ttl=0.1, patience=0.2, suspicion_void=0.3)
    a, b = Node(store, "a", timing), Node(store, "b", timing)
    await a.renew()
    first, _ = await suspected(store, b, a)
    await trio.sleep(0.4)  # everybody is away: nothing to wait for but time
    assert not (await b.renew()).burials
    second = await mark_of(store, a.incarnation)
    assert second is not None
    assert second[0] - first >= 300


async def test_many_die_at_once(store: Store) -> None:
    for index in range(250):
        await store.call("ZADD", store.keys.sessions("alive"), 1, f"n{index}~1")
    b = Node(store, "b", Timing(session_ttl=5, patience=0.05))
    dead: set[str] = set()
    with trio.fail_after(PATIENCE):
        while len(dead) < 250:
            dead |= {burial.incarnation for burial in (await b.renew()).burials}
            await trio.sleep(0.01)
    assert await store.call("ZCARD", store.keys.sessions("alive")) == 1
    assert await store.call("HLEN", store.keys.sessions("suspect")) == 0


async def test_the_dead_are_forgotten_after_their_time(store: Store) -> None:
    key = store.keys.sessions("dead")
    await store.call("ZADD", key, 1, "old~1")
    assert not (await Node(store, "a").renew()).burials
    assert await store.call("ZCARD", key) == 0


async def test_leaving_leaves_nothing(store: Store) -> None:
    a, b = Node(store, "a"), Node(store, "b")
    await a.renew()
    await suspected(store, b, a)
    for node in (a, b):
        await node.sessions.leave(node.incarnation)
    keys = [store.keys.sessions(family) for family in ("alive", "info", "suspect", "dead")]
    assert await store.call("EXISTS", *keys) == 0


async def test_arrivals_and_departures_are_told(store: Store) -> None:
    heard, wait = trio.open_memory_channel[bytes](10)
    channel = store.keys.changed_channel()
    store.on_message(channel, lambda _, message: heard.send_nowait(message))
    await store.subscribe(channel)
    a = Node(store, "a")
    await a.renew()
    await a.renew()
    await a.sessions.leave(a.incarnation)
    with trio.fail_after(PATIENCE):
        assert [await wait.receive(), await wait.receive()] == [b"nodes", b"nodes"]
    assert wait.statistics().current_buffer_used == 0


@pytest.mark.parametrize("name", ["a", "with~tilde", "ünï code"])
def test_incarnations_differ_and_name_their_node(name: str) -> None:
    one, other = new_incarnation(name), new_incarnation(name)
    assert one != other
    assert one.rpartition("~")[0] == name
