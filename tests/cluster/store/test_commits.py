"""Commits whose answer is lost, refused or shared with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from cluster.errors import OutcomeUnknown, StoreError, StoreFull, StoreRefused, StoreUnavailable
from cluster.store import store as store_module
from cluster.store.aggregator import GROUP_BYTES, GROUP_TRANSACTIONS, Packed, split
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from tests.waiting import PATIENCE


def counting(store: Store, partition: int = 0, request_id: str = "", amount: int = 1) -> Transaction:
    """A transaction that adds to the field ``count`` of a run."""
    run = store.keys.run(partition, "run")
    tx = Transaction(partition, ring=run if request_id else "", request_id=request_id)
    tx.redis("HINCRBY", run, "count", amount)
    return tx


async def count(store: Store, partition: int = 0) -> int:
    return int(await store.call("HGET", store.keys.run(partition, "run"), "count") or 0)


def replace_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, fault: Callable[[int, int], StoreError | None]
) -> None:
    """Let ``fault(call number, transactions)`` decide whether a commit runs and its answer is lost."""
    calls = 0
    run = store.run

    async def faulty(script: str, keys: Sequence[str], args: Sequence[Any], **options: bool) -> Any:
        nonlocal calls
        calls += 1
        error = fault(calls, len(args) - 3)
        if error is None or isinstance(error, OutcomeUnknown):
            reply = await run(script, keys, args, **options)
        if error is not None:
            raise error
        return reply

    monkeypatch.setattr(store, "run", faulty)


async def test_asking_again_survives_what_happens_meanwhile(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ASK_AGAIN_PAUSE", 0.001)
    faults = {1: OutcomeUnknown("lost"), 2: StoreUnavailable("away"), 3: StoreFull("full")}
    replace_run(valkey_store, monkeypatch, lambda call, _: faults.get(call))
    assert await valkey_store.commit(counting(valkey_store, request_id="a")) is False
    assert await count(valkey_store) == 1


@pytest.mark.parametrize("later", [OutcomeUnknown("lost"), StoreUnavailable("away"), StoreFull("full")])
async def test_asking_again_ends_as_unknown(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch, later: StoreError
) -> None:
    """What the later attempts say does not settle the first."""
    monkeypatch.setattr(store_module, "ASK_AGAIN_PAUSE", 0.001)
    monkeypatch.setattr(store_module, "ASK_AGAIN_FOR", 0.05)
    replace_run(valkey_store, monkeypatch, lambda call, _: OutcomeUnknown("lost") if call == 1 else later)
    with trio.fail_after(PATIENCE), pytest.raises(OutcomeUnknown):
        await valkey_store.commit(counting(valkey_store, request_id="a"))
    assert await count(valkey_store) == 1


async def test_a_lost_group_tells_the_repeatable_from_the_rest(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_run(valkey_store, monkeypatch, lambda call, _: OutcomeUnknown("lost") if call == 1 else None)
    results: dict[str, bool | StoreError] = {}

    async def commit(request_id: str) -> None:
        try:
            results[request_id] = await valkey_store.commit(counting(valkey_store, request_id=request_id))
        except StoreError as error:
            results[request_id] = error

    async with trio.open_nursery() as nursery:
        for request_id in ("a", "b", ""):
            nursery.start_soon(commit, request_id)
    assert (results["a"], results["b"]) == (False, False)
    assert isinstance(results[""], OutcomeUnknown)
    assert await count(valkey_store) == 3


async def test_a_failed_group_is_settled_one_by_one(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_run(valkey_store, monkeypatch, lambda _, size: StoreRefused("ERR") if size > 1 else None)
    txs = [counting(valkey_store, request_id=str(index)) for index in range(5)]
    assert await valkey_store.commit_many(txs) == [True] * 5
    with pytest.raises(OutcomeUnknown, match="travelled along"):
        await valkey_store.commit_many([counting(valkey_store), counting(valkey_store)])
    assert await count(valkey_store) == 5


async def test_an_internal_error_concerns_one_transaction(valkey_store: Store) -> None:
    run = valkey_store.keys.run(0, "run")
    wrong = Transaction(0)
    wrong.redis("LPUSH", run, "x")
    await valkey_store.commit(counting(valkey_store))
    results: list[bool | StoreError] = []

    async def commit(tx: Transaction) -> None:
        try:
            results.append(await valkey_store.commit(tx))
        except StoreError as error:
            results.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit, counting(valkey_store))
        nursery.start_soon(commit, wrong)
        nursery.start_soon(commit, counting(valkey_store))
    assert results.count(True) == 2
    assert [type(result) for result in results if result is not True] == [StoreRefused]
    assert await count(valkey_store) == 3


async def test_a_cancelled_caller_costs_the_others_nothing(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group of both travels on; only the answer of the cancelled one is dropped."""
    started, go_on = trio.Event(), trio.Event()
    run = valkey_store.run

    async def held(script: str, keys: Sequence[str], args: Sequence[Any], **options: bool) -> Any:
        started.set()
        await go_on.wait()
        return await run(script, keys, args, **options)

    monkeypatch.setattr(valkey_store, "run", held)
    results: list[bool] = []
    scope = trio.CancelScope()

    async def impatient() -> None:
        with scope:
            await valkey_store.commit(counting(valkey_store))

    async def patient() -> None:
        results.append(await valkey_store.commit(counting(valkey_store)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(impatient)
        nursery.start_soon(patient)
        await started.wait()
        scope.cancel()
        go_on.set()
    assert scope.cancelled_caught
    assert results == [True]
    assert await count(valkey_store) == 2


def test_groups_are_bounded_and_of_one_mode() -> None:
    small = [Packed(Transaction(0), b"x")] * (2 * GROUP_TRANSACTIONS + 1)
    assert [len(group) for group in split(small)] == [GROUP_TRANSACTIONS, GROUP_TRANSACTIONS, 1]
    big = [Packed(Transaction(0), b"x" * (GROUP_BYTES * 2))] * 3
    assert [len(group) for group in split(big)] == [1, 1, 1]
    frees = Packed(Transaction(0, frees=True), b"x")
    assert [len(group) for group in split([*small[:2], frees, frees, *small[:3]])] == [2, 2, 3]
    assert split([]) == []


async def test_text_with_a_lone_surrogate_is_stored_and_the_next_commit_is_whole(
    valkey_store: Store,
) -> None:
    key = valkey_store.keys.run(0, "run")
    for value in ("a\udc80b", "c"):
        tx = Transaction(0)
        tx.hset(key, {"name": value})
        assert await valkey_store.commit(tx) is True
        stored = await valkey_store.call("HGET", key, "name")
        assert stored == value.encode(errors="surrogatepass")
