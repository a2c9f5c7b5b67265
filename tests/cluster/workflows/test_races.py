"""Runs advanced by several nodes at once: no event lost or doubled, no valid answer refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson
import pytest
import trio

from cluster.errors import Refused
from cluster.ids import TaskKind, partition_of_run
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.workflows.engine import StartRequest
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.records import RunStatus
from cluster.workflows.workflow_tasks import WAITING_FOR_HISTORY
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.waiting import eventually

LEASE_MS = 400
RUNS, ROUNDS = 6, 3
STARTS = {"ActivityScheduled", "TimerScheduled"}
ENDS = {"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "TimerFired"}


@dataclass
class Race:
    """Workers that take tasks from one node and answer at another, and forget some."""

    nodes: list[PartialNode]
    random: Random
    hand_outs: Counter[tuple[str, str]] = field(default_factory=Counter)
    views: list[tuple[str, list[Any]]] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    late_refusals: int = 0

    @property
    def anyone(self) -> PartialNode:
        return self.random.choice(self.nodes)

    @property
    def over(self) -> bool:
        return len(self.finished) == RUNS

    def refused(self, task: WorkflowTask | ActivityTask, refusal: Refused) -> None:
        """Only an answer after the lease may be refused, however stale a node's memory is."""
        now_ms = self.nodes[0].clock.now_ms()
        assert now_ms >= task.lease_expires_at_ms - 5, f"{refusal.reason}: {refusal.message}"
        self.late_refusals += 1

    async def decide(self, worker: str) -> None:
        while not self.over:
            request = poll_request(worker, kind=TaskKind.WORKFLOW, timeout=0.1)
            task = (await self.anyone.polls.poll(request)).task
            if task is None:
                continue
            assert isinstance(task, WorkflowTask)
            self.hand_outs[task.task_id, str(task.attempt)] += 1
            events = [orjson.loads(event) for event in task.events]
            self.views.append((task.info.run_id, events))
            if self.random.random() < 0.1:
                continue
            await trio.sleep(self.random.choice([0, 0, 0.01]))
            try:
                await self.answer(task, events)
            except Refused as refusal:
                self.refused(task, refusal)

    async def answer(self, task: WorkflowTask, events: list[Any]) -> None:
        kinds = Counter(event["event_type"] for event in events)
        opened = sum(kinds[kind] for kind in STARTS)
        is_waiting = opened > sum(kinds[kind] for kind in ENDS)
        identity = ("ns", task.task_id, task.owner, task.attempt)
        if self.random.random() < 0.3:
            await self.anyone.engine.heartbeat_workflow_task(*identity)
        if is_waiting and self.random.random() < 0.5:
            failure = {"type": WAITING_FOR_HISTORY, "message": "not yet"}
            await self.anyone.engine.fail_workflow_task(*identity, failure)
        elif is_waiting:
            await self.anyone.engine.complete_workflow_task(*identity, [])
        elif opened < 5 * ROUNDS:
            await self.anyone.engine.complete_workflow_task(*identity, next_round(opened))
        else:
            await self.anyone.engine.complete_workflow_task(*identity, [{"type": "complete_workflow"}])
            self.finished.add(task.info.run_id)

    async def act(self, worker: str) -> None:
        while not self.over:
            task = (await self.anyone.polls.poll(poll_request(worker, timeout=0.1))).task
            if task is None:
                continue
            assert isinstance(task, ActivityTask)
            self.hand_outs[task.task_id, task.attempt_id] += 1
            if self.random.random() < 0.1:
                continue
            await trio.sleep(self.random.choice([0, 0, 0.01]))
            identity = ("ns", task.task_id, task.attempt_id, task.owner)
            try:
                if self.random.random() < 0.3:
                    beat = await self.anyone.engine.heartbeat_activity(*identity, {"at": 1})
                    assert beat["can_continue"] or beat["reason"] == "stale_attempt"
                if self.random.random() < 0.3:
                    await self.anyone.engine.fail_activity(*identity, {"message": "no"})
                else:
                    await self.anyone.engine.complete_activity(*identity, None)
            except Refused as refusal:
                self.refused(task, refusal)

    async def keep(self, node: PartialNode) -> None:
        while not self.over:
            for partition in range(16):
                await node.due.run(partition)
            await trio.sleep(0.02)

    async def watch(self, store: Store) -> None:
        """A run has at most one workflow task that is leased or ready."""
        while not self.over:
            keys = await store.call("KEYS", f"{store.keys.prefix}:*:task:*-w*")
            runs = Counter(key.decode().rpartition(":")[2].rpartition("-")[0] for key in keys)
            assert not runs or max(runs.values()) == 1
            await trio.sleep(0.02)


def next_round(opened: int) -> list[dict[str, Any]]:
    retry = {"max_attempts": 2, "backoff_seconds": [0]}
    steps: list[dict[str, Any]] = [
        {"type": "schedule_activity", "activity_type": f"step{number}", "retry_policy": retry}
        for number in range(3)
    ]
    return [*steps, {"type": "start_timer", "delay_seconds": 0}, {"type": "start_timer", "delay_seconds": 1}]


def check_history(events: list[Any]) -> None:
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert len({event["id"] for event in events}) == len(events)
    opened = Counter(e["payload"]["sequence"] for e in events if e["event_type"] in STARTS)
    ended = Counter(e["payload"]["sequence"] for e in events if e["event_type"] in ENDS)
    assert opened == ended
    assert set(opened.values()) == {1}
    assert len(opened) == 5 * ROUNDS
    assert [e["event_type"] for e in events].count("WorkflowCompleted") == 1
    assert events[-1]["event_type"] == "WorkflowCompleted"
    for event in events:
        if event["event_type"] == "TimerFired":
            (started,) = (
                e
                for e in events
                if e["event_type"] == "TimerScheduled"
                and e["payload"]["sequence"] == event["payload"]["sequence"]
            )
            assert event["payload"]["fired_at"] >= started["payload"]["fire_at"]


@pytest.mark.parametrize("seed", [1, 2])
async def test_nodes_race_on_the_same_runs(store: Store, seed: int) -> None:
    leases = LeaseTimes(workflow_ms=LEASE_MS, activity_ms=LEASE_MS)
    async with open_nodes(store, 2, leases=leases) as nodes:
        race = Race(nodes, Random(seed))
        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                for number in range(RUNS):
                    request = StartRequest("ns", "Flow", "q", workflow_id=f"flow{number}")
                    await race.anyone.engine.start(request)
                for number in range(3):
                    nursery.start_soon(race.decide, f"d{number}")
                    nursery.start_soon(race.act, f"a{number}")
                for node in nodes:
                    nursery.start_soon(race.keep, node)
                nursery.start_soon(race.watch, store)
        assert set(race.hand_outs.values()) == {1}
        assert [node.due.failures for node in nodes] == [0, 0]
        histories: dict[str, list[Any]] = {}
        for number in range(RUNS):
            view = await nodes[0].engine.describe("ns", f"flow{number}")
            assert view.run.state.status is RunStatus.COMPLETED
            run_id = view.run.info.run_id
            page = await nodes[1].engine.history("ns", f"flow{number}", run_id, page_size=10_000, token=None)
            histories[run_id] = [orjson.loads(event) for event in page.events]
            check_history(histories[run_id])
        for run_id, seen in race.views:
            assert seen == histories[run_id][: len(seen)]
        left = await store.call("KEYS", f"{store.keys.prefix}:*:task:*")
        assert left == []
        for partition in range(16):
            keys = store.keys
            for key in (keys.leases(partition), keys.timers(partition), keys.held(partition)):
                assert await store.call("EXISTS", key) == 0


async def test_a_node_with_an_old_memory_still_answers_right(valkey_store: Store) -> None:
    async with open_nodes(valkey_store, 2) as (old, new):
        await old.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        first = (await old.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
        assert isinstance(first, WorkflowTask)
        schedule = [{"type": "schedule_activity", "activity_type": "step"}]
        await new.engine.complete_workflow_task("ns", first.task_id, "w", 1, schedule)
        step = (await old.polls.poll(poll_request())).task
        assert isinstance(step, ActivityTask)
        await old.engine.complete_activity("ns", step.task_id, step.attempt_id, "w", None)
        second = (await new.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
        assert isinstance(second, WorkflowTask)
        done = [{"type": "complete_workflow"}]
        answer = await old.engine.complete_workflow_task("ns", second.task_id, "w", 1, done)
        assert answer["run_status"] == "completed"
        for node in (old, new):
            with pytest.raises(Refused) as caught:
                await node.engine.complete_workflow_task("ns", second.task_id, "w", 1, done)
            assert caught.value.reason == "run_closed"
            late = await node.engine.complete_activity("ns", step.task_id, step.attempt_id, "w", None)
            assert late["outcome"] == "completed"


@pytest.mark.parametrize("what", ["an activity ends", "a timer fires"])
async def test_history_is_frozen_also_for_who_takes_the_task_just_now(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The workflow task is handed out between the decision about an event and its commit."""
    async with open_nodes(store, 2) as (node, other):
        started = await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        run_id = started.info.run_id
        first = await take_workflow_task(node)
        step: dict[str, Any] = {"type": "schedule_activity", "activity_type": "step"}
        opening = [step, step, {"type": "start_timer", "delay_seconds": 1}]
        await node.engine.complete_workflow_task("ns", first.task_id, "w", 1, opening)
        steps = [(await node.polls.poll(poll_request())).task for _ in range(2)]
        ended = [task for task in steps if isinstance(task, ActivityTask)]
        await node.engine.complete_activity("ns", ended[0].task_id, ended[0].attempt_id, "w", None)
        taken: list[WorkflowTask] = []
        commit = store.commit

        async def commit_late(tx: Transaction) -> bool:
            if not taken:
                taken.append(await take_workflow_task(other))
            return await commit(tx)

        if what == "a timer fires":
            key = store.keys.timers(partition_of_run(run_id) or 0)
            timer, due_ms = (await store.call("ZRANGE", key, 0, 0, "WITHSCORES"))[:2]
            await eventually(lambda: node.clock.now_ms() > float(due_ms))
        with monkeypatch.context() as patch:
            patch.setattr(store, "commit", commit_late)
            if what == "a timer fires":
                await node.engine.timer_due(timer.decode(), int(float(due_ms)))
            else:
                await node.engine.complete_activity("ns", ended[1].task_id, ended[1].attempt_id, "w", None)
        (second,) = taken
        page = await node.engine.history("ns", "one", run_id, page_size=100, token=None)
        assert page.events == second.events
        failure = {"type": WAITING_FOR_HISTORY, "message": "not yet"}
        await other.engine.fail_workflow_task("ns", second.task_id, "w", 1, failure)
        third = await take_workflow_task(node)
        assert third.events[: len(second.events)] == second.events
        assert len(third.events) > len(second.events)


async def take_workflow_task(node: PartialNode) -> WorkflowTask:
    task = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW, timeout=5.0))).task
    assert isinstance(task, WorkflowTask)
    return task


async def test_two_starts_of_one_workflow_make_one_run(store: Store) -> None:
    outcomes: list[str] = []
    async with open_nodes(store, 2) as nodes:

        async def start(node: PartialNode, policy: str) -> None:
            request = StartRequest("ns", "Flow", "q", workflow_id="one", duplicate_policy=policy)
            try:
                outcomes.append((await node.engine.start(request)).outcome)
            except Refused as refusal:
                outcomes.append(refusal.reason)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                policy = ("fail", "use-existing")[number % 2]
                nursery.start_soon(start, nodes[number // 10], policy)
        counted = Counter(outcomes)
        assert counted["started_new"] == 1
        assert sum(counted.values()) == 20
        assert set(counted) <= {"started_new", "returned_existing_active", "duplicate_not_allowed"}
        page = await nodes[0].engine.list_runs(
            "ns", workflow_type=None, bucket=None, query=None, page_size=50, token=None
        )
        assert len(page.runs) == 1
