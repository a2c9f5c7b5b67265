"""The pulse of a namespace: one line for all nodes, taken only while somebody looks."""

from __future__ import annotations

import trio

from cluster.pulse import INTERVAL_SECONDS, KEPT, Pulse
from cluster.shared_secret import SharedSecret
from cluster.store.store import Store


def pulse(store: Store, now_ms: int = 4_000) -> Pulse:
    return Pulse(store, lambda: now_ms, lambda: (0.0012, 0.25))


async def test_an_empty_namespace_has_a_pulse(store: Store) -> None:
    (sample,) = await pulse(store).look("ns")

    assert (sample.at_ms, sample.ready, sample.leased, sample.oldest_age_ms) == (4_000, 0, 0, 0)
    assert (sample.usual_ms, sample.slowest_ms) == (1.2, 250.0)


async def test_many_lookers_take_one_sample(store: Store) -> None:
    nodes = [pulse(store, now_ms) for now_ms in (4_000, 9_000)]

    async with trio.open_nursery() as nursery:
        for node in nodes * 10:
            nursery.start_soon(node.look, "ns")

    assert await store.call("LLEN", store.keys.pulse("ns")) == 1
    assert len(await nodes[0].look("other")) == 1


async def test_another_node_shows_the_same_line(store: Store) -> None:
    await pulse(store).look("ns")

    (sample,) = await pulse(store, now_ms=9_000).look("ns")
    assert sample.at_ms == 4_000


async def test_the_line_forgets(store: Store) -> None:
    key, turn = store.keys.pulse("ns"), store.keys.turn("pulse", "ns")
    for _ in range(3):
        await pulse(store).look("ns")
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
