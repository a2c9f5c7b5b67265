"""The facade against both servers: commands, scripts, commits."""

from __future__ import annotations

import pytest
import trio

from cluster.errors import ConditionFailed, StoreRefused
from cluster.store.store import Store
from cluster.store.transaction import Transaction


async def test_replies_are_raw(store: Store, prefix: str) -> None:
    key = f"{prefix}:a"
    assert await store.call("SET", key, "ä") == b"OK"
    assert await store.call("GET", key) == "ä".encode()
    assert await store.call("GET", f"{prefix}:none") is None
    assert await store.call("RPUSH", f"{prefix}:l", 1, b"\x00", 2.5) == 3
    assert await store.call("LRANGE", f"{prefix}:l", 0, -1) == [b"1", b"\x00", b"2.5"]
    assert store.generation.count(":") == 1


async def test_an_error_reply_reaches_only_its_caller(store: Store, prefix: str) -> None:
    async def wrong() -> None:
        with pytest.raises(StoreRefused, match="WRONGTYPE"):
            await store.call("LPUSH", f"{prefix}:s", "x")

    await store.call("SET", f"{prefix}:s", 1)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wrong)
            nursery.start_soon(store.call, "INCR", f"{prefix}:s")
    assert await store.call("GET", f"{prefix}:s") == b"21"


async def test_a_bad_argument_is_the_callers_error(store: Store, prefix: str) -> None:
    with pytest.raises(TypeError):
        await store.call("SET", f"{prefix}:a", None)  # type: ignore[arg-type]


async def test_concurrent_calls_share_round_trips(store: Store, prefix: str) -> None:
    before = store.statistics().pipe.round_trips
    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(store.call, "INCR", f"{prefix}:n")
    assert await store.call("GET", f"{prefix}:n") == b"1000"
    assert store.statistics().pipe.round_trips - before < 100


async def test_commit_applies_once_per_request_id(store: Store) -> None:
    run = store.keys.run(0, "run")
    tx = Transaction(0, ring=run, request_id="rid")
    tx.hset(run, {"version": 1})
    tx.redis("HINCRBY", run, "count", 1)
    assert await store.commit(tx) is True
    assert await store.commit(tx) is False
    assert await store.call("HGET", run, "count") == b"1"


async def test_a_failed_condition_says_which(store: Store) -> None:
    run = store.keys.run(0, "run")
    await store.call("HSET", run, "version", 3)
    tx = Transaction(0)
    tx.expect_equal(run, "version", 3)
    tx.expect_equal(run, "version", 4)
    tx.redis("HSET", run, "version", 5)
    with pytest.raises(ConditionFailed) as caught:
        await store.commit(tx)
    assert (caught.value.index, caught.value.actual) == (1, b"3")
    assert list(caught.value.condition) == ["eq", run, "version", "4"]
    assert await store.call("HGET", run, "version") == b"3"


async def test_commits_of_one_turn_share_a_script_call(store: Store) -> None:
    results: list[bool] = []

    async def commit(index: int) -> None:
        tx = Transaction(index % 2)
        tx.redis("HINCRBY", store.keys.run(index % 2, "run"), "count", 1)
        results.append(await store.commit(tx))

    async with trio.open_nursery() as nursery:
        for index in range(200):
            nursery.start_soon(commit, index)
    assert results == [True] * 200
    assert await store.call("HGET", store.keys.run(0, "run"), "count") == b"100"
    assert store.statistics().commit_calls <= 20


async def test_commit_many_keeps_order_and_reports_each(store: Store) -> None:
    run = store.keys.run(0, "run")
    txs = []
    for version in range(100):
        tx = Transaction(0, frees=version % 10 == 0)
        if version:
            tx.expect_equal(run, "version", version - 1 if version != 50 else 7)
        tx.redis("HSET", run, "version", version)
        txs.append(tx)
    results = await store.commit_many(txs)
    assert results[:50] == [True] * 50
    assert all(isinstance(result, ConditionFailed) for result in results[50:])


async def test_commit_many_takes_several_partitions_but_on_a_cluster(store: Store) -> None:
    txs = []
    for partition in (0, 1, 0, 2):
        tx = Transaction(partition)
        tx.redis("HINCRBY", store.keys.run(partition, "many"), "count", 1)
        tx.arm(f"timer {partition}", 1)
        txs.append(tx)
    if store.clustered:
        with pytest.raises(ValueError, match="one partition"):
            await store.commit_many(txs)
        return
    calls = store.statistics().commit_calls
    assert await store.commit_many(txs) == [True] * 4
    assert store.statistics().commit_calls == calls + 1
    for partition, count in enumerate((b"2", b"1", b"1")):
        assert await store.call("HGET", store.keys.run(partition, "many"), "count") == count
        timers = await store.call("ZRANGE", store.keys.timers(partition), 0, -1)
        assert timers == [f"timer {partition}".encode()]
