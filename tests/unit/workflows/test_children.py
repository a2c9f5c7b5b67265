"""Children: co-located, started and reported in one commit, tried again, closed by policy."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import Refused, ValidationFailed
from cluster.ids import partition_of_run, partition_of_workflow
from cluster.workflows import machine
from cluster.workflows.limits import Limits
from cluster.workflows.records import ParentRef, RetryPolicy
from tests.unit.workflows.simulation import (
    BLOB,
    COMPLETE,
    FAIL,
    PARTITIONS,
    RUN_ID,
    Simulation,
    contender,
    member,
    timer,
)

PARENT = ParentRef(workflow_id="p", run_id=RUN_ID, step=4)


def child(**fields: Any) -> dict[str, Any]:
    return {
        "type": "start_child_workflow",
        "workflow_type": "leaf",
        "arguments": {"codec": "avro", "blob": BLOB},
        **fields,
    }


def test_a_child_begins_in_its_parents_partition() -> None:
    sim = Simulation()
    sim.complete(child(queue="other", execution_timeout_seconds=50, run_timeout_seconds=20))
    (new,) = sim.children.values()
    partition = partition_of_run(RUN_ID)
    assert partition_of_run(new.info.run_id) == partition
    assert partition_of_workflow(new.info.workflow_id, PARTITIONS) == partition
    assert new.first
    assert new.info.parent == ParentRef(workflow_id="order-1", run_id=RUN_ID, step=1)
    assert new.info.task_queue == "other"
    assert new.info.run_deadline_ms == sim.now_ms + 20_000
    assert new.changes.events[1].payload["parent_workflow_run_id"] == RUN_ID
    assert sim.types[-2:] == ["ChildWorkflowScheduled", "ChildRunStarted"]
    assert sim.payload("ChildRunStarted")["child_workflow_run_id"] == new.info.run_id


def test_the_same_decision_gives_the_same_child() -> None:
    one, two = Simulation(), Simulation()
    one.complete(child())
    two.complete(child())
    assert one.children.keys() == two.children.keys()


def test_policies_are_echoed_only_when_they_were_given() -> None:
    sim = Simulation()
    sim.complete(child(), child(parent_close_policy="terminate", cancellation_policy="abandon"))
    first, second = (e["payload"] for e in sim.history if e["event_type"] == "ChildWorkflowScheduled")
    assert "parent_close_policy" not in first
    assert second["parent_close_policy"] == "terminate"
    assert second["cancellation_policy"] == "abandon"


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValidationFailed) as refused:
        Simulation().complete(child(parent_close_policy="keep"))
    assert list(refused.value.errors) == ["commands.0.parent_close_policy"]


@pytest.mark.parametrize(
    ("status", "payload", "event", "expected"),
    [
        (
            "completed",
            {"output": {"codec": "avro", "blob": BLOB}, "payload_codec": "avro"},
            "ChildRunCompleted",
            {"result": BLOB, "payload_codec": "avro"},
        ),
        ("completed", {"output": None}, "ChildRunCompleted", {"result": None}),
        ("failed", {"message": "no"}, "ChildRunFailed", {"message": "no"}),
        (
            "timed_out",
            {"message": "late", "timeout_kind": "run_timeout"},
            "ChildRunFailed",
            {"message": "late"},
        ),
        ("cancelled", {"reason": "enough"}, "ChildRunCancelled", {"message": "enough"}),
        ("terminated", {"reason": None}, "ChildRunTerminated", {"closed_reason": "terminated"}),
    ],
)
def test_the_end_of_a_child_wakes_its_parent(
    status: str, payload: dict[str, Any], event: str, expected: dict[str, Any]
) -> None:
    sim = Simulation()
    sim.complete(child())
    started = sim.payload("ChildRunStarted")
    sim.end_child(1, status, **payload)
    ended = sim.payload(event)
    assert ended["child_workflow_run_id"] == started["child_workflow_run_id"]
    assert ended["sequence"] == 1
    assert expected.items() <= ended.items()
    assert sim.task_lease().state == "r"
    assert sim.state.resume["child_call_id"] == ended["child_call_id"]
    assert sim.state.resume["open_wait_id"] == f"child:{ended['child_call_id']}"


def test_a_group_of_children_wakes_with_the_last_and_keeps_its_metadata() -> None:
    sim = Simulation()
    sim.complete(*(member(child(), 1, 3, index) for index in range(3)))
    for step in (2, 1):
        sim.end_child(step)
        assert not sim.state.task_open
    sim.end_child(3)
    assert sim.task_lease().state == "r"
    assert sim.payload("ChildRunCompleted")["parallel_group_path"][0]["parallel_group_index"] == 2


def test_nobody_is_told_twice_or_after_the_end() -> None:
    sim = Simulation()
    sim.complete(child())
    sim.end_child(1)
    assert sim.end_child(1) is None
    sim.complete(COMPLETE)
    assert sim.end_child(1) is None


def test_open_children_are_limited() -> None:
    sim = Simulation(Limits(pending_child_count=2))
    with pytest.raises(Refused, match="pending_child_count"):
        sim.complete(child(), child(), child())
    assert sim.children == {}


@pytest.mark.parametrize("how", ["complete", "cancel", "deadline"])
def test_the_close_policy_is_applied_later_and_recorded_before_the_end(how: str) -> None:
    due = None if how != "deadline" else Simulation().now_ms + 5_000
    sim = Simulation(run_deadline_ms=due)
    sim.complete(
        child(parent_close_policy="request_cancel"), child(parent_close_policy="terminate"), child(), timer(1)
    )
    sim.advance(5)
    match how:
        case "complete":
            sim.fire("t4")
            sim.complete(COMPLETE)
        case "cancel":
            sim.cancel()
        case _:
            sim.fire("r")
    applied = [e["payload"] for e in sim.history if e["event_type"] == "ParentClosePolicyApplied"]
    assert [each["parent_close_policy"] for each in applied] == ["request_cancel", "terminate"]
    assert sim.types[-1].startswith("Workflow")
    assert [(each.verb, each.parent_run_id) for each in sim.closing] == [
        ("cancel", RUN_ID),
        ("terminate", RUN_ID),
    ]


def test_a_run_that_is_a_child_reports_its_end() -> None:
    sim = Simulation(parent=PARENT)
    sim.complete(COMPLETE)
    (report,) = sim.reports
    assert report.status == "completed"
    assert report.payload["output"] == {"codec": "avro", "blob": BLOB}


@pytest.mark.parametrize(
    ("end", "status"), [("cancel", "cancelled"), ("terminate", "terminated"), ("deadline", "timed_out")]
)
def test_every_end_is_reported(end: str, status: str) -> None:
    sim = Simulation(parent=PARENT, run_deadline_ms=Simulation().now_ms + 1_000)
    sim.advance(2)
    sim.fire("r") if end == "deadline" else getattr(sim, end)()
    assert [report.status for report in sim.reports] == [status]


def test_a_child_with_tries_left_is_followed_by_the_next_and_reports_nothing() -> None:
    retry = RetryPolicy(max_attempts=3, backoff_seconds=(7,))
    sim = Simulation(parent=PARENT, retry=retry, execution_timeout_seconds=90, run_timeout_seconds=30)
    sim.complete(FAIL)
    assert sim.reports == []
    assert sim.state.status == "failed"
    (new,) = sim.children.values()
    assert not new.first
    assert new.info.attempt == 2
    assert new.info.run_number == 2
    assert new.info.parent == PARENT
    assert new.changes.state.task_waiting
    assert new.info.run_deadline_ms == sim.now_ms + 37_000


@pytest.mark.parametrize(
    ("retry", "failure"),
    [
        (RetryPolicy(max_attempts=1), FAIL),
        (RetryPolicy(max_attempts=3, non_retryable_error_types=("OutOfStock",)), FAIL),
        (RetryPolicy(max_attempts=3), {**FAIL, "non_retryable": True}),
    ],
)
def test_a_child_without_tries_left_reports(retry: RetryPolicy, failure: dict[str, Any]) -> None:
    sim = Simulation(parent=PARENT, retry=retry)
    sim.complete(failure)
    assert sim.children == {}
    assert [report.status for report in sim.reports] == ["failed"]


def test_an_execution_timeout_is_final_a_run_timeout_is_not() -> None:
    now = Simulation().now_ms
    retry = RetryPolicy(max_attempts=3)
    for due, again in (("run_deadline_ms", 1), ("execution_deadline_ms", 0)):
        sim = Simulation(None, parent=PARENT, retry=retry, **{due: now + 1_000})
        sim.advance(1)
        sim.fire("r")
        assert len(sim.children) == again
        assert len(sim.reports) == 1 - again


# -- continue-as-new ------------------------------------------------------------------------


def again(**fields: Any) -> dict[str, Any]:
    return {"type": "continue_as_new", "arguments": {"codec": "avro", "blob": BLOB}, **fields}


def test_continue_as_new_begins_the_next_run_in_the_same_commit() -> None:
    deadline = Simulation().now_ms + 60_000
    sim = Simulation(
        memo={"a": 1},
        search_attributes={"S": "x"},
        business_key="b",
        run_timeout_seconds=30,
        execution_deadline_ms=deadline,
    )
    sim.advance(10)
    sim.complete({"type": "upsert_search_attributes", "attributes": {"T": 2}}, again(queue="q2"))
    assert sim.state.status == "completed"
    assert sim.state.closed_reason == "continued"
    (new,) = sim.children.values()
    assert sim.payload("WorkflowContinuedAsNew")["continued_to_run_id"] == new.info.run_id
    assert new.info.workflow_id == "order-1"
    assert new.info.run_number == 2
    assert new.info.task_queue == "q2"
    assert new.info.workflow_type == "fulfil"
    assert new.info.memo == {"a": 1}
    assert new.info.search_attributes == {"S": "x", "T": 2}
    assert new.info.execution_deadline_ms == deadline
    assert new.info.run_deadline_ms == sim.now_ms + 30_000
    assert new.info.continued_from == RUN_ID


def test_a_child_that_goes_on_reports_nothing_yet() -> None:
    sim = Simulation(parent=PARENT)
    sim.complete(again())
    (new,) = sim.children.values()
    assert sim.reports == []
    assert new.info.parent == PARENT


def test_signals_no_task_has_seen_go_along() -> None:
    sim = Simulation()
    sim.complete(timer(1))
    sim.advance(1)
    sim.fire("t1")
    sim.claim()
    sim.signal("late")
    sim.update()
    sim.complete(again())
    (new,) = sim.children.values()
    assert sim.last.signals_to == new.info.run_id
    assert "SignalReceived" not in sim.types
    assert "UpdateAccepted" in sim.types
    assert new.changes.state.history_length == 3
    assert new.changes.state.signals == 1


def test_there_is_one_end_only() -> None:
    with pytest.raises(Refused) as refused:
        Simulation().complete(again(), COMPLETE)
    assert refused.value.reason == "invalid_commands"


# -- races ----------------------------------------------------------------------------------


def test_the_first_member_decides_and_the_others_still_wake() -> None:
    sim = Simulation()
    sim.complete(contender(child(), 1, 2, 0, kind="child"), contender(timer(5), 1, 2, 1))
    sim.end_child(1)
    ended, resolved = sim.history[-2:]
    assert resolved["event_type"] == "SelectionResolved"
    said = resolved["payload"]
    assert said["resolution_event_id"] == ended["id"]
    assert said["resolution_event_type"] == "ChildRunCompleted"
    assert said["operation_identity"] == ended["payload"]["child_workflow_run_id"]
    assert (said["member_key"], said["outcome"]) == ("m0", "completed")
    sim.complete(timer(60))
    sim.advance(5)
    sim.fire("t2")
    assert sim.types.count("SelectionResolved") == 1
    assert sim.task_lease().state == "r"
    assert sim.state.races == {}


def test_a_race_decided_during_a_leased_task_names_the_event_that_waited() -> None:
    sim = Simulation()
    sim.complete(contender(timer(3), 1, 2, 0), contender(timer(9), 1, 2, 1))
    sim.signal()
    sim.claim()
    sim.advance(3)
    sim.fire("t1")
    sim.fail_task({"type": "WorkflowTaskWaitingForHistory", "message": "-"})
    fired, resolved = sim.history[-2:]
    assert resolved["payload"]["resolution_event_id"] == fired["id"] == f"{RUN_ID}-p1"


def test_a_member_that_fails_decides_too() -> None:
    sim = Simulation()
    sim.complete(contender(child(), 1, 2, 0, kind="child"), contender(timer(5), 1, 2, 1))
    sim.end_child(1, "failed", message="no")
    assert sim.payload("SelectionResolved")["outcome"] == "failed"


def nested(index: int, inner: int) -> dict[str, Any]:
    command: dict[str, Any] = contender(timer(2 + inner), 1, 3, index, kind="group", key="both")
    outer = command["parallel_group_path"][0] | {
        "selection_member_index": 0,
        "selection_member_base_sequence": 1,
        "selection_member_size": 2,
    }
    inside = {
        "parallel_group_base_sequence": 1,
        "parallel_group_size": 2,
        "parallel_group_index": inner,
    }
    return {**command, **inside, "parallel_group_path": [outer, inside]}


def test_a_list_decides_when_all_of_it_is_over() -> None:
    sim = Simulation()
    sim.complete(nested(0, 0), nested(1, 1), contender(timer(30), 1, 3, 2))
    sim.advance(2)
    sim.fire("t1")
    assert not sim.state.task_open
    sim.advance(1)
    sim.fire("t2")
    assert sim.payload("SelectionResolved")["operation_identity"] == "group:1:2"


def cancel(base: int, size: int = 1) -> dict[str, Any]:
    return {
        "type": "cancel_selection_operation",
        "selection_group_id": "select-calls:1:2",
        "member_key": 1,
        "member_index": 1,
        "member_base_sequence": base,
        "member_size": size,
        "operation_kind": "timer",
        "operation_identity": f"{RUN_ID}-t{base}",
    }


@pytest.mark.parametrize(
    "loser",
    [
        contender(timer(30), 1, 2, 1),
        contender({"type": "schedule_activity", "activity_type": "charge"}, 1, 2, 1, kind="activity"),
        contender(child(), 1, 2, 1, kind="child"),
        contender({"type": "open_condition_wait", "timeout_seconds": 50}, 1, 2, 1, kind="condition"),
    ],
)
def test_a_loser_can_be_cancelled(loser: dict[str, Any]) -> None:
    sim = Simulation()
    sim.complete(contender(timer(1), 1, 2, 0), loser)
    sim.advance(1)
    sim.fire("t1")
    sim.cancelled.add(2)
    sim.complete(cancel(2))
    assert sim.payload("SelectionOperationCancelled")["operation_identity"] == f"{RUN_ID}-t2"
    assert sim.state.races == {}
    assert sim.task_lease().state == "r"
    assert len(sim.closing) == (loser["type"] == "start_child_workflow")
    before = len(sim.history)
    sim.complete(cancel(2))
    assert len(sim.history) == before


def test_a_wait_in_a_race_is_not_closed_by_other_commands() -> None:
    sim = Simulation()
    waiting = {"type": "open_condition_wait", "timeout_seconds": 50}
    sim.complete(contender(timer(1), 1, 2, 0), contender(waiting, 1, 2, 1, kind="condition"))
    sim.advance(1)
    sim.fire("t1")
    sim.complete(timer(5))
    assert [wait.step for wait in sim.state.waits] == [2]


def test_only_its_timeout_decides_a_wait_in_a_race() -> None:
    """Nobody can evaluate the condition once it stands in a race (sdk-wire 4.7): a signal wakes, no more."""
    sim = Simulation()
    waiting = {"type": "open_condition_wait", "timeout_seconds": 50}
    sim.complete(contender(timer(90), 1, 2, 0), contender(waiting, 1, 2, 1, kind="condition"))
    sim.signal("go")
    assert "SelectionResolved" not in sim.types
    sim.complete(timer(600))
    sim.advance(50)
    sim.fire("q2")
    resolved = sim.payload("SelectionResolved")
    assert (resolved["operation_kind"], resolved["outcome"]) == ("condition", "completed")
    assert resolved["operation_identity"] == f"{RUN_ID}-q2"
    assert resolved["resolution_event_type"] == "ConditionWaitTimedOut"
    assert "ConditionWaitSatisfied" not in sim.types
    assert sim.task_lease().state == "r"


def test_children_draw_ids_for_any_number_of_partitions() -> None:
    for partitions in (1, 2, 16, 1000):
        sim = Simulation()
        partition = partition_of_run(RUN_ID) or 0
        if partition >= partitions:
            continue
        sim.claim()
        from cluster.workflows.commands import normalise

        changes = machine.complete_workflow_task(
            sim.run, sim.task_lease(), normalise([child()]), sim.now_us, sim.limits, partitions
        )
        assert partition_of_workflow(changes.starts[0].info.workflow_id, partitions) == partition
