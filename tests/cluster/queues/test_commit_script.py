"""The verbs and conditions of ``commit.lua``, and that heads, leases and records stay exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.errors import ConditionFailed
from cluster.store.transaction import MAX_BYTES, MAX_OPERATIONS, Transaction, TransactionTooLarge
from tests.cluster.queues.lab import LEASE_MS, Lab, queue_name
from tests.store_time import store_ms
from tests.waiting import eventually

# -- verbs ----------------------------------------------------------------------------------------


async def test_enqueue_makes_record_entry_and_head(lab: Lab) -> None:
    first = await lab.enqueue()
    await lab.enqueue()
    tasks = await lab.audit()
    assert {task["s"] for task in tasks.values()} == {"r"}
    heads = await lab.scores(lab.store.keys.heads(0, queue_name()))
    assert heads == {"t": int(tasks[first]["at"])}


async def test_claim_leases_the_oldest(lab: Lab) -> None:
    first, second = await lab.enqueue(), await lab.enqueue()
    claim = await lab.claim(token="tok", owner="worker")
    assert claim is not None
    assert (claim.task_id, claim.attempt, claim.delivery) == (first, 1, 0)
    assert claim.expires_at_ms - claim.leased_at_ms == LEASE_MS
    tasks = await lab.audit()
    assert (tasks[first]["o"], tasks[first]["k"]) == ("worker", "tok")
    assert tasks[second]["s"] == "r"


async def test_requeue_keeps_the_old_place(lab: Lab) -> None:
    first, second = await lab.enqueue(), await lab.enqueue()
    claim = await lab.claim()
    assert claim is not None
    await lab.requeue(claim)
    tasks = await lab.audit()
    assert (tasks[first]["n"], tasks[first]["d"]) == ("1", "1")
    assert not {"o", "k", "x", "la", "c"} & set(tasks[first])
    assert await lab.drain() == [first, second]
    await lab.audit()


async def test_requeue_of_what_was_returned_before(lab: Lab) -> None:
    task = await lab.enqueue()
    for delivery in range(4):
        claim = await lab.claim()
        assert claim is not None
        assert (claim.task_id, claim.delivery) == (task, delivery)
        await lab.requeue(claim)
        await lab.audit()
    await lab.drop(task)
    assert await lab.audit() == {}


async def test_requeue_of_a_task_that_is_not_leased_does_nothing(lab: Lab) -> None:
    task = await lab.enqueue()
    before = await lab.audit()
    tx = Transaction(0)
    tx.requeue(task, 7, 7)
    tx.requeue("nobody", 1, 1)
    await lab.store.commit(tx)
    assert await lab.audit() == before


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("returned", [False, True])
async def test_drop_in_every_state(lab: Lab, leased: bool, returned: bool) -> None:
    task, other = await lab.enqueue(timer="x a1"), await lab.enqueue()
    if returned:
        claim = await lab.claim()
        assert claim is not None
        await lab.requeue(claim)
    if leased:
        claim = await lab.claim()
        assert claim is not None
        assert claim.task_id == task
    await lab.drop(task)
    await lab.drop(task)
    assert set(await lab.audit()) == {other}
    assert await lab.drain() == [other]
    await lab.audit()


async def test_dropping_the_middle_keeps_the_head(lab: Lab) -> None:
    tasks = [await lab.enqueue() for _ in range(3)]
    await lab.drop(tasks[1])
    await lab.audit()
    assert await lab.drain() == [tasks[0], tasks[2]]


async def test_extend_moves_the_lease(lab: Lab) -> None:
    task = await lab.enqueue(lease_ms=1_000)
    claim = await lab.claim()
    assert claim is not None
    await lab.extend(task, 500_000)
    record = (await lab.audit())[task]
    assert int(record["x"]) >= claim.leased_at_ms + 500_000
    assert int(record["hb"]) >= claim.leased_at_ms


async def test_timers_are_armed_and_disarmed(lab: Lab) -> None:
    timers = lab.store.keys.timers(0)
    tx = Transaction(0)
    tx.arm("late", 2_000_000_000_000)
    tx.arm("early", 1_900_000_000_000)
    tx.arm("gone", 1_900_000_000_001)
    tx.disarm("gone")
    tx.disarm("never")
    await lab.store.commit(tx)
    assert await lab.scores(timers) == {"early": 1_900_000_000_000, "late": 2_000_000_000_000}


async def test_a_token_names_the_newest_task_of_its_poll(lab: Lab) -> None:
    first, second = await lab.enqueue(), await lab.enqueue()
    for _ in range(2):
        assert await lab.claim(token="same")
    await lab.drop(first)
    assert await lab.hash(lab.store.keys.held(0)) == {"same": second}
    await lab.drop(second)
    await lab.audit()


async def test_a_drained_queue_leaves_only_its_stream(lab: Lab) -> None:
    for task in [await lab.enqueue() for _ in range(3)]:
        claim = await lab.claim()
        assert claim is not None
        await lab.drop(task)
    left = {name for name in await lab.keys() if not name.startswith(("run:", "rate:"))}
    name = queue_name()
    index = {f"nq:{name.namespace}", f"ty:{name.encode().rpartition(':')[0]}"}
    assert left == {f"q:{name.encode()}:t", "cur", "queues", "gen"} | index


# -- wakes (W2) -----------------------------------------------------------------------------------


async def test_only_a_new_or_older_head_wakes(lab: Lab) -> None:
    heard: list[bytes] = []
    channel = lab.store.keys.wake_channel(queue_name())
    lab.store.on_message(channel, lambda _, message: heard.append(message))
    await lab.store.subscribe(channel)
    first, second = await lab.enqueue(), await lab.enqueue()
    tasks = await lab.audit()
    claims = [await lab.claim(), await lab.claim()]
    assert all(claims)
    for claim in reversed(claims):
        assert claim is not None
        await lab.requeue(claim)
    await lab.enqueue(partition=1)
    newest = (await lab.scores(lab.store.keys.heads(1, queue_name())))["t"]
    expected = [f"00 t {tasks[first]['at']}", f"00 t {tasks[second]['at']}"]
    if tasks[first]["at"] != tasks[second]["at"]:
        expected.append(f"00 t {tasks[first]['at']}")
    expected.append(f"01 t {newest}")
    await eventually(lambda: len(heard) >= len(expected))
    assert [message.decode() for message in heard] == expected


async def test_only_an_earliest_timer_is_told(lab: Lab) -> None:
    heard: list[bytes] = []
    channel = lab.store.keys.due_channel()
    lab.store.on_message(channel, lambda _, message: heard.append(message))
    await lab.store.subscribe(channel)
    for name, due in (("a", 3_000), ("b", 4_000), ("c", 2_000), ("d", 1_000)):
        tx = Transaction(5)
        tx.arm(name, due)
        await lab.store.commit(tx)
    await eventually(lambda: len(heard) == 3)
    assert heard == [b"05 3000", b"05 2000", b"05 1000"]


# -- conditions -----------------------------------------------------------------------------------

Conditions = Callable[[Transaction, str], None]

HOLDING: dict[str, Conditions] = {
    "equal": lambda tx, task: tx.expect_equal("{key}", "f", 1),
    "absent": lambda tx, task: tx.expect_absent("{none}"),
    "task": lambda tx, task: tx.expect_task(task, "l", 1, 0, "w"),
    "task, any delivery and owner": lambda tx, task: tx.expect_task(task, "l", 1, None),
    "state": lambda tx, task: tx.expect_task_state(task, "l"),
    "no record": lambda tx, task: tx.expect_task_state("nobody", ""),
    "unlapsed": lambda tx, task: tx.expect_unlapsed(task),
    "due": lambda tx, task: tx.expect_due("past", 1_000),
    "lease": lambda tx, task: tx.expect_lease("owner", "nonce"),
}
FAILING: dict[str, Conditions] = {
    "other value": lambda tx, task: tx.expect_equal("{key}", "f", 2),
    "no such field": lambda tx, task: tx.expect_equal("{key}", "g", ""),
    "no such key": lambda tx, task: tx.expect_equal("{none}", "f", 1),
    "present": lambda tx, task: tx.expect_absent("{key}"),
    "other state": lambda tx, task: tx.expect_task(task, "r", 1, 0, "w"),
    "other attempt": lambda tx, task: tx.expect_task(task, "l", 2, 0, "w"),
    "other delivery": lambda tx, task: tx.expect_task(task, "l", 1, 1, "w"),
    "other owner": lambda tx, task: tx.expect_task(task, "l", 1, 0, "v"),
    "no task": lambda tx, task: tx.expect_task("nobody", "l", 1, None),
    "record": lambda tx, task: tx.expect_task_state(task, ""),
    "state of nothing": lambda tx, task: tx.expect_task_state("nobody", "r"),
    "not lapsed yet": lambda tx, task: tx.expect_lapsed(task),
    "lapse of nothing": lambda tx, task: tx.expect_lapsed("nobody"),
    "unlapse of nothing": lambda tx, task: tx.expect_unlapsed("nobody"),
    "timer moved": lambda tx, task: tx.expect_due("past", 999),
    "timer to come": lambda tx, task: tx.expect_due("future", 9_000_000_000_000),
    "no timer": lambda tx, task: tx.expect_due("none", 1_000),
    "other node": lambda tx, task: tx.expect_lease("other", "nonce"),
    "other tenure": lambda tx, task: tx.expect_lease("owner", "other"),
}


async def conditional(lab: Lab, conditions: Conditions, *, until_ms: int = 0) -> Transaction:
    """A transaction that sets a mark, for a partition with one leased task and two timers."""
    keys = lab.store.keys
    task = await lab.enqueue()
    assert await lab.claim()
    await lab.store.call("HSET", f"{keys.base(0)}:key", "f", 1)
    await lab.store.call("ZADD", keys.timers(0), 1_000, "past", 9_000_000_000_000, "future")
    until_ms = until_ms or await store_ms(lab.store) + 60_000
    await lab.store.call("HSET", keys.lease(0), "owner", "owner", "nonce", "nonce", "until", until_ms)
    tx = Transaction(0)
    conditions(tx, task)
    for condition in tx.conditions:
        if condition[0] in ("eq", "absent"):
            condition[1] = f"{keys.base(0)}:{condition[1].strip('{}')}"
    tx.redis("SET", f"{keys.base(0)}:mark", 1)
    tx.requeue(task, 1, 1)
    return tx


@pytest.mark.parametrize("name", HOLDING)
async def test_a_condition_holds(lab: Lab, name: str) -> None:
    tx = await conditional(lab, HOLDING[name])
    assert await lab.store.commit(tx) is True
    assert "mark" in await lab.keys()
    await lab.audit()


@pytest.mark.parametrize("name", FAILING)
async def test_a_condition_fails_and_nothing_is_written(lab: Lab, name: str) -> None:
    def conditions(tx: Transaction, task: str) -> None:
        tx.expect_task_state(task, "l")
        FAILING[name](tx, task)

    tx = await conditional(lab, conditions)
    before = await lab.keys(), await lab.audit()
    with pytest.raises(ConditionFailed) as caught:
        await lab.store.commit(tx)
    assert caught.value.index == 1
    assert (await lab.keys(), await lab.audit()) == before


async def test_a_lapsed_lease_is_lapsed_for_both_conditions(lab: Lab) -> None:
    task = await lab.enqueue(lease_ms=0)
    assert await lab.claim()
    tx = Transaction(0)
    tx.expect_lapsed(task)
    assert await lab.store.commit(tx) is True
    tx = Transaction(0)
    tx.expect_unlapsed(task)
    with pytest.raises(ConditionFailed):
        await lab.store.commit(tx)


async def test_an_expired_partition_lease_holds_for_nobody(lab: Lab) -> None:
    tx = await conditional(lab, lambda tx, task: tx.expect_lease("owner", "nonce"), until_ms=1)
    with pytest.raises(ConditionFailed):
        await lab.store.commit(tx)


# -- request ids (G1) -----------------------------------------------------------------------------


async def test_the_last_sixteen_request_ids_are_remembered(lab: Lab) -> None:
    run = lab.store.keys.run(0, "run")

    async def commit(number: int) -> bool:
        tx = Transaction(0, ring=run, request_id=f"{number:016x}")
        tx.redis("HINCRBY", run, "count", 1)
        return await lab.store.commit(tx)

    for number in range(16):
        assert await commit(number) is True
    for number in range(16):
        assert await commit(number) is False
    assert await commit(16) is True
    assert await commit(0) is True
    assert await commit(2) is False
    assert await lab.store.call("HGET", run, "count") == b"18"
    assert len((await lab.hash(run))["rids"]) == 16 * 17


async def test_a_known_request_id_is_answered_without_looking_at_conditions(lab: Lab) -> None:
    run = lab.store.keys.run(0, "run")
    tx = Transaction(0, ring=run, request_id="0" * 16)
    tx.expect_absent(run)
    tx.hset(run, {"v": 1})
    assert await lab.store.commit(tx) is True
    assert await lab.store.commit(tx) is False


async def test_a_refused_request_id_is_not_remembered(lab: Lab) -> None:
    run = lab.store.keys.run(0, "run")
    tx = Transaction(0, ring=run, request_id="1" * 16)
    tx.expect_equal(run, "v", 1)
    with pytest.raises(ConditionFailed):
        await lab.store.commit(tx)
    await lab.store.call("HSET", run, "v", 1)
    assert await lab.store.commit(tx) is True


# -- bounds (A4) ----------------------------------------------------------------------------------


async def test_a_transaction_that_is_too_large_is_not_sent(lab: Lab) -> None:
    many = Transaction(0)
    for _ in range(MAX_OPERATIONS + 1):
        many.disarm("x")
    big = Transaction(0)
    big.redis("SET", f"{lab.store.keys.base(0)}:big", b"x" * MAX_BYTES)
    before = lab.store.statistics().commits
    for tx in (many, big):
        with pytest.raises(TransactionTooLarge):
            await lab.store.commit(tx)
    assert lab.store.statistics().commits == before
    assert await lab.keys() == set()


async def test_the_largest_transaction_passes(lab: Lab) -> None:
    key = f"{lab.store.keys.base(0)}:list"
    tx = Transaction(0)
    tx.append(key, [b"x" * 100] * 20_000)
    tx.hset(f"{key}2", {f"f{number}": "x" * 100 for number in range(20_000)})
    while len(tx.operations) < MAX_OPERATIONS:
        tx.disarm("x")
    assert await lab.store.commit(tx) is True
    assert await lab.store.call("LLEN", key) == 20_000
    assert await lab.store.call("HLEN", f"{key}2") == 20_000
