"""Workflow tasks: complete, fail, release, lapse, back off; start and end of a run."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.errors import Refused
from cluster.workflows import machine, retry
from cluster.workflows.changes import Arm, Disarm, DropTask, ReadyWorkflowTask, Requeue
from cluster.workflows.commands import normalise
from cluster.workflows.events import resume_context
from cluster.workflows.records import PendingEvent, RunStatus
from tests.unit.workflows.simulation import (
    BLOB,
    COMPLETE,
    FAIL,
    RUN_ID,
    START_US,
    WAITING,
    Simulation,
    activity,
    member,
    timer,
)

BROKEN = {"type": "NonDeterministicReplayError", "message": "replay failed"}


def test_a_run_starts_with_two_events_and_its_first_task() -> None:
    sim = Simulation(business_key="k-9", marker="build-a", run_timeout_seconds=600)
    assert sim.types == ["StartAccepted", "WorkflowStarted"]
    started = sim.payload("WorkflowStarted")
    assert started["workflow_id"] == started["workflow_instance_id"] == "order-1"
    assert started["workflow_run_id"] == RUN_ID
    assert started["workflow_type"] == "fulfil"
    assert started["business_key"] == "k-9"
    assert started["compatibility"] == "build-a"
    assert started["run_timeout_seconds"] == 600
    assert "memo" not in started
    assert sim.history[1]["recorded_at"] == "2025-11-30T12:00:00.123000Z"
    assert sim.history[1]["id"] == f"{RUN_ID}-e2"
    assert sim.last.effects == [ReadyWorkflowTask(1)]
    assert sim.state.status is RunStatus.PENDING


def test_a_run_with_limits_arms_the_earlier_one() -> None:
    start_ms = START_US // 1000
    sim = Simulation(run_deadline_ms=start_ms + 600_000, execution_deadline_ms=start_ms + 300_000)
    assert sim.timers["r"] == start_ms + 300_000


def test_the_status_is_pending_until_the_first_completion() -> None:
    sim = Simulation()
    sim.claim()
    seen = [sim.state.status]
    sim.complete(timer())
    seen.append(sim.state.status)
    assert seen == [RunStatus.PENDING, RunStatus.WAITING]


def test_completing_answers_with_what_was_created() -> None:
    sim = Simulation()
    changes = sim.complete(activity(), timer(7), {"type": "record_side_effect", "result": BLOB})
    assert changes.outcome == {
        "task_id": f"{RUN_ID}-w1",
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": True,
        "run_id": RUN_ID,
        "run_status": "waiting",
        "created_task_ids": [f"{RUN_ID}-a1", f"{RUN_ID}-t2"],
        "reason": None,
    }
    assert sim.history[2]["workflow_task_id"] == f"{RUN_ID}-w1"


def test_markers_leave_an_event_and_no_task() -> None:
    sim = Simulation()
    changes = sim.complete(
        {"type": "record_side_effect", "result": BLOB},
        {
            "type": "record_version_marker",
            "change_id": "p1",
            "version": 1,
            "min_supported": -1,
            "max_supported": 1,
        },
    )
    assert sim.payload("SideEffectRecorded") == {"sequence": 1, "result": BLOB, "payload_codec": "avro"}
    assert sim.payload("VersionMarkerRecorded") == {
        "sequence": 2,
        "change_id": "p1",
        "version": 1,
        "min_supported": -1,
        "max_supported": 1,
    }
    assert changes.outcome["created_task_ids"] == []


def test_absent_values_give_no_codec() -> None:
    sim = Simulation()
    sim.complete(
        {"type": "record_side_effect"},
        {"type": "record_version_marker", "change_id": "p", "version": 3},
        {"type": "complete_workflow"},
    )
    assert sim.payload("SideEffectRecorded") == {"sequence": 1, "result": None}
    assert sim.payload("VersionMarkerRecorded")["min_supported"] == 3
    assert sim.payload("WorkflowCompleted") == {"output": None}


def test_completing_a_run_drops_everything_that_is_open() -> None:
    sim = Simulation(run_deadline_ms=START_US // 1000 + 600_000)
    sim.complete(
        activity(), activity(retry_policy={"max_attempts": 2, "backoff_seconds": [9]}), timer(), timer(0)
    )
    sim.claim_activity(1)
    sim.claim_activity(2)
    sim.fail_activity(2)
    changes = sim.complete(COMPLETE)
    assert sim.types[-1] == "WorkflowCompleted"
    assert sim.payload("WorkflowCompleted") == {
        "output": {"codec": "avro", "blob": BLOB},
        "payload_codec": "avro",
    }
    assert changes.closes
    assert changes.effects == [
        Disarm("r"),
        DropTask(f"{RUN_ID}-w2"),
        DropTask(f"{RUN_ID}-a1"),
        Disarm("a2"),
        Disarm("t3"),
    ]
    assert changes.outcome["run_status"] == "completed"
    assert sim.state.closed_reason == "completed"
    assert sim.state.closed_at_us == sim.now_us
    assert sim.state.output is not None


def test_closing_does_not_need_the_open_items() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(), timer(0))
    sim.claim()
    bare = replace(sim.run, activities={}, timers={})
    changes = machine.complete_workflow_task(
        bare, sim.task_lease(), normalise([COMPLETE]), sim.now_us, sim.limits
    )
    assert Disarm("a1") in changes.effects
    assert DropTask(f"{RUN_ID}-a1") in changes.effects
    assert changes.activities == {1: None}
    assert changes.timers == {2: None}


def test_the_terminal_command_is_applied_last_wherever_it_stood() -> None:
    sim = Simulation()
    changes = sim.complete(COMPLETE, activity(), timer(), {"type": "record_side_effect", "result": BLOB})
    assert sim.types[2:] == ["ActivityScheduled", "TimerScheduled", "SideEffectRecorded", "WorkflowCompleted"]
    assert changes.outcome["created_task_ids"] == []


def test_failing_a_run_keeps_the_failure() -> None:
    sim = Simulation()
    exception = {"type": "OutOfStock", "message": "no stock"}
    changes = sim.complete({**FAIL, "exception": exception, "failed_step_sequence": 1, "non_retryable": True})
    assert sim.state.status is RunStatus.FAILED
    assert sim.state.closed_reason == "failed"
    assert changes.outcome["run_status"] == "failed"
    assert (
        sim.payload("WorkflowFailed")
        == sim.state.failure
        == {
            "failure_category": "application",
            "message": "no stock",
            "exception_type": "OutOfStock",
            "exception": exception,
            "failed_step_sequence": 1,
            "non_retryable": True,
        }
    )


@pytest.mark.parametrize("second", [COMPLETE, FAIL])
def test_two_terminal_commands_are_refused(second: dict[str, Any]) -> None:
    sim = Simulation()
    with pytest.raises(Refused) as refused:
        sim.complete(COMPLETE, second)
    assert (refused.value.reason, refused.value.status) == ("invalid_commands", 409)
    assert refused.value.fields["recorded"] is False
    assert refused.value.fields["task_id"] == f"{RUN_ID}-w1"
    assert sim.types == ["StartAccepted", "WorkflowStarted"]


def test_a_completion_after_the_deadline_times_the_run_out() -> None:
    sim = Simulation(run_deadline_ms=START_US // 1000 + 10_000)
    sim.claim()
    sim.advance(10)
    changes = sim.complete(COMPLETE)
    assert changes.refusal is not None
    assert changes.refusal.reason == "run_timed_out"
    assert changes.refusal.fields["run_status"] == "failed"
    assert sim.types[-1] == "WorkflowTimedOut"
    assert sim.state.closed_reason == "timed_out"


@pytest.mark.parametrize(
    ("execution", "run", "kind"),
    [
        (None, 10, "run_timeout"),
        (10, None, "execution_timeout"),
        (5, 10, "execution_timeout"),
        (10, 5, "run_timeout"),
        (5, 5, "execution_timeout"),
    ],
)
def test_a_run_times_out_by_its_earlier_limit(execution: int | None, run: int | None, kind: str) -> None:
    def due(seconds: int | None) -> int | None:
        return None if seconds is None else START_US // 1000 + seconds * 1000

    sim = Simulation(execution_deadline_ms=due(execution), run_deadline_ms=due(run))
    sim.complete(activity(), timer())
    sim.advance(10)
    changes = sim.fire("r")
    assert changes.closes
    assert sim.types[-1] == "WorkflowTimedOut"
    assert sim.payload("WorkflowTimedOut")["timeout_kind"] == kind
    assert sim.state.status is RunStatus.FAILED
    assert sim.fire("r").effects == [Disarm("r")]


def test_a_run_timer_that_is_early_is_set_again() -> None:
    due = START_US // 1000 + 10_000
    sim = Simulation(run_deadline_ms=due)
    sim.advance(9)
    assert sim.fire("r").effects == [Arm("r", due)]


def test_the_deadline_of_a_run_ends_its_leased_task_and_keeps_what_was_pending() -> None:
    sim = Simulation(run_deadline_ms=START_US // 1000 + 10_000)
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.finish_activity(1)
    sim.advance(10)
    sim.fire("r")
    assert sim.types[-3:] == ["ActivityStarted", "ActivityCompleted", "WorkflowTimedOut"]


def test_a_leased_history_is_frozen_and_the_wake_follows() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.claim()
    assert sim.finish_activity(1).outcome["next_task_id"] is None
    assert [event.event_type for _, event in sim.waiting] == ["ActivityStarted", "ActivityCompleted"]
    changes = sim.complete(timer(60))
    assert sim.types[-3:] == ["TimerScheduled", "ActivityStarted", "ActivityCompleted"]
    assert changes.outcome["created_task_ids"] == [f"{RUN_ID}-w3", f"{RUN_ID}-t3"]
    assert sim.state.resume["resume_source_id"] == f"{RUN_ID}-a1"


def test_a_ready_task_needs_no_second_one() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(5), timer(0))
    sim.claim_activity(1)
    assert sim.finish_activity(1).outcome["next_task_id"] is None
    assert sim.types[-1] == "ActivityCompleted"
    assert sim.state.task_index == 2


def test_waiting_for_history_is_a_normal_release() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    changes = sim.fail_task(WAITING)
    assert changes.outcome == {
        "task_id": f"{RUN_ID}-w2",
        "workflow_task_attempt": 1,
        "outcome": "failed",
        "recorded": True,
        "reason": None,
        "next_task_id": None,
    }
    assert sim.state.status is RunStatus.WAITING
    assert not sim.state.task_open
    assert sim.state.last_task_failure is None
    sim.claim_activity(1)
    assert sim.finish_activity(1).outcome["next_task_id"] == f"{RUN_ID}-w3"


def test_a_release_is_followed_by_a_task_when_something_came_meanwhile() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.finish_activity(1)
    sim.fail_task(WAITING)
    assert sim.types[-1] == "ActivityCompleted"
    assert sim.state.task_open
    assert sim.state.task_index == 3


def test_a_release_after_a_cosmetic_event_opens_no_task() -> None:
    sim = Simulation()
    sim.complete(activity(retry_policy={"max_attempts": 2}), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.fail_activity(1)
    sim.fail_task(WAITING)
    assert sim.types[-1] == "ActivityRetryScheduled"
    assert not sim.state.task_open


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (10, 60), (11, 60), (5000, 60)]
)
def test_the_back_off_of_failing_tasks(failures: int, seconds: int) -> None:
    assert retry.workflow_task_delay(failures) == seconds


def test_a_failed_task_backs_off_and_comes_again_under_the_same_index() -> None:
    sim = Simulation()
    sim.fail_task(BROKEN)
    assert sim.last.effects == [DropTask(f"{RUN_ID}-w1"), Arm("w", sim.now_ms + 1000)]
    assert sim.state.last_task_failure == BROKEN
    assert sim.state.status is RunStatus.PENDING
    sim.advance(1)
    assert sim.fire("w").effects == [Disarm("w"), ReadyWorkflowTask(1, 2)]
    sim.fail_task(BROKEN)
    assert sim.state.task_failures == 2
    assert sim.timers["w"] == sim.now_ms + 2000
    sim.advance(2)
    sim.fire("w")
    assert sim.task_lease().attempt == 3
    sim.complete(timer())
    assert sim.state.task_failures == 0
    assert sim.state.last_task_failure is None


def test_events_during_a_back_off_are_written_and_do_not_shorten_it() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.fail_task(BROKEN)
    assert sim.finish_activity(1).outcome["next_task_id"] is None
    assert sim.types[-1] == "ActivityCompleted"
    assert sim.tasks == {}
    sim.advance(1)
    sim.fire("w")
    assert sim.task_lease().attempt == 2


def test_a_failure_after_pending_events_writes_them() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.finish_activity(1)
    sim.fail_task(BROKEN)
    assert sim.types[-1] == "ActivityCompleted"
    assert sim.state.task_index == 2


def test_the_back_off_timer_of_a_task_that_is_gone_does_nothing() -> None:
    sim = Simulation()
    assert sim.fire("w").effects == [Disarm("w")]


def test_a_lapsed_task_is_ready_again_with_what_came_meanwhile() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.finish_activity(1)
    sim.advance(60)
    assert sim.lapse_task().effects == [Requeue(f"{RUN_ID}-w2", 2)]
    assert sim.types[-2:] == ["ActivityCompleted", "RepairRequested"]
    assert sim.payload("RepairRequested")["metadata"] == {"trigger": "expired_workflow_task_lease"}
    assert sim.state.task_attempt == 2
    assert sim.claim().attempt == 2


def test_the_lease_of_a_task_that_is_gone_is_dropped() -> None:
    sim = Simulation()
    old = sim.claim()
    sim.complete(timer())
    changes = machine.workflow_task_lapsed(sim.run, old, sim.now_us)
    assert changes.effects == [DropTask(f"{RUN_ID}-w1")]
    assert changes.state == sim.state


def test_the_task_says_what_it_resumes() -> None:
    sim = Simulation()
    sim.complete(timer(5))
    sim.advance(5)
    sim.fire("t1")
    assert sim.state.resume == {
        "workflow_wait_kind": "timer",
        "open_wait_id": f"timer:{RUN_ID}-t1",
        "resume_source_kind": "timer",
        "resume_source_id": f"{RUN_ID}-t1",
        "timer_id": f"{RUN_ID}-t1",
        "workflow_sequence": 1,
        "workflow_event_type": "TimerFired",
    }
    sim.complete(activity())
    assert sim.state.resume == {}
    sim.claim_activity(2)
    sim.finish_activity(2)
    assert sim.state.resume == {
        "workflow_wait_kind": "activity",
        "open_wait_id": f"activity:{RUN_ID}-a2",
        "resume_source_kind": "activity_execution",
        "resume_source_id": f"{RUN_ID}-a2",
        "activity_execution_id": f"{RUN_ID}-a2",
        "activity_attempt_id": f"{RUN_ID}-a2-1.0",
        "activity_type": "charge",
        "workflow_sequence": 2,
        "workflow_event_type": "ActivityCompleted",
    }


def test_other_events_have_no_resume_context() -> None:
    assert resume_context(PendingEvent(event_type="RepairRequested", payload={}, recorded_at_us=1)) == {}


def test_timers_without_delay_fire_after_the_last_command() -> None:
    sim = Simulation()
    changes = sim.complete(timer(0), activity())
    assert sim.types[2:] == ["TimerScheduled", "ActivityScheduled", "TimerFired"]
    assert changes.outcome["created_task_ids"] == [f"{RUN_ID}-a2", f"{RUN_ID}-w2"]


def test_a_group_that_leaves_out_too_many_steps_is_refused() -> None:
    sim = Simulation()
    with pytest.raises(Refused, match="sequence 2000 where 1 is next") as refused:
        sim.complete(member(timer(), 2000, 1, 0))
    assert refused.value.reason == "invalid_commands"
