"""What flows do, on real servers."""

from __future__ import annotations

import orjson
import pytest
from msgspec import Raw

from cluster.errors import Refused
from cluster.flows.engine import IdReuse, ResultKind
from cluster.flows.machine import StopType
from cluster.flows.retention import FlowRetention
from tests.cluster.flows.lab import DEAD_END, NAMESPACE, Lab, complete, go_to, wait_for


async def test_a_flow_of_two_steps(lab: Lab) -> None:
    started = await lab.start(input=b'{"n": 1}')

    first = await lab.take_one()
    assert first.claim.task_id == f"{started.info.run_id}-s1"
    assert first.body["input"] == {"n": 1}
    assert (first.body["flow_id"], first.body["method"], first.step) == ("f1", "execute", "first-1")
    verdict = await lab.finish(first, go_to({"step_type": "second", "input": [1, 2]}))
    assert verdict.accepted
    second = await lab.do(complete({"total": 3}))
    assert (second.step, second.body["input"]) == ("second-1", [1, 2])

    run = await lab.engine.read(NAMESPACE, "f1")
    assert (run.state.status, orjson.loads(run.state.result)) == ("completed", {"total": 3})
    assert await lab.take() == []
    page = await lab.engine.steps(NAMESPACE, "f1", page_size=10, token=None)
    events = [orjson.loads(entry) for entry in page.entries]
    assert [(e["sequence"], e["event"], e["step_execution_id"]) for e in events] == [
        (1, "completed", "first-1"),
        (2, "completed", "second-1"),
    ]
    assert events[0]["next"] == ["second-1"]


async def test_after_a_flow_nothing_is_left_but_what_is_kept(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}}, timeout_ms=60_000)
    await lab.do(wait_for("all", {"id": "m", "channel": "c"}, {"id": "t", "timer_seconds": 0}))
    await lab.publish("c", 1)
    await lab.publish("c", 2)
    await lab.do(complete())

    kept = {"fl", "run", "steps", "flows", "fclosed"}
    queues = {"q", "queues", "cur", "nq", "ty", "touch", "rate", "gen"}  # compacted when idle, or kept
    assert await lab.remains() - queues == kept
    assert await lab.timers() == {}


async def test_parallel_steps_end_the_flow_when_all_are_over(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to("a", "a", "b"))
    taken = await lab.take(most=5)
    assert sorted(one.step for one in taken) == ["a-1", "a-2", "b-1"]

    verdicts = await lab.engine.finish([one.result(output=DEAD_END) for one in taken])

    assert [verdict.accepted for verdict in verdicts] == [True] * 3
    assert await lab.status() == "completed"


async def test_any_node_takes_the_result(lab: Lab) -> None:
    await lab.start()
    first = await lab.take_one()
    lab.engine = lab.new_engine()
    assert (await lab.finish(first, go_to("second"))).accepted
    assert (await lab.take_one()).step == "second-1"


async def test_a_result_that_comes_twice_is_accepted_twice(lab: Lab) -> None:
    await lab.start()
    first = await lab.take_one()
    for engine in (lab.engine, lab.engine, lab.new_engine()):
        lab.engine = engine
        assert (await lab.finish(first, go_to("second"))).accepted
    (second,) = await lab.take(most=10)
    assert second.step == "second-1"
    assert (await lab.finish(second, complete())).accepted
    assert (await lab.finish(second, complete())).accepted
    assert (await lab.finish(first, go_to("second"))).accepted
    other = await lab.finish(first, kind=ResultKind.FAILED)
    assert (other.accepted, other.reason) == (False, "flow_closed")


async def test_a_stale_result_changes_nothing(lab: Lab) -> None:
    await lab.start()
    first = await lab.take_one()
    for stale in (
        {"attempt": 2},
        {"delivery": 1},
        {"worker_id": "w2"},
        {"session": "node~2"},
        {"method": "wait_for"},
        {"method": "nonsense"},
        {"task_id": "nonsense"},
        {"task_id": first.claim.task_id.replace("-s1", "-s2")},
    ):
        for kind in ResultKind:
            verdict = await lab.finish(first, go_to("second"), kind=kind, **stale)
            assert (verdict.accepted, verdict.reason) == (False, "stale"), (stale, kind)
    assert await lab.take() == []
    assert (await lab.finish(first, go_to("second"))).accepted


async def test_bad_results_do_not_hold_up_their_neighbours(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to("a", "b", "c", "d"))
    a, b, c, d = sorted(await lab.take(most=5), key=lambda one: one.step)

    verdicts = await lab.engine.finish(
        [
            a.result(output=go_to("e")),
            b.result(output=go_to("e"), attempt=7),
            c.result(output={"decision": {}}),
            d.result(kind=ResultKind.RETURNED),
            b.result(output=go_to("e")),
        ]
    )

    assert [(v.accepted, v.reason) for v in verdicts] == [
        (True, None),
        (False, "stale"),
        (False, "invalid_output"),
        (True, None),
        (True, None),
    ]
    assert sorted(one.step for one in await lab.take(most=5)) == ["d-1", "e-1", "e-2"]
    view = await lab.engine.describe(NAMESPACE, "f1")
    (failed,) = (step for step in view.run.steps.values() if step.step_type == "c")
    assert failed.last_failure is not None
    assert failed.last_failure["type"] == "InvalidOutput"


async def test_results_of_many_flows_go_together(lab: Lab) -> None:
    for number in range(40):
        await lab.start(flow_id=f"f{number}")
    taken = await lab.take(most=40)
    assert len(taken) == 40
    before = lab.store.statistics().commit_calls

    verdicts = await lab.engine.finish([one.result(output=complete(1)) for one in taken])

    assert all(verdict.accepted for verdict in verdicts)
    assert lab.store.statistics().commit_calls - before <= lab.store.keys.partitions


async def test_a_failed_attempt_is_tried_again_with_what_it_had(lab: Lab) -> None:
    await lab.start(input=b"7", attributes={"a": Raw(b"1")})
    first = await lab.take_one()
    await lab.engine.heartbeat(first.claim.task_id, 1, 0, "w1", b'{"at": 5}')
    assert (await lab.fail(first)).accepted
    assert await lab.take() == []
    view = await lab.engine.describe(NAMESPACE, "f1")
    (step,) = view.run.steps.values()
    assert (step.phase, step.attempt) == ("backoff", 2)

    await lab.skip_to("s1")

    again = await lab.take_one()
    assert (again.claim.attempt, again.claim.delivery, again.body["checkpoint"]) == (2, 0, {"at": 5})
    assert (again.body["input"], again.body["attributes"]) == (7, {"a": 1})
    assert "first_attempt_at" in again.body
    late = await lab.finish(first, complete())
    assert (late.accepted, late.reason) == (False, "stale")
    assert (await lab.fail(first)).accepted  # it was, before
    assert (await lab.finish(again, complete())).accepted


async def test_a_lost_attempt_counts_and_a_returned_one_does_not(lab: Lab) -> None:
    await lab.start(options={"execute": {"retry": {"maximum_attempts": 2}}})
    for delivery in range(3):
        taken = await lab.take_one()
        assert (taken.claim.attempt, taken.claim.delivery) == (1, delivery)
        assert (await lab.finish(taken, kind=ResultKind.RETURNED)).accepted
    taken = await lab.take_one()
    assert (await lab.finish(taken, kind=ResultKind.LOST)).accepted
    await lab.skip_to("s1")
    taken = await lab.take_one()
    assert (taken.claim.attempt, taken.claim.delivery) == (2, 0)
    assert (await lab.finish(taken, kind=ResultKind.LOST)).accepted

    run = await lab.engine.read(NAMESPACE, "f1")
    assert run.state.status == "failed"
    assert run.state.failure is not None
    assert (run.state.failure["type"], run.state.failure["attempt"]) == ("WorkerLost", 2)


async def test_a_declined_step_goes_to_others(lab: Lab) -> None:
    await lab.start()
    taken = await lab.take_one(worker="w1")
    assert (await lab.finish(taken, kind=ResultKind.DECLINED)).accepted
    assert await lab.take(worker="w1") == []
    other = await lab.take_one(worker="w2")
    assert (other.claim.attempt, other.claim.delivery) == (1, 1)


async def test_conditions_of_channels(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}})
    await lab.publish("c", "before")
    waiting = await lab.take_one()
    assert waiting.body["method"] == "wait_for"
    await lab.finish(waiting, wait_for("all", {"id": "two", "channel": "c", "count": 2}))
    assert await lab.take() == []
    assert await lab.publish("c", {"after": 1})
    await lab.publish("c", "left")

    lab.engine = lab.new_engine()
    executing = await lab.take_one()

    assert executing.body["method"] == "execute"
    assert executing.body["conditions"] == {"two": {"satisfied": True, "values": ["before", {"after": 1}]}}
    run = await lab.engine.read(NAMESPACE, "f1")
    assert run.state.channels == {"c": 1}
    late = await lab.finish(waiting, wait_for("all"))
    assert late.accepted  # it was
    assert (await lab.finish(waiting, kind=ResultKind.RETURNED)).reason == "stale"
    await lab.finish(executing, complete())


async def test_any_condition(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}})
    await lab.do(wait_for("any", {"id": "late", "timer_seconds": 60}, {"id": "m", "channel": "c"}))
    assert list(await lab.timers()) != []
    await lab.skip_to("s1")
    executing = await lab.take_one()
    assert executing.body["conditions"] == {"late": {"satisfied": True}, "m": {"satisfied": False}}


async def test_messages_of_steps_reach_waiting_steps(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to({"step_type": "listener", "options": {"wait_for": {}}}, "speaker"))
    await lab.do(wait_for("all", {"id": "m", "channel": "c"}), "listener")
    said = {"decision": {"dead_end": True}, "publish": [{"channel": "c", "value": v} for v in (1, 2)]}
    await lab.do(said, "speaker")
    heard = await lab.take_one("listener")
    assert heard.body["conditions"]["m"]["values"] == [1]
    assert (await lab.engine.read(NAMESPACE, "f1")).state.channels == {"c": 1}


async def test_attributes_are_seen_by_what_follows(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to("second", attributes={"paid": True, "n": 1}))
    second = await lab.take_one()
    assert second.body["attributes"] == {"paid": True, "n": 1}
    run = await lab.engine.read(NAMESPACE, "f1")
    assert run.attributes == {"paid": b"true", "n": b"1"}


async def test_locked_attributes_serialise_steps(lab: Lab) -> None:
    await lab.start()
    locking = {"lock_attributes": ["stock"]}
    await lab.do(go_to(*({"step_type": name, "options": locking} for name in ("a", "b", "c")), "free"))
    assert sorted(one.step for one in await lab.take(most=9)) == ["a-1", "free-1"]


async def test_locks_pass_on_with_what_was_written(lab: Lab) -> None:
    await lab.start()
    locking = {"lock_attributes": ["stock"]}
    await lab.do(go_to(*({"step_type": "a", "options": locking} for _ in range(3))))
    for seen in ({}, {"stock": 1}, {"stock": 2}):
        (taken,) = await lab.take(most=9)
        assert taken.body["attributes"] == seen
        await lab.finish(taken, {**DEAD_END, "attributes": {"stock": seen.get("stock", 0) + 1}})
    assert await lab.status() == "completed"


async def test_a_step_can_cancel_others(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to("slow", "slow", "judge"))
    slow = await lab.take("slow")
    await lab.do({"decision": {"dead_end": True, "cancel": {"step_types": ["slow"]}}}, "judge")
    assert await lab.status() == "completed"
    assert (await lab.finish(slow[0], complete())).reason == "flow_closed"
    assert await lab.take() == []


async def test_recovery_follows_a_step_that_failed_for_good(lab: Lab) -> None:
    options = {"execute": {"retry": {"maximum_attempts": 1}}, "recovery": {"step_type": "repair"}}
    await lab.start(options=options, input=b'"x"')
    await lab.fail(await lab.take_one(), "broken")
    repair = await lab.take_one()
    assert (repair.step, repair.body["input"]) == ("repair-1", "x")
    assert repair.body["failure"]["message"] == "broken"


async def test_wait_for_may_fail_and_execute_go_on(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}, "proceed_on_wait_for_failure": True})
    await lab.fail(await lab.take_one(), "broken", non_retryable=True)
    taken = await lab.take_one()
    assert (taken.body["method"], taken.body["failure"]["message"]) == ("execute", "broken")


async def test_starting_again(lab: Lab) -> None:
    first = await lab.start(request_id="r1")
    again = await lab.start(request_id="r1", ignore_already_started=True)
    assert (again.info.run_id, again.outcome) == (first.info.run_id, "already_started")
    for fields in ({}, {"request_id": "r1"}, {"request_id": "r2", "ignore_already_started": True}):
        with pytest.raises(Refused) as refused:
            await lab.start(**fields)
        assert refused.value.reason == "flow_already_started"

    second = await lab.start(id_reuse=IdReuse.TERMINATE_RUNNING)
    assert second.info.run_number == 2
    old = await lab.engine.read(NAMESPACE, "f1", first.info.run_id)
    assert old.state.status == "terminated"
    (taken,) = await lab.take(most=9)
    assert taken.body["run_id"] == second.info.run_id
    await lab.finish(taken, complete())
    with pytest.raises(Refused):
        await lab.start(id_reuse=IdReuse.IF_PREVIOUS_FAILED)
    with pytest.raises(Refused):
        await lab.start(id_reuse=IdReuse.NEVER)
    assert (await lab.start()).info.run_number == 3


async def test_retention_removes_runs_one_by_one(lab: Lab) -> None:
    first = await lab.start()
    await lab.do(complete())
    second = await lab.start()
    await lab.do(complete())
    running = await lab.start(flow_id="f2")
    keys, retention = lab.store.keys, FlowRetention(lab.store)
    far = 1 << 50

    async def keep(cutoff_ms: int) -> int:
        return sum([await retention.keep(p, {NAMESPACE: cutoff_ms}) for p in range(keys.partitions)])

    assert await keep(0) == 0
    closed_at = (await lab.engine.read(NAMESPACE, "f1", first.info.run_id)).state.closed_at_ms
    second_closed_at = (await lab.engine.read(NAMESPACE, "f1")).state.closed_at_ms
    if closed_at < second_closed_at:
        assert await keep(second_closed_at) == 1
        assert await lab.engine.current_run(NAMESPACE, "f1") == second.info.run_id
    await keep(far)
    assert await keep(far) == 0
    with pytest.raises(Refused):
        await lab.engine.read(NAMESPACE, "f1")
    assert await lab.engine.current_run(NAMESPACE, "f2") == running.info.run_id
    await lab.engine.stop(NAMESPACE, "f2", StopType.TERMINATE, "", False)
    assert await keep(far) == 1
    left = {"q", "b", "queues", "cur", "nq", "ty", "touch", "rate", "gen"}
    assert await lab.remains() <= left
