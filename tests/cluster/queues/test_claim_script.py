"""``claim.lua``: order, types, markers, repair on the way, leases and their timers."""

from __future__ import annotations

import pytest

from cluster.errors import ConditionFailed, Fenced
from cluster.ids import TaskKind
from cluster.queues import claims
from cluster.queues.claims import ClaimWaiter
from cluster.store.keys import encode
from cluster.store.transaction import Transaction
from tests.cluster.queues.lab import Lab, queue_name
from tests.waiting import eventually

PLAIN, BUILD = queue_name(), queue_name(marker="b1")


async def age(lab: Lab, task_id: str, ready_ms: int, *, type_name: str = "t", marker: str = "") -> None:
    """Make a returned task look ready since ``ready_ms``, as if it had been queued then."""
    partition = await find(lab, task_id)
    keys, queue = lab.store.keys, queue_name(marker=marker)
    claim = await lab.claim(type_name, partitions=[partition], queues=[queue])
    assert claim is not None
    assert claim.task_id == task_id
    await lab.store.call("HSET", keys.task(partition, task_id), "at", ready_ms)
    await lab.requeue(claim)


async def find(lab: Lab, task_id: str) -> int:
    for partition in range(lab.store.keys.partitions):
        if await lab.record(task_id, partition):
            return partition
    raise AssertionError(f"{task_id} is gone")


# -- order ----------------------------------------------------------------------------------------


async def test_oldest_first_over_partitions_types_markers_and_structures(lab: Lab) -> None:
    expected: list[tuple[int, str]] = []
    places = [(p, t, m) for p in (0, 3, 7) for t in ("x", "y z") for m in ("", "b1")]
    lab.random.shuffle(places)
    for number, (partition, type_name, marker) in enumerate(places):
        queue = queue_name(marker=marker)
        old = await lab.enqueue(type_name, partition=partition, queue=queue)
        ready_ms = 1_000_000 + 7 * ((number * 5) % len(places))
        await age(lab, old, ready_ms, type_name=type_name, marker=marker)
        expected.append((ready_ms, old))
        new = await lab.enqueue(type_name, partition=partition, queue=queue)
        expected.append((int((await lab.record(new, partition))["at"]), new))
    found = await lab.drain(partitions=[7, 0, 3], queues=[PLAIN, BUILD])
    times = {task: ready_ms for ready_ms, task in expected}
    assert sorted(found) == sorted(times)
    assert [times[task] for task in found] == sorted(times.values())
    for partition in (0, 3, 7):
        await lab.audit(partition)


async def test_one_claim_serves_many_waiters_in_order(lab: Lab) -> None:
    tasks = [await lab.enqueue() for _ in range(5)]
    waiters = [ClaimWaiter("w", f"k{number}", frozenset()) for number in range(4)]
    reply = await lab.ask(waiters)
    assert [claim.task_id for claim in reply.claims] == tasks[:4]
    assert [claim.waiter for claim in reply.claims] == [0, 1, 2, 3]
    left = (await lab.record(tasks[4]))["at"]
    assert [heads.ready_ms for heads in reply.heads] == [{"t": int(left)}]
    assert reply.heads[0].complete
    await lab.audit()


async def test_a_type_without_workers_blocks_nobody(lab: Lab) -> None:
    for number in range(100):
        await lab.enqueue(f"nobody{number}")
    wanted = await lab.enqueue("wanted")
    claim = await lab.claim("wanted", "other")
    assert claim is not None
    assert claim.task_id == wanted
    reply = await lab.ask([ClaimWaiter("w", "k", frozenset({"wanted", "other"}))])
    assert reply.claims == []
    heads = reply.heads[0]
    assert not heads.complete
    assert heads.ready_ms["wanted"] is heads.ready_ms["other"] is None
    assert len(await lab.drain()) == 100


async def test_oldest_first_with_more_types_than_one_look_shows(lab: Lab) -> None:
    tasks = [await lab.enqueue(f"t{number}") for number in range(70)]
    later = [await lab.enqueue(f"t{number}") for number in range(10)]
    waiters = [ClaimWaiter("w", f"k{number}", frozenset()) for number in range(80)]
    reply = await lab.ask(waiters)
    found = [claim.task_id for claim in reply.claims]
    times = {task: int((await lab.record(task))["at"]) for task in tasks + later}
    assert [times[task] for task in found] == sorted(times.values())


async def test_waiters_get_only_tasks_of_their_markers(lab: Lab) -> None:
    stamped = await lab.enqueue(queue=BUILD)
    plain = await lab.enqueue()
    unversioned = ClaimWaiter("old", "k1", frozenset(), ("",))
    versioned = ClaimWaiter("new", "k2", frozenset(), ("", "b1"))
    reply = await lab.ask([unversioned, unversioned, versioned], queues=[PLAIN, BUILD])
    assert {(claim.waiter, claim.task_id) for claim in reply.claims} == {(0, plain), (2, stamped)}


async def test_kinds_namespaces_and_queues_are_apart(lab: Lab) -> None:
    names = [
        queue_name("a:b"),
        queue_name("a"),
        queue_name("a", marker="b"),
        queue_name("a", kind=TaskKind.WORKFLOW),
    ]
    tasks = {name.encode(): await lab.enqueue(queue=name) for name in names}
    for name in names:
        waiter = ClaimWaiter("w", f"k{name.encode()}", frozenset(), (name.marker,))
        reply = await lab.ask([waiter], queues=[name])
        assert [claim.task_id for claim in reply.claims] == [tasks[name.encode()]]
    await lab.audit()


async def test_type_names_of_every_shape(lab: Lab) -> None:
    names = ["", "a:b", "{x}", "ä*?[]\\", "with space", "%41"]
    tasks = {name: await lab.enqueue(name) for name in names}
    for name in names:
        claim = await lab.claim(name)
        assert claim is not None
        assert claim.task_id == tasks[name]
    await lab.audit()


# -- repair on the way ----------------------------------------------------------------------------


async def test_dead_entries_are_passed_in_bounded_steps(lab: Lab) -> None:
    dead = [await lab.enqueue() for _ in range(20)]
    alive = await lab.enqueue()
    for task in dead:
        await lab.store.call("DEL", lab.store.keys.task(0, task))
    searches = 0
    while (claim := await lab.claim()) is None:
        searches += 1
        assert searches < 4
    assert claim.task_id == alive
    assert searches == 2
    await lab.audit()


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("gone", [False, True])
async def test_tasks_of_closed_runs_are_dropped(lab: Lab, returned: bool, gone: bool) -> None:
    run_id = await lab.new_run()
    task = await lab.enqueue(run_id=run_id)
    if returned:
        claim = await lab.claim()
        assert claim is not None
        await lab.requeue(claim)
    alive = await lab.enqueue()
    if gone:
        await lab.store.call("DEL", lab.store.keys.run(0, run_id))
    else:
        await lab.store.call("HSET", lab.store.keys.run(0, run_id), "c", "completed")
    claim = await lab.claim()
    assert claim is not None
    assert claim.task_id == alive
    assert task not in await lab.audit()


async def test_a_lost_consumer_group_starts_over_without_a_second_hand_out(lab: Lab) -> None:
    stream = lab.store.keys.stream(0, PLAIN, "t")
    tasks = [await lab.enqueue() for _ in range(30)]
    taken = [await lab.claim() for _ in range(12)]
    assert [claim and claim.task_id for claim in taken] == tasks[:12]
    await lab.store.call("XGROUP", "DESTROY", stream, "g")
    assert await lab.drain() == tasks[12:]
    await lab.audit()
    for task in tasks:
        await lab.drop(task)
    assert await lab.audit() == {}


async def test_a_lost_cursor_is_found_again(lab: Lab) -> None:
    tasks = [await lab.enqueue() for _ in range(5)]
    assert await lab.claim()
    await lab.store.call("DEL", lab.store.keys.cursors(0))
    assert await lab.drain() == tasks[1:]
    await lab.audit()


async def test_a_lost_cursor_of_a_queue_with_nothing_left(lab: Lab) -> None:
    task = await lab.enqueue()
    assert await lab.claim()
    heads = lab.store.keys.heads(0, PLAIN)
    await lab.store.call("DEL", lab.store.keys.cursors(0))
    await lab.store.call("ZADD", heads, 1, "t")
    assert await lab.claim() is None
    await lab.audit()
    await lab.drop(task)


async def test_a_head_without_anything_behind_it_goes(lab: Lab) -> None:
    await lab.store.call("ZADD", lab.store.keys.heads(0, PLAIN), 1, "ghost")
    assert await lab.claim() is None
    assert await lab.keys() == {"gen"}


async def test_a_lost_stream_costs_its_tasks_only(lab: Lab) -> None:
    await lab.enqueue("lost")
    kept = await lab.enqueue("kept")
    await lab.store.call("DEL", lab.store.keys.stream(0, PLAIN, "lost"))
    claim = await lab.claim()
    assert claim is not None
    assert claim.task_id == kept


# -- fences and leases ----------------------------------------------------------------------------


async def test_a_buried_session_gets_nothing(lab: Lab) -> None:
    await lab.enqueue(partition=2)
    await lab.store.call("ZADD", lab.store.keys.dead(2), 1, lab.session)
    before = await lab.audit(2)
    with pytest.raises(Fenced):
        await lab.claim(partitions=[0, 2])
    assert await lab.audit(2) == before
    lab.session = "node~2"
    assert await lab.claim(partitions=[0, 2])


async def test_the_earliest_lease_is_told_per_partition(lab: Lab) -> None:
    await lab.enqueue(partition=1, lease_ms=5_000)
    await lab.enqueue(partition=1, lease_ms=1_000)
    claims_made = [await lab.claim(partitions=[0, 1]) for _ in range(2)]
    claim = claims_made[-1]
    assert claim is not None
    reply = await lab.ask([], partitions=[0, 1])
    assert reply.lease_due_ms == {0: claims.NO_DUE, 1: claim.expires_at_ms}


async def test_held_tasks_are_found_again(lab: Lab) -> None:
    task = await lab.enqueue(partition=4)
    first = await lab.claim(token="k", partitions=[4])
    assert first is not None
    again = ClaimWaiter("w", "k", frozenset(), held_only=True)
    reply = await lab.ask([again], partitions=[0, 4])
    (claim,) = reply.claims
    assert claim.repeated
    assert (claim.task_id, claim.attempt, claim.delivery) == (task, 1, 0)
    assert (claim.leased_at_ms, claim.expires_at_ms) == (first.leased_at_ms, first.expires_at_ms)
    other_owner = ClaimWaiter("v", "k", frozenset(), held_only=True)
    assert (await lab.ask([other_owner], partitions=[0, 4])).claims == []
    await lab.audit(4)


async def test_who_asks_for_held_tasks_gets_nothing_else(lab: Lab) -> None:
    await lab.enqueue()
    reply = await lab.ask([ClaimWaiter("w", "k", frozenset(), held_only=True)])
    assert reply.claims == []
    assert list(reply.heads[0].ready_ms) == ["t"]


async def test_a_lapsed_lease_is_not_found_again(lab: Lab) -> None:
    await lab.enqueue(lease_ms=0)
    assert await lab.claim(token="k")
    assert (await lab.ask([ClaimWaiter("w", "k", frozenset(), held_only=True)])).claims == []


async def test_only_the_last_claim_under_a_token_can_give_back(lab: Lab) -> None:
    task = await lab.enqueue()
    first = await lab.claim(token="k")
    assert first is not None
    reply = await lab.ask([ClaimWaiter("w", "k", frozenset(), held_only=True)])
    (second,) = reply.claims
    with pytest.raises(ConditionFailed):
        await claims.give_back(lab.store, first, "w")
    assert (await lab.audit())[task]["s"] == "l"
    await claims.give_back(lab.store, second, "w")
    with pytest.raises(ConditionFailed):
        await claims.give_back(lab.store, second, "w")
    record = (await lab.audit())[task]
    assert (record["s"], record["n"], record["d"]) == ("r", "1", "1")


async def test_a_workflow_task_comes_with_its_run_and_history(lab: Lab) -> None:
    queue = queue_name(kind=TaskKind.WORKFLOW)
    run_id = await lab.new_run()
    await lab.enqueue(queue=queue, run_id=run_id)
    history = lab.store.keys.history(0, run_id)
    await lab.store.call("RPUSH", history, *(f"event{number}" for number in range(150)))
    claim = await lab.claim(queues=[queue])
    assert claim is not None
    version, info, state, length, events = claim.extra
    assert (version, info, state, length) == (b"1", b"i", b"s", 150)
    assert events == [f"event{number}".encode() for number in range(100)]


# -- timers of tasks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "after_ms", "cap_in_ms", "due_in_ms"),
    [
        (False, 0, 0, None),
        (True, 0, 0, None),
        (False, 30_000, 0, 30_001),  # the time of the hand-out is cut off
        (True, 30_000, 0, 30_001),
        (True, 30_000, 9_000, 9_000),
        (True, 30_000, 90_000, 30_001),
        (True, 0, 9_000, 9_000),
    ],
)
async def test_a_hand_out_sets_the_timer_and_a_return_restores_it(
    lab: Lab, waiting: bool, after_ms: int, cap_in_ms: int, due_in_ms: int | None
) -> None:
    timers = lab.store.keys.timers(0)
    start_ms = (await lab.ask([])).now_ms
    cap_ms = start_ms + cap_in_ms if cap_in_ms else 0
    before = {"x a1": start_ms + 5_000} if waiting else {}
    task = await lab.enqueue(timer="x a1", timer_after_ms=after_ms, timer_cap_ms=cap_ms)
    if waiting:
        tx = Transaction(0)
        tx.arm("x a1", before["x a1"])
        await lab.store.commit(tx)
    claim = await lab.claim()
    assert claim is not None
    if due_in_ms is None:
        assert await lab.scores(timers) == {}
    else:
        base_ms = start_ms if due_in_ms == cap_in_ms else claim.leased_at_ms
        assert await lab.scores(timers) == {"x a1": base_ms + due_in_ms}
    await lab.requeue(claim)
    assert await lab.scores(timers) == before
    assert await lab.claim()
    await lab.drop(task)
    assert await lab.scores(timers) == {}


# -- peek -----------------------------------------------------------------------------------------


async def test_peek_shows_heads_and_what_is_due(lab: Lab) -> None:
    keys = lab.store.keys
    await lab.enqueue("ä", partition=1, lease_ms=1_000)
    claim = await lab.claim(partitions=[1])
    assert claim is not None
    second = await lab.enqueue("ä", partition=1)
    ready_ms = int((await lab.record(second, 1))["at"])
    await lab.store.call("ZADD", keys.timers(2), 77, "x")
    await lab.store.call("RPUSH", keys.work(2), "{}")
    reply = await claims.peek(lab.store, [0, 1, 2], [PLAIN, BUILD])
    assert reply.due == {
        0: claims.PartitionDue(claims.NO_DUE, claims.NO_DUE, 0),
        1: claims.PartitionDue(claims.NO_DUE, claim.expires_at_ms, 0),
        2: claims.PartitionDue(77, claims.NO_DUE, 1),
    }
    found = {(heads.partition, heads.queue): heads.ready_ms for heads in reply.heads}
    assert found == {(1, PLAIN): {encode("ä"): ready_ms}}
    assert reply.heads[0].complete


async def test_peek_says_when_it_does_not_show_everything(lab: Lab) -> None:
    for number in range(64):
        await lab.enqueue(f"t{number}")
    (heads,) = (await claims.peek(lab.store, [0], [PLAIN])).heads
    assert len(heads.ready_ms) == 64
    assert not heads.complete


# -- polls that were sent before ------------------------------------------------------------------


async def test_a_claim_notes_that_a_poll_was_sent(lab: Lab) -> None:
    tasks = [await lab.enqueue() for _ in range(3)]
    first = await lab.ask([ClaimWaiter("w", "k", frozenset(), note_ms=60_000)])
    assert [claim.task_id for claim in first.claims] == tasks[:1]
    assert first.sent_before == ()
    assert 0 < await lab.store.call("PTTL", lab.store.keys.poll("k")) <= 60_000
    heard: list[bytes] = []
    channel = lab.store.keys.changed_channel()
    lab.store.on_message(channel, lambda _, message: heard.append(message))
    await lab.store.subscribe(channel)
    again = [ClaimWaiter("w", token, frozenset(), note_ms=60_000) for token in ("k", "other")]
    reply = await lab.ask(again)
    assert [(claim.waiter, claim.task_id) for claim in reply.claims] == [(1, tasks[1])]
    assert reply.sent_before == (0,)
    await eventually(lambda: heard == [f"poll k {lab.session}".encode()])
    await lab.audit()


async def test_without_a_note_nothing_is_kept_of_a_poll(lab: Lab) -> None:
    assert await lab.claim(token="k") is None
    assert await lab.store.call("EXISTS", lab.store.keys.poll("k")) == 0
    assert (await lab.ask([ClaimWaiter("w", "k", frozenset())])).sent_before == ()
