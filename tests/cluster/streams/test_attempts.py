"""How attempts end: R48 to R57, R77, R78, R81, E1, E2."""

from __future__ import annotations

from functools import partial

import trio

from cluster.flows.machine import StopType
from cluster.ids import partition_of_run
from cluster.queues.slot_claims import SlotGroup, Want, claim_steps
from cluster.store.keys import QueueName
from tests.cluster.streams.lab import COMPLETE, NAMESPACE, PARTITIONS, StreamLab, attempt, held
from tests.stream_client import Frame
from tests.waiting import eventually

SOON = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
"""Step options with a retry that does not keep a test waiting."""
ONCE = {"execute": {"retry": {"maximum_attempts": 1}}}


async def test_r49_losing_the_connection_fails_the_attempt(lab: StreamLab) -> None:
    async with lab[1].worker("w2", {"name": "F", "step_types": ["z"]}) as w2:
        async with lab[0].worker("w1", "F") as w1:
            await lab[0].start("F", options=SOON)
            assert attempt(await w1.next("task")) == (1, 0)
        async with lab[1].worker("w3", "F") as w3:
            assert attempt(await w3.next("task", within=2)) == (2, 0)
        await w2.quiet(0)


async def test_r50_no_hidden_retry(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F", options=ONCE)
        await w1.next("task")
    run = await lab[1].engine.wait_closed(NAMESPACE, flow_id, 5)
    assert run.state.status == "failed"


async def test_r51_late_output_is_refused_and_changes_nothing(lab: StreamLab) -> None:
    options = {"execute": {"timeout_seconds": 0.1, "retry": {"initial_interval_seconds": 0.05}}}
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=options)
        late, second = await w1.next("task"), await w1.next("task", within=3)
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
            again = await w2.next("task", within=2)
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
        again = await w1.next("task", within=2)
        assert attempt(again) == (2, 0)
        assert again["task"]["checkpoint"] == {"at": 3}


async def test_r54_resetting_loses_the_attempt(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F", options=SOON)
        task = await w1.next("task")
        await w1.send({"type": "reset", "slot": task["slot"]})
        assert (await w1.next("closed"))["reason"] == "reset"
        assert attempt(await w1.next("task", within=2)) == (2, 0)


async def test_r57_capacity_declines_return_and_are_counted(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", options=ONCE)
        task = await w1.next("task")
        async with lab[1].worker("w2", "F") as w2:
            fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
            await w1.send({"type": "decline", **fields, "reason": "no_capacity"})
            assert (await w1.next("confirmed"))["accepted"]
            assert attempt(await w2.next("task", within=2)) == (1, 1)
    assert lab[0].hub.statistics().capacity_declines == 1


async def test_r77_a_task_that_crosses_a_half_close_is_never_lost(lab: StreamLab) -> None:
    """Slots close in the same turn in which tasks come for them."""
    async with lab[1].worker("w2", "F", slots=4) as w2:
        for number in range(30):
            async with lab[0].worker(f"w1-{number}", "F") as w1:
                flow_id = await lab[0].start("F", options=ONCE)
                await w1.send({"type": "half_close", "slot": 1})
                task = await w2.next("task", within=3)
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
            await w1.wait_ended(3)


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
        await late.wait_ended(3)


async def test_r81_an_output_counts_though_its_worker_is_gone(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F", options=ONCE)
        task = await w1.next("task")
        fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "output", **fields, "output": COMPLETE})
        await w1.drop()
    run = await lab[1].engine.wait_closed(NAMESPACE, flow_id, 5)
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
                assert attempt(await w2.next("task", within=3)) == (2, 0)
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
        assert attempt(await w1.next("task", within=2))[0] == 1


async def test_e2_streams_of_a_buried_node_are_closed(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        lab[0].member.incarnation = "node-0~2"
        lab[0].hub.fenced("node-0~1")
        assert [(await w1.next("closed"))["reason"] for _ in range(2)] == ["fenced", "fenced"]
        await w1.open(3)
        await lab[0].start("F")
        await w1.next("task")


async def test_attempts_that_are_over_are_cancelled_at_their_worker(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        await lab[1].engine.stop(NAMESPACE, flow_id, StopType.TERMINATE, "", wait=False)
        lab[0].hub._audit_soon()
        cancel = await w1.next("cancel", within=3)
        assert cancel["attempt_id"] == task["task"]["attempt_id"]
        confirmed = await w1.complete(task, COMPLETE)
        assert (confirmed["accepted"], confirmed["reason"]) == (False, "flow_closed")


async def test_heartbeats_hear_that_the_flow_is_stopped(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        await lab[1].engine.stop(NAMESPACE, flow_id, StopType.CANCEL, "", wait=False)
        beat = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "heartbeat", **beat})
        await w1.next("cancel", within=3)


async def test_a_claim_whose_reply_was_lost_comes_back(lab: StreamLab) -> None:
    """G1: the audit finds what this session holds and nobody here knows."""
    flow_id = await lab[0].start("F", options=ONCE)
    store, session = lab[0].store, lab[0].member.incarnation
    group = SlotGroup("gone", 1, (Want(QueueName("s", NAMESPACE, "F")),))
    lost = await claim_steps(store, session, list(range(PARTITIONS)), [group], 1)
    assert len(lost.claims) == 1
    async with lab[1].worker("w2", "F") as w2:
        for _ in range(2):
            await lab[0].hub._audit()
        task = await w2.next("task", within=2)
        assert (task["task"]["flow_id"], attempt(task)) == (flow_id, (1, 1))
        assert lab[0].hub.statistics().repaired == 1
