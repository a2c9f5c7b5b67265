"""The next step of a flow follows into the slot its predecessor frees: one round trip a step (rule C)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from cluster.errors import OutcomeUnknown
from cluster.ids import TaskKind, partition_of_run
from cluster.queues.hand_outs import UnderWay
from cluster.store.keys import QueueName
from cluster.store.store import Store
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    PARTITIONS,
    StreamLab,
    attempt,
    go_to,
    held,
    open_stream_lab,
)
from tests.store_time import next_millisecond
from tests.stream_client import Frame, StreamClient
from tests.waiting import PATIENCE, eventually

STEPS = 20


@contextmanager
def scripts_of(store: Store, monkeypatch: pytest.MonkeyPatch, *more: str) -> Iterator[Counter[str]]:
    """Counts the scripts that a store sends, by name, but for what a node does now and then by itself, unless
    it is among ``more``.
    """
    names = ("commit", "claim_steps", "flow", "admit", "discharge", *more)
    counted: Counter[str] = Counter()
    run = Store.run

    async def count(self: Store, script: str, *args: Any, **options: Any) -> Any:
        if self is store and script in names:
            counted[script] += 1
        return await run(self, script, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "run", count)
        yield counted


async def known_idle(lab: StreamLab, node: int = 0) -> None:
    """The node's memory knows that nothing waits anywhere."""
    await lab[node].hub.matcher._peek()


async def test_a_chain_of_steps_costs_one_round_trip_a_step(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        await known_idle(lab)
        with scripts_of(lab[0].store, monkeypatch) as scripts:
            for _ in range(STEPS):
                await w1.complete(task, go_to("b"))
                task = await w1.next("task")
                assert attempt(task) == (1, 0)
            assert scripts == {"commit": STEPS}
        assert (await w1.complete(task, COMPLETE))["accepted"]
    assert lab[0].hub.matcher.statistics().handed_over == 1 + STEPS


async def test_steps_of_many_slots_share_round_trips(lab: StreamLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends in one loop turn is one script, with the hand-outs in it, wherever the flows lie."""
    slots = 16
    async with lab[0].worker("w1", "F", slots=slots) as w1:
        for _ in range(slots):
            await lab[0].start("F")
        tasks = [await w1.next("task") for _ in range(slots)]
        await known_idle(lab)
        with scripts_of(lab[0].store, monkeypatch) as scripts:
            for _ in range(5):
                await w1.send(*(_output(task, go_to("b")) for task in tasks))
                tasks = [await w1.next("task") for _ in range(slots)]
            assert scripts == {"commit": 5}
        assert len({task["slot"] for task in tasks}) == slots


def _output(task: Frame, output: Any) -> Frame:
    place = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
    return {"type": "output", **place, "output": output}


async def test_a_step_without_fast_path_costs_two_round_trips(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end, and the claim of what is next in the queue."""
    async with lab[0].worker("w1", "F") as w1:
        for _ in range(STEPS + 1):
            await lab[0].start("F")
        task = await w1.next("task")
        with scripts_of(lab[0].store, monkeypatch) as scripts:
            for _ in range(STEPS):
                await w1.complete(task, COMPLETE)
                task = await w1.next("task")
            assert (scripts["commit"], scripts["flow"]) == (STEPS, 0)
            # An empty look may follow a wake that was for a task taken already.
            assert scripts["claim_steps"] <= 2 * STEPS


async def test_work_that_others_have_taken_holds_no_hand_over_up(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node remembers of other partitions may be out of date: the commit looks."""
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        await known_idle(lab)
        for partition in range(PARTITIONS):
            for step in ("b", "c"):
                remember(lab, partition, step)
        with scripts_of(lab[0].store, monkeypatch) as scripts:
            await w1.complete(task, go_to("b"))
            assert attempt(await w1.next("task")) == (1, 0)
            assert scripts == {"commit": 1}


def remember(lab: StreamLab, partition: int, step: str, ready_ms: int = 1) -> None:
    """The first node has heard of a step that nobody told it was taken."""
    (watch,) = [watch for watch in lab[0].hub.matcher._watches.values() if watch.queue.kind is TaskKind.STEP]
    watch.wake(partition, step, ready_ms)


def remember_everywhere(lab: StreamLab) -> int:
    """The first node has heard of old work under all heads it watches, all of it gone; how many heads."""
    watches = list(lab[0].hub.matcher._watches.values())
    for watch in watches:
        for partition in range(PARTITIONS):
            watch.wake(partition, "F" if watch.queue.kind != TaskKind.STEP else "b", 1)
    return len(watches) * PARTITIONS


async def test_what_others_took_costs_one_look_and_no_hand_over(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without free slots claims nothing and hears of much: neither may its steps go to the queue,
    where they would wake all nodes and make them doubt in turn, nor may its commits look for ever."""
    slots = 8
    async with lab[0].worker("w1", "F", "G", "H", "I", slots=slots) as w1, lab[1].worker("w2", "F") as w2:
        for _ in range(slots + 1):
            await lab[0].start("F")
        busy = await w2.next("task")
        tasks = [await w1.next("task") for _ in range(slots)]
        before = lab[0].hub.matcher.statistics().handed_over
        await known_idle(lab)
        wakes = lab[1].hub.matcher.statistics().wakes
        assert remember_everywhere(lab) == 20
        watches = lab[0].hub.matcher._watches.values()
        with scripts_of(lab[0].store, monkeypatch, "peek") as scripts:
            for _ in range(3):
                await w1.send(*(_output(task, go_to("b")) for task in tasks))
                tasks = [await w1.next("task") for _ in range(slots)]
                await eventually(lambda: not any(watch.live for watch in watches), PATIENCE)
            assert scripts == {"commit": 3, "peek": 1}
        assert lab[1].hub.matcher.statistics().wakes == wakes
        assert (await w2.complete(busy, COMPLETE))["accepted"]
    assert lab[0].hub.matcher.statistics().handed_over == before + 3 * slots


@pytest.mark.parametrize("known", [True, False])
async def test_work_that_still_waits_goes_first(lab: StreamLab, known: bool) -> None:
    only_a = {"name": "F", "step_types": ["a", "b"]}
    async with lab[0].worker("w1", only_a) as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        await known_idle(lab)
        waiting = [await lab[1].start("F", "b") for _ in range(PARTITIONS)]
        keys = lab[0].store.keys
        places = [keys.heads(p, QueueName(TaskKind.STEP, NAMESPACE, "F")) for p in range(PARTITIONS)]
        for key in places:
            # As if they had waited for long.
            for step in await lab[0].store.call("ZRANGE", key, 0, -1):
                await lab[0].store.call("ZADD", key, 1, step)
        if known:
            await known_idle(lab)
        else:
            for partition in range(PARTITIONS):
                remember(lab, partition, "b")
        await w1.complete(task, go_to("b"))
        following = await w1.next("task")
        assert following["task"]["flow_id"] in waiting


@pytest.fixture
async def strict(valkey_url: str, prefix: str) -> AsyncIterator[StreamLab]:
    """Whatever waits is a backlog at once."""
    async with open_stream_lab(valkey_url, prefix, sync_match_wait=0.001) as opened:
        yield opened


@pytest.mark.parametrize("flow_type", ["F", "G"])
async def test_older_work_comes_first(strict: StreamLab, flow_type: str) -> None:
    """R32, A6, and R63: of the same type or of another one, wherever it lies."""
    lab = strict
    async with lab[0].worker("w1", "F", "G") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        older = [await lab[1].start(flow_type) for _ in range(PARTITIONS)]
        for _ in range(3):  # longer than sync_match_wait
            await next_millisecond(lab[0].store)
        await known_idle(lab)
        await w1.complete(task, go_to("b"))
        seen = []
        for _ in older:
            other = await w1.next("task")
            seen.append(other["task"]["flow_id"])
            await w1.complete(other, COMPLETE)
        assert sorted(seen) == sorted(older)
        last = await w1.next("task")
        assert (last["task"]["flow_id"], last["task"]["step_type"]) == (task["task"]["flow_id"], "b")


async def test_a_step_its_worker_does_not_have_goes_to_another_one(lab: StreamLab) -> None:
    only_a = {"name": "F", "step_types": ["a"]}
    async with lab[0].worker("w1", only_a) as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        async with lab[1].worker("w2", "F") as w2:
            await known_idle(lab)
            await w1.complete(task, go_to("b"))
            assert attempt(await w2.next("task"))[0] == 1
    assert lab[0].hub.matcher.statistics().handed_over == 1, "the first step of the flow"


async def test_wait_for_that_waits_for_nothing_leads_to_execute_in_the_same_slot(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", options={"wait_for": {}})
        task = await w1.next("task")
        await known_idle(lab)
        await w1.complete(task, {})
        following = await w1.next("task")
        assert [t["task"]["method"] for t in (task, following)] == ["wait_for", "execute"]
        assert following["task"]["task_id"] == task["task"]["task_id"]
        await w1.complete(following, COMPLETE)
    assert lab[0].hub.matcher.statistics().handed_over == 2


class Commits:
    """Lets a test act between a commit that was applied and its reply."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.applied, self.go_on = trio.Event(), trio.Event()
        self.trouble: Exception | None = None
        self._run = store.run
        self._held = False
        monkeypatch.setattr(store, "run", self.run)

    async def run(self, script: str, *args: Any, **more: Any) -> Any:
        reply = await self._run(script, *args, **more)
        if script == "commit" and not self._held:
            self._held = True
            self.applied.set()
            await self.go_on.wait()
            if self.trouble is not None:
                raise self.trouble
        return reply


async def running(lab: StreamLab, worker: StreamClient) -> Frame:
    await lab[0].start("F", options={"execute": {"retry": {"maximum_attempts": 1}}})
    task = await worker.next("task")
    await known_idle(lab)
    return task


async def test_a_slot_that_closes_meanwhile_gives_the_step_back(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab[0].worker("w1", "F") as w1:
        task = await running(lab, w1)
        commits = Commits(lab[0].store, monkeypatch)
        await w1.send(_output(task, go_to("b")))
        await commits.applied.wait()
        await w1.send({"type": "half_close", "slot": task["slot"]})
        await eventually(lambda: not lab[0].hub.matcher.registered() or _closing(lab))
        commits.go_on.set()
        assert (await w1.next("confirmed"))["accepted"]
        assert (await w1.next("closed"))["reason"] == "half_closed"
        async with lab[1].worker("w2", "F") as w2:
            assert attempt(await w2.next("task")) == (1, 1)


def _closing(lab: StreamLab) -> bool:
    (connection,) = lab[0].hub._connections
    return not connection.core.gets_free(1)


async def test_a_connection_that_breaks_meanwhile_gives_the_step_back(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab[0].worker("w1", "F") as w1:
        task = await running(lab, w1)
        commits = Commits(lab[0].store, monkeypatch)
        await w1.send(_output(task, go_to("b")))
        await commits.applied.wait()
        await w1.drop()
        await eventually(lambda: not lab[0].hub.statistics().streams)
        commits.go_on.set()
        async with lab[1].worker("w2", "F") as w2:
            assert attempt(await w2.next("task")) == (1, 1)


async def test_a_node_that_may_not_hand_out_any_more_gives_the_step_back(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: the fence is looked at once more before a task is sent."""
    async with lab[0].worker("w1", "F") as w1:
        task = await running(lab, w1)
        commits = Commits(lab[0].store, monkeypatch)
        await w1.send(_output(task, go_to("b")))
        await commits.applied.wait()
        lab[0].member.acting = False
        commits.go_on.set()
        await w1.next("confirmed")
        async with lab[1].worker("w2", "F") as w2:
            assert attempt(await w2.next("task")) == (1, 1)
        assert not [frame for frame in w1.frames if frame["type"] == "task"]


async def test_a_hand_over_whose_reply_was_lost_comes_back(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the commit is asked for again and was applied, but nobody can say what it handed out."""
    async with lab[0].worker("w1", "F") as w1:
        task = await running(lab, w1)
        commits = Commits(lab[0].store, monkeypatch)
        commits.trouble = OutcomeUnknown("the reply was lost")
        await w1.send(_output(task, go_to("b")))
        await commits.applied.wait()
        commits.go_on.set()
        assert (await w1.next("confirmed"))["accepted"]
        for _ in range(2):
            await lab[0].hub.audit.look()
        following = await w1.next("task")
        assert (following["task"]["step_type"], attempt(following)) == ("b", (1, 1))
        assert (await w1.complete(following, COMPLETE))["accepted"]


async def test_the_audit_waits_for_a_hand_over_that_is_under_way(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take the step for one that reached nobody, and a second worker would get it."""
    async with lab[0].worker("w1", "F") as w1:
        task = await running(lab, w1)
        commits = Commits(lab[0].store, monkeypatch)
        await w1.send(_output(task, go_to("b")))
        await commits.applied.wait()
        async with trio.open_nursery() as nursery:

            async def look_twice() -> None:
                for _ in range(2):
                    await lab[0].hub.audit.look()

            nursery.start_soon(look_twice)
            await eventually(lambda: lab[0].hub.matcher.under_way._alone.locked())
            commits.go_on.set()
        assert attempt(await w1.next("task")) == (1, 0)
        assert lab[0].hub.statistics().repaired == 0


async def test_a_node_that_dies_after_the_commit_loses_the_step_to_the_retry_policy(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R49: it is listed among what the session has handed out, in the commit that does so."""
    soon = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
    next_step = {"decision": {"next": [{"step_type": "b", "options": soon}]}}
    async with lab[0].worker("w1", "F") as w1, lab[1].worker("w2", {"name": "F", "step_types": ["b"]}) as w2:
        task = await running(lab, w1)
        commits = Commits(lab[0].store, monkeypatch)
        await w1.send(_output(task, next_step))
        await commits.applied.wait()
        lab[0].member.acting = False
        partition = partition_of_run(task["task"]["run_id"]) or 0
        store, dead = lab[1].store, lab[0].member.incarnation
        await store.call("ZADD", store.keys.dead(partition), 1, dead)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab[1].hub.orphanage.housekeep, held(partition))
            assert attempt(await w2.next("task")) == (2, 0)
            commits.go_on.set()
            nursery.cancel_scope.cancel()


async def test_a_buried_node_hands_nothing_over(lab: StreamLab) -> None:
    """E1, in the commit itself: its result counts, the next step goes to the queue."""
    async with lab[0].worker("w1", "F") as w1:
        task = await running(lab, w1)
        partition = partition_of_run(task["task"]["run_id"]) or 0
        store = lab[0].store
        await store.call("ZADD", store.keys.dead(partition), 1, lab[0].member.incarnation)
        await w1.send(_output(task, go_to("b")))
        await eventually(partial(_has_open, lab, task["task"]["flow_id"], ("b", "r", 1)))
        assert lab[0].hub.matcher.statistics().handed_over == 1, "the first step of the flow"


async def _has_open(lab: StreamLab, flow_id: str, wanted: tuple[str, str, int]) -> bool:
    view = await lab[1].engine.describe(NAMESPACE, flow_id)
    states = [(s.step_type, view.tasks[k].state, s.attempt) for k, s in view.run.steps.items()]
    return states == [wanted]


async def test_who_looks_is_alone_and_waits_for_those_under_way() -> None:
    under_way, seen = UnderWay(), list[str]()
    await under_way.begin()
    await under_way.begin()

    async def look() -> None:
        async with under_way:
            seen.append("look")
            await trio.testing.wait_all_tasks_blocked()
            seen.append("looked")

    async def another() -> None:
        await under_way.begin()
        seen.append("begun")
        under_way.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(another)
        under_way.end()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        under_way.end()
    assert seen == ["look", "looked", "begun"]


async def test_who_gives_up_looking_holds_nobody_up() -> None:
    under_way = UnderWay()
    await under_way.begin()
    with trio.move_on_after(0):
        async with under_way:
            raise AssertionError
    with trio.fail_after(PATIENCE):
        await under_way.begin()
