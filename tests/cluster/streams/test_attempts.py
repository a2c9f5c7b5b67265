"""How attempts end: R48 to R57, R77, R78, R81, E1, E2."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from cluster.flows.machine import StopType
from cluster.ids import TaskKind, partition_of_run
from cluster.queues.slot_claims import SlotGroup, Want, claim_steps
from cluster.store.keys import QueueName
from cluster.upkeep.orphans import Orphan
from nodes.streams.audit import Audit
from nodes.streams.tasks import RunningStep, running_step
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    PARTITIONS,
    StreamLab,
    attempt,
    held,
    next_task,
    open_stream_lab,
)
from tests.stream_client import Frame
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("no_audit")

SOON = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
"""Step options with a retry that does not keep a test waiting."""
ONCE = {"execute": {"retry": {"maximum_attempts": 1}}}


async def test_r49_losing_the_connection_fails_the_attempt(lab: StreamLab) -> None:
    async with lab[1].worker("w2", {"name": "F", "step_types": ["z"]}) as w2:
        async with lab[0].worker("w1", "F") as w1:
            await lab[0].start("F", options=SOON)
            assert attempt(await w1.next("task")) == (1, 0)
        async with lab[1].worker("w3", "F") as w3:
            assert attempt(await w3.next("task")) == (2, 0)
        await w2.quiet(0)


async def test_r50_no_hidden_retry(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F", options=ONCE)
        await w1.next("task")
    run = await lab[1].engine.wait_closed(NAMESPACE, flow_id, PATIENCE)
    assert run.state.status == "failed"


async def test_d10_a_poison_step_is_bounded_and_harms_no_other(lab: StreamLab) -> None:
    """Whoever runs it dies: each death is an attempt, and the policy ends it."""
    thrice = {"execute": {"retry": {"initial_interval_seconds": 0.05, "maximum_attempts": 3}}}
    poison = await lab[0].start("F", "poison", options=thrice)
    attempts = []
    for life in range(3):
        async with lab[life % 2].worker(f"w{life}", {"name": "F", "step_types": ["poison"]}) as victim:
            attempts.append(attempt(await victim.next("task")))
    assert attempts == [(1, 0), (2, 0), (3, 0)]
    run = await lab[1].engine.wait_closed(NAMESPACE, poison, PATIENCE)
    assert run.state.status == "failed"
    async with lab[0].worker("w9", "F") as w9:
        await lab[1].start("F")
        assert (await w9.complete(await w9.next("task"), COMPLETE))["accepted"]
        await w9.quiet(0.2)


async def test_r51_late_output_is_refused_and_changes_nothing(lab: StreamLab) -> None:
    options = {"execute": {"timeout_seconds": 0.1, "retry": {"initial_interval_seconds": 0.05}}}
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=options)
        late, second = await w1.next("task"), await w1.next("task")
        assert (attempt(late), attempt(second)) == ((1, 0), (2, 0))
        confirmed = await w1.complete(late, COMPLETE)
        assert (confirmed["accepted"], confirmed["reason"]) == (False, "stale")


async def test_r53_half_closing_without_output_returns_the_attempt(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", options=ONCE)
        task = await w1.next("task")
        async with lab[1].worker("w2", "F") as w2:
            await w1.send({"type": "half_close", "slot": task["slot"]})
            assert (await w1.next("closed"))["reason"] == "half_closed"
            again = await w2.next("task")
            assert attempt(again) == (1, 1)
            assert (await w2.complete(again, COMPLETE))["accepted"]


async def test_a3_half_closing_after_a_heartbeat_loses_the_attempt(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=SOON)
        task = await w1.next("task")
        beat = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "heartbeat", **beat, "checkpoint": {"at": 3}})
        record = lab[0].store.keys.task(_partition(task), task["task"]["task_id"])
        await eventually(partial(_has_checkpoint, lab, record))
        await w1.send({"type": "half_close", "slot": task["slot"]})
        again = await w1.next("task")
        assert attempt(again) == (2, 0)
        assert again["task"]["checkpoint"] == {"at": 3}


@pytest.mark.parametrize(
    "ending",
    [
        {"type": "output", "failure": {"message": "no"}},
        {"type": "output", "output": "invalid"},
        {"type": "half_close"},
        {"type": "reset"},
    ],
)
async def test_a_checkpoint_that_came_just_before_the_end_is_kept(lab: StreamLab, ending: Frame) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=SOON)
        task = await w1.next("task")
        named = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        beats = [{"type": "heartbeat", **named, "checkpoint": {"at": at}} for at in range(9)]
        await w1.send(*beats, named | ending)
        again = await w1.next("task")
        assert (attempt(again), again["task"]["checkpoint"]) == ((2, 0), {"at": 8})


async def test_r54_resetting_loses_the_attempt(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=SOON)
        task = await w1.next("task")
        await w1.send({"type": "reset", "slot": task["slot"]})
        assert (await w1.next("closed"))["reason"] == "reset"
        assert attempt(await w1.next("task")) == (2, 0)


async def test_r57_capacity_declines_return_and_are_counted(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", options=ONCE)
        task = await w1.next("task")
        async with lab[1].worker("w2", "F") as w2:
            fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
            await w1.send({"type": "decline", **fields, "reason": "no_capacity"})
            assert (await w1.next("confirmed"))["accepted"]
            assert attempt(await w2.next("task")) == (1, 1)
    assert lab[0].hub.statistics().capacity_declines == 1


async def test_r77_a_task_that_crosses_a_half_close_is_never_lost(lab: StreamLab) -> None:
    """Slots close in the same turn in which tasks come for them."""
    async with lab[1].worker("w2", "F", slots=4) as w2:
        for number in range(30):
            async with lab[0].worker(f"w1-{number}", "F") as w1:
                flow_id = await lab[0].start("F", options=ONCE)
                await w1.send({"type": "half_close", "slot": 1})
                task = await w2.next("task")
                assert task["task"]["flow_id"] == flow_id
                assert attempt(task)[0] == 1
                await w2.complete(task, COMPLETE)


async def test_r78_a_leaving_node_lets_tasks_finish(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab[0].hub.leave, 10)
            await w1.next("reconnect")
            await lab[0].start("F")
            await w1.quiet(0.2)
            assert (await w1.complete(task, COMPLETE))["accepted"]
            assert (await w1.next("closed"))["reason"] == "reconnect"
            await w1.wait_ended()


async def test_r78_whoever_greets_a_leaving_node_is_sent_elsewhere(lab: StreamLab) -> None:
    """Its greeting crossed the node's farewell to everybody else."""
    limits = {"task_limit": 1, "reserved_rpc_slots": 0}
    async with lab[0].connect() as late, trio.open_nursery() as nursery:
        nursery.start_soon(lab[0].hub.leave, 60)
        await eventually(lambda: not lab[0].hub.accepting)
        await late.send(
            {"type": "hello", "worker_id": "w", "flow_types": [{"name": "F"}], **limits},
            {"type": "open", "slot": 1, "kind": "step_and_rpc"},
        )
        await late.next("reconnect")
        assert (await late.next("rejected", slot=1))["reason"] == "node_leaving"
        await late.wait_ended()


async def test_r81_an_output_counts_though_its_worker_is_gone(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F", options=ONCE)
        task = await w1.next("task")
        fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "output", **fields, "output": COMPLETE})
        await w1.drop()
    run = await lab[1].engine.wait_closed(NAMESPACE, flow_id, PATIENCE)
    assert run.state.status == "completed"


async def test_e1_what_a_buried_node_had_handed_out_is_lost(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=SOON)
        task = await w1.next("task")
        async with lab[1].worker("w2", "F", slots=2) as w2:
            dead, store = lab[0].member.incarnation, lab[1].store
            lab[0].member.acting = False
            for partition in range(PARTITIONS):
                await store.run("bury", [store.keys.dead(partition)], [60_000, 1, dead])
            async with trio.open_nursery() as nursery:
                for partition in range(PARTITIONS):
                    nursery.start_soon(lab[1].hub.housekeep, held(partition))
                assert attempt(await w2.next("task")) == (2, 0)
                late = await w1.complete(task, COMPLETE)
                assert (late["accepted"], late["reason"]) == (False, "stale")
                await eventually(partial(_nothing_left, lab, dead))
                nursery.cancel_scope.cancel()


async def _nothing_left(lab: StreamLab, session: str) -> bool:
    bases = [lab[1].store.keys.base(partition) for partition in range(PARTITIONS)]
    left = [
        await lab[1].store.call("EXISTS", f"{base}:{family}:{session}")
        for base in bases
        for family in ("ses", "on")
    ]
    return not any(left)


def _partition(task: Frame) -> int:
    partition = partition_of_run(task["task"]["run_id"])
    assert partition is not None
    return partition


async def _has_checkpoint(lab: StreamLab, record: str) -> bool:
    return await lab[0].store.call("HGET", record, "pg") is not None


async def test_e2_nothing_is_handed_out_while_the_node_may_not_act(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        lab[0].member.acting = False
        await lab[1].start("F")
        await w1.quiet(0.4)
        lab[0].member.acting = True
        # A claim that was under way when the node had to stop came back: then it is delivery 1.
        assert attempt(await w1.next("task"))[0] == 1


async def test_e2_streams_of_a_buried_node_are_closed(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        lab[0].member.incarnation = "node-0~2"
        lab[0].hub.fenced("node-0~1")
        assert [(await w1.next("closed"))["reason"] for _ in range(2)] == ["fenced", "fenced"]
        await w1.open(3)
        await lab[0].start("F")
        await w1.next("task")


@pytest.mark.parametrize("kind", [StopType.TERMINATE, StopType.FAIL])
async def test_attempts_that_are_over_are_cancelled_at_their_worker_at_once(
    lab: StreamLab, kind: StopType
) -> None:
    """A handler that never heartbeats hears of it, whichever node the client asked."""
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        await lab[1].engine.stop(NAMESPACE, flow_id, kind, "", wait=False)
        cancel = await w1.next("cancel")
        assert (cancel["attempt_id"], cancel["reason"]) == (task["task"]["attempt_id"], "attempt_over")
        confirmed = await w1.complete(task, COMPLETE)
        assert (confirmed["accepted"], confirmed["reason"]) == (False, "flow_closed")


async def test_a_cooperative_stop_is_told_at_once_on_every_node(valkey_url: str, prefix: str) -> None:
    async with (
        open_stream_lab(valkey_url, prefix, sticky_wait=0) as lab,
        lab[0].worker("w1", "F") as w1,
        lab[1].worker("w2", "F") as w2,
    ):
        flow_id = await lab[0].start("F", "first")
        who, first = await next_task(w1, w2)
        two = {"decision": {"next": [{"step_type": "a"}, {"step_type": "a"}]}}
        await who.complete(first, two)
        tasks = [await w1.next("task"), await w2.next("task")]
        await lab[1].engine.stop(NAMESPACE, flow_id, StopType.CANCEL, "", wait=True)
        for worker, task in zip((w1, w2), tasks, strict=True):
            cancel = await worker.next("cancel")
            assert cancel["attempt_id"] == task["task"]["attempt_id"]
            assert cancel["reason"] == "cancel_requested"
            assert (await worker.complete(task, COMPLETE))["accepted"]
        run = await lab[0].engine.wait_closed(NAMESPACE, flow_id, PATIENCE)
        assert run.state.status == "canceled"


async def test_cancelled_siblings_hear_of_it_at_once(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", "first")
        await w1.complete(await w1.next("task"), {"decision": {"next": [{"step_type": s} for s in "ab"]}})
        tasks = {task["task"]["step_type"]: task for task in [await w1.next("task"), await w1.next("task")]}
        decision = {"next": [{"step_type": "c"}], "cancel": {"siblings": True}}
        assert (await w1.complete(tasks["a"], {"decision": decision}))["accepted"]
        cancel = await w1.next("cancel")
        assert cancel["attempt_id"] == tasks["b"]["task"]["attempt_id"]
        # The output of what was cancelled counts for nothing, and its slot serves again.
        confirmed = await w1.complete(tasks["b"], COMPLETE)
        assert (confirmed["accepted"], confirmed["reason"]) == (False, "stale")
        await w1.quiet(0, "cancel")


async def test_an_attempt_that_timed_out_is_cancelled_and_the_next_is_not(lab: StreamLab) -> None:
    options = {"execute": {"timeout_seconds": 0.1, "retry": {"initial_interval_seconds": 0.05}}}
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=options)
        first = await w1.next("task")
        cancel = await w1.next("cancel")
        assert cancel["attempt_id"] == first["task"]["attempt_id"]


async def test_a_cancel_that_overtakes_its_task_reaches_it(lab: StreamLab) -> None:
    """The message comes by another connection than the claim's reply."""
    store, session = lab[0].store, lab[0].member.incarnation
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F", "z")
        attempt_id = (await w1.next("task"))["task"]["attempt_id"]
        early = attempt_id[:-3] + "2.0"
        await store.call("PUBLISH", store.keys.cancel_channel(session), f"{early} attempt_over")
        await w1.send({"type": "reset", "slot": 1})
        await w1.open(2)
        assert (await w1.next("task"))["task"]["attempt_id"] == early
        assert (await w1.next("cancel"))["attempt_id"] == early
        assert flow_id


async def test_cancels_that_were_missed_are_found(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        await w1.next("task")
        await lab[0].store.unsubscribe(lab[0].store.keys.cancel_channel(lab[0].member.incarnation))
        await lab[1].engine.stop(NAMESPACE, flow_id, StopType.CANCEL, "", wait=True)
        await w1.quiet(0.2, "cancel")
        lab[0].hub.audit.look_for_stops()
        assert (await w1.next("cancel"))["reason"] == "cancel_requested"


async def test_a_task_that_is_on_its_way_is_no_stranger(lab: StreamLab) -> None:
    """The audit waits for the claim under way before it gives back what nobody seems to know."""
    store, session = lab[0].store, lab[0].member.incarnation
    flow_id = await lab[0].start("F")
    view = await lab[0].engine.describe(NAMESPACE, flow_id)
    partition = partition_of_run(view.run.info.run_id) or 0
    asking, running, repaired = trio.Lock(), list[RunningStep](), list[Orphan]()
    audit = Audit(
        store,
        lambda: True,
        lambda: session,
        asking,
        in_use=lambda: True,
        running=lambda: running,
        cancel=lambda attempt_id, reason: False,
        repair=repaired.append,
    )
    queue = QueueName("s", NAMESPACE, "F")
    group = SlotGroup("w1", 1, (Want(queue),))
    permits = {queue: await lab[0].gate.terms(NAMESPACE, TaskKind.STEP, "F")}
    async with trio.open_nursery() as nursery, asking:
        (claim,) = (await claim_steps(store, session, [partition], [group], 1, permits)).claims
        nursery.start_soon(audit._return, partition, {claim.task_id})
        await eventually(lambda: asking.statistics().tasks_waiting == 1)
        running.append(running_step(claim, "w1", session))
    assert repaired == []
    running.clear()
    await audit._return(partition, {claim.task_id})
    assert [orphan.task_id for orphan in repaired] == [claim.task_id]


async def test_heartbeats_hear_that_the_flow_is_stopped(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        await lab[1].engine.stop(NAMESPACE, flow_id, StopType.CANCEL, "", wait=False)
        beat = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "heartbeat", **beat})
        await w1.next("cancel")


async def test_a_claim_whose_reply_was_lost_comes_back(lab: StreamLab) -> None:
    """G1: the audit finds what this session holds and nobody here knows."""
    flow_id = await lab[0].start("F", options=ONCE)
    store, session = lab[0].store, lab[0].member.incarnation
    queue = QueueName("s", NAMESPACE, "F")
    permit = await lab[0].gate.terms(NAMESPACE, TaskKind.STEP, "F")
    group = SlotGroup("gone", 1, (Want(queue),))
    lost = await claim_steps(store, session, list(range(PARTITIONS)), [group], 1, {queue: permit})
    assert len(lost.claims) == 1
    async with lab[1].worker("w2", "F") as w2:
        for _ in range(2):
            await lab[0].hub.audit.look()
        task = await w2.next("task")
        assert (task["task"]["flow_id"], attempt(task)) == (flow_id, (1, 1))
        assert lab[0].hub.statistics().repaired == 1
