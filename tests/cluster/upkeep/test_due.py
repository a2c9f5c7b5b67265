"""What is due happens once, in time and never early, whoever does it."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest
import trio
from structlog.testing import capture_logs

from cluster.errors import StoreUnavailable
from cluster.ids import TaskKind, partition_of_run
from cluster.queues.claims import PeekReply
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.upkeep import due, setbacks
from cluster.upkeep.keeper import LONGEST_NAP_SECONDS, Keeper
from cluster.workflows.engine import StartRequest
from cluster.workflows.planning import DROPS_AT_ONCE, LeaseTimes
from tests.cluster.nodes import PartialNode, hold, open_nodes, poll_request
from tests.cluster.queues.lab import Lab
from tests.waiting import PATIENCE, eventually


async def start(node: PartialNode, commands: list[dict[str, Any]], workflow_id: str = "one") -> str:
    """Start a workflow whose first task answers with ``commands``; returns the run id."""
    started = await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id=workflow_id))
    task = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
    assert isinstance(task, WorkflowTask)
    await node.engine.complete_workflow_task("ns", task.task_id, "w", task.attempt, commands)
    return started.info.run_id


async def events(node: PartialNode, run_id: str, workflow_id: str = "one") -> list[Any]:
    page = await node.engine.history("ns", workflow_id, run_id, page_size=10_000, token=None)
    return [orjson.loads(event) for event in page.events]


async def fired(node: PartialNode, run_id: str) -> list[Any]:
    return [event for event in await events(node, run_id) if event["event_type"] == "TimerFired"]


async def has_fired(node: PartialNode, run_id: str) -> bool:
    return bool(await fired(node, run_id))


async def the_timer(store: Store) -> tuple[int, str, int]:
    """The only timer there is: partition, name, due time."""
    found = []
    for partition in range(store.keys.partitions):
        row = await store.call("ZRANGE", store.keys.timers(partition), 0, -1, "WITHSCORES")
        found += [(partition, row[i].decode(), int(float(row[i + 1]))) for i in range(0, len(row), 2)]
    (timer,) = found
    return timer


async def test_a_timer_is_never_fired_early_and_once_by_many(store: Store) -> None:
    async with open_nodes(store, 3) as nodes:
        run_id = await start(nodes[0], [{"type": "start_timer", "delay_seconds": 1}])
        partition, timer, due_ms = await the_timer(store)
        while nodes[0].clock.now_ms() < due_ms - 20:
            for node in nodes:
                await node.due.run(partition)
                await node.engine.timer_due(timer, due_ms)
            early = await fired(nodes[0], run_id)
            assert early == [] or nodes[0].clock.now_ms() >= due_ms
        with trio.fail_after(PATIENCE):
            while not await fired(nodes[0], run_id):
                async with trio.open_nursery() as nursery:
                    for node in nodes:
                        for _ in range(5):
                            nursery.start_soon(node.due.run, partition)
                            nursery.start_soon(node.engine.timer_due, timer, due_ms)
        (event,) = await fired(nodes[0], run_id)
        scheduled = next(e for e in await events(nodes[0], run_id) if e["event_type"] == "TimerScheduled")
        assert event["payload"]["fired_at"] >= scheduled["payload"]["fire_at"]
        assert [node.due.failures for node in nodes] == [0, 0, 0]
        for node in nodes:
            await node.due.run(partition)
        assert len(await fired(nodes[0], run_id)) == 1


LIMITS = [
    "start_to_close_timeout",
    "heartbeat_timeout",
    "schedule_to_start_timeout",
    "schedule_to_close_timeout",
]


@pytest.mark.parametrize("command", [*LIMITS, "start_timer"])
async def test_whatever_is_timed_has_all_of_its_time(store: Store, command: str) -> None:
    """Also when nearly a whole millisecond is cut off from the time at which it began."""
    timed: dict[str, Any] = {"type": "start_timer", "delay_seconds": 30}
    if command in LIMITS:
        timed = {"type": "schedule_activity", "activity_type": "step", command: 30}
    async with open_nodes(store, 1) as (node,):
        real, seen = node.clock.now_us, [0]

        def nearly_the_next_millisecond() -> int:
            seen.append(real() // 1000 * 1000 + 999)
            return seen[-1]

        node.clock.now_us = nearly_the_next_millisecond  # type: ignore[method-assign]
        for number in range(5):
            await start(node, [timed], f"w{number}")
            begun_us = seen[-1]
            if command in ("start_to_close_timeout", "heartbeat_timeout"):
                seconds, rest = await store.call("TIME")
                begun_us = int(seconds) * 1_000_000 + int(rest)
                assert (await node.polls.poll(poll_request())).task is not None
            partition, timer, due_ms = await the_timer(store)
            assert due_ms * 1000 >= begun_us + 30_000_000
            await store.call("ZREM", store.keys.timers(partition), timer)


async def test_a_keeper_is_in_time(store: Store) -> None:
    async with open_nodes(store, 1) as (node,), trio.open_nursery() as nursery:
        keeper = Keeper(store, node.clock, node.due, Random(1))
        await nursery.start(keeper.run)
        for partition in range(16):
            nursery.start_soon(keeper.housekeep, await hold(store, partition))
        await eventually(lambda: all(nap.scope is not None for nap in keeper._naps.values()))
        run_id = await start(node, [{"type": "start_timer", "delay_seconds": 1}])
        _, _, due_ms = await the_timer(store)
        await eventually(lambda: has_fired(node, run_id))
        assert node.clock.now_ms() - due_ms < LONGEST_NAP_SECONDS / 2 * 1000
        nursery.cancel_scope.cancel()


async def test_a_nudge_during_the_work_is_not_lost(valkey_store: Store) -> None:
    async with open_nodes(valkey_store, 1) as (node,), trio.open_nursery() as nursery:
        keeper = Keeper(valkey_store, node.clock, node.due, Random(1))
        entered, go_on, runs = trio.Event(), trio.Event(), 0
        run = node.due.run

        async def slowly(partition: int) -> object:
            nonlocal runs
            runs += 1
            report = await run(partition)
            entered.set()
            await go_on.wait()
            return report

        node.due.run = slowly  # type: ignore[method-assign,assignment]
        nursery.start_soon(keeper.housekeep, await hold(valkey_store, 3))
        await entered.wait()
        keeper.nudge(3, node.clock.now_ms() - 1)
        go_on.set()
        await eventually(lambda: runs == 2)
        nursery.cancel_scope.cancel()


async def test_a_partition_that_nobody_holds_is_helped(store: Store) -> None:
    helpers: list[Keeper] = []

    def peeked(reply: PeekReply) -> None:
        for helper in helpers:
            helper.on_peek(reply)

    async with (
        open_nodes(store, 2, peek_seconds=0.1, on_peek=peeked) as nodes,
        trio.open_nursery() as nursery,
    ):
        helpers += [Keeper(store, node.clock, node.due, Random(1)) for node in nodes]
        for helper in helpers:
            await nursery.start(helper.run)
        run_id = await start(nodes[0], [{"type": "start_timer", "delay_seconds": 1}])
        _, _, due_ms = await the_timer(store)
        await eventually(lambda: has_fired(nodes[0], run_id))
        assert nodes[0].clock.now_ms() - due_ms > 900
        assert len(await fired(nodes[0], run_id)) == 1
        await eventually(lambda: sum(helper.counters.overdue for helper in helpers) >= 1)
        nursery.cancel_scope.cancel()


async def test_a_probe_sees_a_lapsed_lease_at_once(store: Store) -> None:
    async with open_nodes(store, 2, leases=LeaseTimes(workflow_ms=100, activity_ms=100)) as nodes:
        await nodes[0].engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        task = (await nodes[0].polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
        assert isinstance(task, WorkflowTask)
        probe = poll_request("v", kind=TaskKind.WORKFLOW, timeout=0)
        assert (await nodes[1].polls.poll(probe)).task is None
        await eventually(lambda: nodes[1].clock.now_ms() > task.lease_expires_at_ms)
        again = (await nodes[1].polls.poll(probe)).task
        assert isinstance(again, WorkflowTask)
        assert (again.task_id, again.attempt, again.owner) == (task.task_id, 2, "v")


async def test_a_parked_poll_gets_what_lapsed(store: Store) -> None:
    async with open_nodes(store, 1, leases=LeaseTimes(workflow_ms=50)) as (node,):
        await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        task = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
        assert isinstance(task, WorkflowTask)
        partition = partition_of_run(task.info.run_id)
        assert partition is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.polls.poll, poll_request("v", kind=TaskKind.WORKFLOW))
            await eventually(lambda: node.polls.parked == 1)
            with trio.fail_after(PATIENCE):
                while node.polls.parked:
                    await node.due.run(partition)
                    await trio.sleep(0.01)


async def test_the_tasks_of_a_closed_run_go_in_chunks(store: Store) -> None:
    number = 3 * DROPS_AT_ONCE + 7
    lab = Lab(store)
    async with open_nodes(store, 2) as nodes:
        steps = [{"type": "schedule_activity", "activity_type": f"s{n % 3}"} for n in range(number)]
        run_id = await start(nodes[0], [*steps, {"type": "start_timer", "delay_seconds": 0}])
        partition = partition_of_run(run_id)
        assert partition is not None
        assert (await nodes[0].polls.poll(poll_request())).task is not None
        task = (await nodes[0].polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
        assert isinstance(task, WorkflowTask)
        done = [{"type": "complete_workflow"}]
        await nodes[1].engine.complete_workflow_task("ns", task.task_id, "w", task.attempt, done)
        dropped_steps = DROPS_AT_ONCE - 1  # the workflow task is one of the first
        assert len(await lab.audit(partition)) == number - dropped_steps
        assert await store.call("LLEN", store.keys.work(partition)) == 3
        probed = await nodes[1].polls.poll(poll_request(timeout=0))
        assert probed.task is None
        for chunks_left in (2, 1, 0):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(node.due.run, partition)
            assert await store.call("LLEN", store.keys.work(partition)) <= chunks_left
        assert await lab.audit(partition) == {}
        assert await store.call("EXISTS", store.keys.work(partition)) == 0


async def test_one_bad_run_holds_up_nobody(store: Store) -> None:
    async with open_nodes(store, 1) as (node,):
        run_id = await start(node, [{"type": "start_timer", "delay_seconds": 1}])
        partition, _, due_ms = await the_timer(store)
        lab = Lab(store)
        bad = await lab.new_run(partition)
        tx = Transaction(partition)
        tx.arm(f"{bad} t1", due_ms - 10)
        await store.commit(tx)
        with trio.fail_after(PATIENCE):
            while not await fired(node, run_id):
                await node.due.run(partition)
                await trio.sleep(0.02)
        assert node.due.resting == 1
        assert await lab.scores(store.keys.timers(partition)) == {f"{bad} t1": due_ms - 10}


async def test_a_store_error_of_chunked_work_is_raised_as_it_is(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(tx: Transaction) -> bool:
        raise StoreUnavailable("away")

    async with open_nodes(valkey_store, 1) as (node,):
        await valkey_store.call("RPUSH", valkey_store.keys.work(2), b'{"drop":["x"]}')
        with monkeypatch.context() as patch:
            patch.setattr(valkey_store, "commit", unavailable)
            with pytest.raises(StoreUnavailable):
                await node.due.run(2)


async def test_a_lapsed_activity_comes_back_as_the_next_attempt(store: Store) -> None:
    async with open_nodes(store, 2, leases=LeaseTimes(activity_ms=50)) as nodes:
        await start(nodes[0], [{"type": "schedule_activity", "activity_type": "step"}])
        task = (await nodes[0].polls.poll(poll_request())).task
        assert isinstance(task, ActivityTask)
        partition = partition_of_run(task.task_id.partition("-")[0])
        assert partition is not None
        await eventually(lambda: nodes[0].clock.now_ms() > task.lease_expires_at_ms)
        async with trio.open_nursery() as nursery:
            for node in nodes:
                for _ in range(3):
                    nursery.start_soon(node.due.run, partition)
        again = (await nodes[1].polls.poll(poll_request("v"))).task
        assert isinstance(again, ActivityTask)
        assert (again.task_id, again.attempt) == (task.task_id, 2)
        assert [node.due.failures for node in nodes] == [0, 0]


async def test_what_can_never_be_done_rests_and_holds_up_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More poison than one look fetches stands before a good timer."""
    monkeypatch.setattr(due, "BATCH", 3)
    monkeypatch.setattr(setbacks, "FIRST_SECONDS", 60.0)
    async with open_nodes(store, 2) as nodes:
        node = nodes[0]
        run_id = await start(node, [{"type": "start_timer", "delay_seconds": 0}])
        partition = partition_of_run(run_id) or 0
        for number in range(7):
            poison = f"{run_id} t{number}junk"
            await store.call("ZADD", store.keys.timers(partition), 1, poison)
        await store.call("ZADD", store.keys.timers(partition), 2, f"{run_id} r")

        tries = []
        with capture_logs() as logs:
            for _ in range(6):
                before = node.due.failures
                report = await node.due.run(partition)
                tries.append(node.due.failures - before)
                assert report.failed == 0

        assert sum(tries) == node.due.resting == 7
        assert tries[-1] == 0
        assert len([entry for entry in logs if entry["event"] == "due_piece_failed"]) == 7
        rows = await store.call("ZRANGE", store.keys.timers(partition), 0, -1)
        assert f"{run_id} r".encode() not in rows
        assert report.next_due_ms is not None
        assert report.next_due_ms > report.now_ms
        # What somebody removes is forgotten.
        await store.call("DEL", store.keys.timers(partition))
        await node.due.run(partition)
        assert node.due.resting == 0


async def test_chunked_work_that_fails_rests_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setbacks, "FIRST_SECONDS", 60.0)
    async with open_nodes(store, 1) as (node,):
        key = store.keys.work(3)
        child = {"ns": "ns", "workflow_id": "w", "parent_run_id": "r", "verb": "cancel"}
        await store.call("RPUSH", key, orjson.dumps({"close": [child]}))  # no reason: nobody wrote this

        first = await node.due.run(3)
        again = await node.due.run(3)

        assert node.due.failures == 1
        assert first.next_due_ms == first.now_ms
        assert again.next_due_ms is not None
        assert again.next_due_ms > again.now_ms
        assert await store.call("LLEN", key) == 1
