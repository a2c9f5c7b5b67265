"""The first step of a flow goes into a free slot of its node with the commit that starts it (rule C)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from cluster.errors import OutcomeUnknown, Refused, StoreUnavailable
from cluster.flows.starts import IdReuse
from cluster.queues.slot_groups import MOST_ASKED
from cluster.store.store import Store
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    PARTITIONS,
    StreamLab,
    attempt,
    open_stream_lab,
)
from tests.cluster.streams.test_hand_over import Commits, known_idle, remember, scripts_of
from tests.store_time import next_millisecond
from tests.stream_client import StreamClient
from tests.waiting import eventually


async def test_a_start_is_one_round_trip_to_the_worker(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await known_idle(lab)
        with scripts_of(lab[0].store, monkeypatch) as scripts:
            for number in range(1, 4):
                flow_id = await lab[0].start("F")
                task = await w1.next("task")
                assert (task["task"]["flow_id"], attempt(task)) == (flow_id, (1, 0))
                await w1.complete(task, COMPLETE)
                assert scripts == {"commit": 2 * number}


async def test_workers_take_turns(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1, lab[0].worker("w2", "F", slots=2) as w2:
        for _ in range(4):
            await lab[0].start("F")
        for worker in (w1, w2):
            assert {(await worker.next("task"))["slot"] for _ in range(2)} == {1, 2}
    assert lab[0].hub.matcher.statistics().handed_over == 4


async def test_many_busy_workers_do_not_hide_a_free_one(lab: StreamLab) -> None:
    """Only so many are asked for one step, but others the next time; until then there is the queue."""
    async with trio.open_nursery() as nursery:
        busy = MOST_ASKED + 1

        async def working(name: str, task_status: trio.TaskStatus[StreamClient]) -> None:
            async with lab[0].worker(name, "F") as worker:
                task_status.started(worker)
                await trio.sleep_forever()

        for number in range(busy):
            await nursery.start(working, f"busy-{number}")
            await lab[0].start("F")
        free = await nursery.start(working, "free")
        flow_id = await lab[0].start("F")
        assert (await free.next("task"))["task"]["flow_id"] == flow_id
        nursery.cancel_scope.cancel()


async def test_a_step_that_no_slot_here_can_run_waits_in_the_queue(lab: StreamLab) -> None:
    only_b = {"name": "F", "step_types": ["b"]}
    async with lab[0].worker("w1", only_b, "G") as w1:
        flow_id = await lab[0].start("F", "a")
        assert await lab[0].steps(flow_id) == [("a", "r", 1)]
        async with lab[1].worker("w2", "F") as w2:
            assert (await w2.next("task"))["task"]["flow_id"] == flow_id
        assert not [frame for frame in w1.frames if frame["type"] == "task"]
    assert lab[0].hub.matcher.statistics().handed_over == 0


async def test_reserved_rpc_slots_get_no_step(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=0, rpc_slots=2):
        flow_id = await lab[0].start("F")
        assert await lab[0].steps(flow_id) == [("a", "r", 1)]


async def test_a_worker_that_said_it_has_no_capacity_is_left_alone(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        place = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "decline", **place, "reason": "no_capacity"})
        await eventually(lambda: lab[0].hub.capacity_declines == 1)
        before = lab[0].hub.matcher.statistics().handed_over
        await lab[0].start("F")
        assert lab[0].hub.matcher.statistics().handed_over == before


@pytest.fixture
async def strict(valkey_url: str, prefix: str) -> AsyncIterator[StreamLab]:
    """Whatever waits is a backlog at once."""
    async with open_stream_lab(valkey_url, prefix, sync_match_wait=0.001) as opened:
        yield opened


async def test_what_waits_already_goes_first(strict: StreamLab) -> None:
    """R32: a slot that is free for a moment is not given to who comes last."""
    lab = strict
    waiting = [await lab[1].start("F") for _ in range(PARTITIONS)]
    for _ in range(3):  # longer than sync_match_wait
        await next_millisecond(lab[0].store)
    async with lab[0].worker("w1", "F") as w1:
        seen = []
        last = await lab[0].start("F")
        for _ in range(PARTITIONS + 1):
            task = await w1.next("task")
            seen.append(task["task"]["flow_id"])
            await w1.complete(task, COMPLETE)
    assert (sorted(seen[:-1]), seen[-1]) == (sorted(waiting), last)


@pytest.fixture
async def limited(valkey_url: str, prefix: str) -> AsyncIterator[StreamLab]:
    """One step of a flow type runs at a time."""
    limits = {f"{NAMESPACE}:F": {"step_tasks": {"max_active_leases": 1}}}
    async with open_stream_lab(valkey_url, prefix, limits=limits) as opened:
        yield opened


async def test_limits_hold(limited: StreamLab) -> None:
    lab = limited
    async with lab[0].worker("w1", "F", slots=2) as w1:
        first, second = await lab[0].start("F"), await lab[0].start("F")
        task = await w1.next("task")
        other = second if task["task"]["flow_id"] == first else first
        assert await lab[0].steps(other) == [("a", "r", 1)]
        await w1.complete(task, COMPLETE)
        assert (await w1.next("task"))["task"]["flow_id"] == other
    assert lab[0].hub.matcher.statistics().handed_over == 0


async def test_a_refused_start_leaves_its_slot_free(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", flow_id="one")
        await w1.complete(await w1.next("task"), COMPLETE)
        with pytest.raises(Refused) as refused:
            await lab[0].start("F", flow_id="one", id_reuse=IdReuse.NEVER)
        assert refused.value.reason == "flow_already_started"
        flow_id = await lab[0].start("F")
        assert (await w1.next("task"))["task"]["flow_id"] == flow_id


async def test_a_flow_that_replaces_a_running_one_gets_a_slot(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", flow_id="one")
        first = await w1.next("task")
        await lab[0].start("F", flow_id="one", id_reuse=IdReuse.TERMINATE_RUNNING)
        second = await w1.next("task")
        assert first["task"]["run_id"] != second["task"]["run_id"]
        assert (await w1.complete(second, COMPLETE))["accepted"]


async def test_a_store_that_is_away_leaves_the_slot_free(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_arguments: Any, **_options: Any) -> Any:
        raise StoreUnavailable("nothing was sent")

    async with lab[0].worker("w1", "F") as w1:
        with monkeypatch.context() as patch:
            patch.setattr(lab[0].store, "run", away)
            with pytest.raises(StoreUnavailable):
                await lab[0].start("F")
        flow_id = await lab[0].start("F")
        assert (await w1.next("task"))["task"]["flow_id"] == flow_id


async def repaired(lab: StreamLab, worker: StreamClient, flow_id: str) -> None:
    """The step reached no worker: the node finds that out, and hands it out as the next delivery."""
    for _ in range(2):
        await lab[0].hub.audit.look()
    task = await worker.next("task")
    assert (task["task"]["flow_id"], attempt(task)) == (flow_id, (1, 1))
    assert (await worker.complete(task, COMPLETE))["accepted"]


async def test_a_start_whose_reply_was_lost_loses_no_step(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: nobody can say whether the slot has got the step."""
    async with lab[0].worker("w1", "F") as w1:
        commits = Commits(lab[0].store, monkeypatch)
        commits.trouble = OutcomeUnknown("the reply was lost")
        commits.go_on.set()
        await lab[0].start("F", flow_id="one")
        await repaired(lab, w1, "one")


async def test_a_client_that_leaves_during_its_start_loses_no_step(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab[0].worker("w1", "F") as w1, trio.open_nursery() as nursery:
        commits = Commits(lab[0].store, monkeypatch)
        nursery.start_soon(partial(lab[0].start, "F", flow_id="one"))
        await commits.applied.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            commits.go_on.set()
            await repaired(lab, w1, "one")


async def test_a_slot_that_closes_during_a_start_gives_the_step_back(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab[1].worker("w2", "F") as w2, trio.open_nursery() as nursery:
        async with lab[0].worker("w1", "F") as w1:
            commits = Commits(lab[0].store, monkeypatch)
            nursery.start_soon(lab[0].start, "F")
            await commits.applied.wait()
            await w1.drop()
            await eventually(lambda: not lab[0].hub.statistics().streams)
            commits.go_on.set()
        assert attempt(await w2.next("task")) == (1, 1)


async def test_the_audit_waits_for_a_start_that_is_under_way(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a start that comes while it looks does not wait for it, but puts its step into the queue."""
    async with lab[0].worker("w1", "F", slots=2) as w1, trio.open_nursery() as nursery:
        commits = Commits(lab[0].store, monkeypatch)
        nursery.start_soon(lab[0].start, "F")
        await commits.applied.wait()

        async def look_twice() -> None:
            for _ in range(2):
                await lab[0].hub.audit.look()

        nursery.start_soon(look_twice)
        await eventually(lambda: lab[0].hub.matcher.under_way._alone.locked())
        await lab[0].start("F")
        assert lab[0].hub.matcher.statistics().handed_over == 0
        commits.go_on.set()
        assert [attempt(await w1.next("task")) for _ in range(2)] == [(1, 0)] * 2
        assert lab[0].hub.statistics().repaired == 0


async def test_a_node_that_may_not_hand_out_queues_the_step(lab: StreamLab) -> None:
    """E3, and E1 in the commit itself."""
    async with lab[0].worker("w1", "F"), lab[1].worker("w2", "F") as w2:
        lab[0].member.acting = False
        await lab[0].start("F")
        await w2.complete(await w2.next("task"), COMPLETE)
        lab[0].member.acting = True
        store: Store = lab[0].store
        for partition in range(PARTITIONS):
            await store.call("ZADD", store.keys.dead(partition), 1, lab[0].member.incarnation)
        await lab[0].start("F")
        await w2.next("task")
        assert lab[0].hub.matcher.statistics().handed_over == 0


async def test_work_that_others_have_taken_holds_no_start_up(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await known_idle(lab)
        remember(lab, 0, "c")
        flow_id = await lab[0].start("F")
        assert (await w1.next("task"))["task"]["flow_id"] == flow_id
        assert await lab[0].engine.describe(NAMESPACE, flow_id)
