"""The pulse of a namespace: one line for all nodes, taken only while somebody looks."""

from __future__ import annotations

from dataclasses import replace

import trio

from cluster.census import Census, CensusTaker
from cluster.pulse import INTERVAL_SECONDS, KEPT, Pulse
from cluster.shared_secret import SharedSecret
from cluster.store.store import Store


class Counting(CensusTaker):
    """Counts how often it was asked."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked = 0
        self.answer = Census(ready=3, added=7, handed_out=5, oldest_ready_ms=1_000)

    async def count(self, namespace: str) -> Census:
        self.asked += 1
        return replace(self.answer)


def pulse(store: Store, census: CensusTaker, now_ms: int = 4_000) -> Pulse:
    return Pulse(store, census, lambda: now_ms, lambda: (0.0012, 0.25))


async def test_a_sample_says_how_things_are(store: Store) -> None:
    (sample,) = await pulse(store, Counting(store)).look("ns")

    assert (sample.at_ms, sample.ready, sample.added, sample.handed_out) == (4_000, 3, 7, 5)
    assert (sample.oldest_age_ms, sample.usual_ms, sample.slowest_ms) == (3_000, 1.2, 250.0)


async def test_many_lookers_take_one_sample(store: Store) -> None:
    counting = [Counting(store), Counting(store)]
    nodes = [pulse(store, census) for census in counting]

    async with trio.open_nursery() as nursery:
        for node in nodes * 10:
            nursery.start_soon(node.look, "ns")

    assert sum(census.asked for census in counting) == 1
    assert await nodes[0].look("other") != []


async def test_another_node_shows_the_same_line(store: Store) -> None:
    await pulse(store, Counting(store)).look("ns")
    other = Counting(store)

    assert len(await pulse(store, other, now_ms=9_000).look("ns")) == 1
    assert other.asked == 0


async def test_the_line_forgets(store: Store) -> None:
    key, turn = store.keys.pulse("ns"), store.keys.turn("pulse", "ns")
    for _ in range(3):
        await pulse(store, Counting(store)).look("ns")
        await store.call("DEL", turn)
    await store.run("sample", [key], [b"x", 2, 100])

    assert await store.call("LLEN", key) == 2
    assert 0 < await store.call("TTL", key) <= 100
    assert KEPT * INTERVAL_SECONDS == 1800


async def test_a_secret_is_one_for_all_nodes(store: Store) -> None:
    found: set[bytes] = set()

    async def read() -> None:
        found.add(await SharedSecret(store, "console").read())

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(read)

    (secret,) = found
    assert len(secret) == 32
    assert await SharedSecret(store, "other").read() != secret


async def test_a_secret_that_is_gone_is_made_anew_when_asked(store: Store) -> None:
    secret = SharedSecret(store, "console")
    first = await secret.read()
    await store.call("DEL", store.keys.cluster())

    assert await secret.read() == first
    second = await secret.read(anew=True)
    assert second != first
    assert await SharedSecret(store, "console").read() == second
