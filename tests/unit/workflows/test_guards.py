"""Who may answer a task, and what everybody else is told (server-behaviour 5.4, 5.8)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.errors import Refused
from cluster.ids import AttemptId, TaskId, TaskKind, parse_task_id
from cluster.workflows import guards
from cluster.workflows.records import Lease, Run, RunStatus
from tests.unit.workflows.simulation import (
    COMPLETE,
    FAIL,
    LEASE_MS,
    RUN_ID,
    START_US,
    Simulation,
    activity,
    timer,
)

OTHER_RUN = "01KB8M3V6T5Q0Z9W2N4X7C1D1G"
FIRST = TaskId(RUN_ID, TaskKind.ACTIVITY, 1)


def check_task(sim: Simulation, **changed: Any) -> None:
    sent: dict[str, Any] = {
        "task": parse_task_id(sim.task_id()),
        "namespace": "orders",
        "owner": "worker-1",
        "attempt": 1,
        "now_ms": sim.now_ms,
        **changed,
    }
    guards.workflow_task(sim.run, sim.task_lease(), **sent)


def refused(sim: Simulation, **changed: Any) -> Refused:
    with pytest.raises(Refused) as found:
        check_task(sim, **changed)
    return found.value


def test_the_holder_may_answer() -> None:
    sim = Simulation()
    sim.claim()
    check_task(sim)
    sim.advance(LEASE_MS / 1000 - 0.001)
    check_task(sim)


@pytest.mark.parametrize(
    "changed", [{"namespace": "other"}, {"task": TaskId(RUN_ID, TaskKind.WORKFLOW, 2)}, {"namespace": ""}]
)
def test_an_unknown_task(changed: dict[str, Any]) -> None:
    sim = Simulation()
    sim.claim()
    refusal = refused(sim, **changed)
    assert (refusal.reason, refusal.status) == ("task_not_found", 404)
    assert refusal.fields == {
        "task_id": str(changed.get("task", sim.task_id())),
        "workflow_task_attempt": 1,
    }


def test_a_task_that_is_not_leased() -> None:
    sim = Simulation()
    assert refused(sim).fields["task_status"] == "ready"
    sim.complete(timer(0))
    sim.claim()
    first = TaskId(RUN_ID, TaskKind.WORKFLOW, 1)
    refusal = refused(sim, task=first)
    assert (refusal.reason, refusal.status) == ("task_not_leased", 409)
    assert refusal.fields["task_status"] == "completed"
    sim.fail_task({"type": "X", "message": "x"})
    assert refused(sim).fields["task_status"] == "failed"


def test_expiry_comes_before_the_owner_and_the_owner_before_the_attempt() -> None:
    sim = Simulation()
    sim.claim()
    both = {"owner": "worker-2", "attempt": 9}
    refusal = refused(sim, **both)
    assert (refusal.reason, refusal.status) == ("lease_owner_mismatch", 409)
    assert refusal.fields == {
        "task_id": f"{RUN_ID}-w1",
        "workflow_task_attempt": 9,
        "lease_owner": "worker-1",
    }
    refusal = refused(sim, attempt=9)
    assert refusal.reason == "workflow_task_attempt_mismatch"
    assert refusal.fields["current_attempt"] == 1
    sim.advance(LEASE_MS / 1000)
    refusal = refused(sim, **both)
    assert refusal.reason == "lease_expired"
    assert refusal.fields["task_status"] == "leased"
    assert refusal.fields["lease_owner"] == "worker-1"
    assert refusal.fields["lease_expires_at"] == "2025-11-30T12:01:00.123000Z"


@pytest.mark.parametrize(
    ("status", "closed_reason", "stop_reason", "task_status", "cancelled"),
    [
        (RunStatus.COMPLETED, "completed", "run_completed", "completed", False),
        (RunStatus.FAILED, "failed", "run_failed", "failed", False),
        (RunStatus.FAILED, "timed_out", "run_failed", "cancelled", False),
        (RunStatus.CANCELLED, "cancelled", "run_cancelled", "cancelled", True),
        (RunStatus.TERMINATED, "terminated", "run_terminated", "cancelled", True),
    ],
)
def test_a_closed_run_says_why(
    status: RunStatus, closed_reason: str, stop_reason: str, task_status: str, cancelled: bool
) -> None:
    sim = closed(status, closed_reason)
    refusal = refused(sim)
    assert (refusal.reason, refusal.status) == ("run_closed", 409)
    assert refusal.fields == {
        "task_id": f"{RUN_ID}-w1",
        "workflow_task_attempt": 1,
        "stop_reason": stop_reason,
        "cancel_requested": cancelled,
        "can_continue": False,
        "run_status": status.value,
        "run_closed_reason": closed_reason,
        "run_closed_at": "2025-11-30T12:00:00.123000Z",
        "task_status": task_status,
        "lease_owner": "worker-1",
        "lease_expires_at": None,
    }


def closed(status: RunStatus, reason: str) -> Simulation:
    """A run with one activity that was closed while its workflow task was leased."""
    sim = Simulation()
    state = replace(
        sim.state, status=status, closed_reason=reason, closed_at_us=START_US, next_step=2, task_open=False
    )
    sim.run = Run(info=sim.run.info, state=state, version=2)
    sim.tasks.clear()
    return sim


def attempt(number: int = 1, delivery: int = 0, step: int = 1, run_id: str = RUN_ID) -> AttemptId:
    return AttemptId(TaskId(run_id, TaskKind.ACTIVITY, step), number, delivery)


def activity_sim(**fields: Any) -> Simulation:
    sim = Simulation()
    sim.complete(activity(**fields), activity(), timer(60))
    sim.claim_activity(1)
    return sim


def check_activity(sim: Simulation, **changed: Any) -> None:
    sent: dict[str, Any] = {
        "task": FIRST,
        "attempt": attempt(),
        "namespace": "orders",
        "owner": "worker-1",
        **changed,
    }
    guards.activity_task(sim.run, sim.lease(str(sent["task"])), **sent)


def beat(sim: Simulation, **changed: Any) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "task": FIRST,
        "attempt": attempt(),
        "namespace": "orders",
        "owner": "worker-1",
        **changed,
    }
    return guards.activity_heartbeat(sim.run, sim.lease(str(sent["task"])), **sent)


@pytest.mark.parametrize(
    ("changed", "reason", "status"),
    [
        ({"namespace": "other"}, "task_not_found", 404),
        ({"task": TaskId(RUN_ID, TaskKind.ACTIVITY, 4)}, "task_not_found", 404),
        ({"attempt": attempt(2)}, "attempt_not_found", 404),
        ({"attempt": attempt(step=9)}, "attempt_not_found", 404),
        ({"attempt": attempt(step=2)}, "task_mismatch", 409),
        ({"attempt": attempt(run_id=OTHER_RUN)}, "task_mismatch", 409),
        ({"owner": "worker-2"}, "lease_owner_mismatch", 409),
        ({"attempt": attempt(1, 1)}, "stale_attempt", 409),
        ({"task": TaskId(RUN_ID, TaskKind.ACTIVITY, 2), "attempt": attempt(step=2)}, "stale_attempt", 409),
    ],
)
def test_who_may_not_answer_an_activity(changed: dict[str, Any], reason: str, status: int) -> None:
    with pytest.raises(Refused) as found:
        check_activity(activity_sim(), **changed)
    assert (found.value.reason, found.value.status) == (reason, status)
    assert found.value.fields["task_id"] == str(changed.get("task", FIRST))
    assert found.value.fields["activity_attempt_id"] == str(changed.get("attempt", attempt()))
    if status == 409 and reason != "lease_owner_mismatch":
        assert found.value.fields["recorded"] is False


def test_an_expired_lease_alone_is_no_reason() -> None:
    sim = activity_sim()
    sim.advance(100_000)
    check_activity(sim)


def test_outcomes_of_former_attempts_are_stale() -> None:
    sim = activity_sim(retry_policy={"max_attempts": 3, "backoff_seconds": [0, 5]})
    for _ in range(2):
        sim.fail_activity(1)
        with pytest.raises(Refused, match="is over") as found:
            check_activity(sim)
        assert found.value.reason == "stale_attempt"
        assert found.value.fields["outcome"] == "ignored"
        assert found.value.fields["next_task_id"] is None
        if not sim.run.activities[1].waiting:
            sim.claim_activity(1)


def test_a_second_completion_is_stale() -> None:
    sim = activity_sim()
    sim.finish_activity(1)
    with pytest.raises(Refused) as found:
        check_activity(sim)
    assert found.value.reason == "stale_attempt"


@pytest.mark.parametrize("status", [RunStatus.CANCELLED, RunStatus.TERMINATED])
def test_outcomes_of_a_stopped_run_are_ignored(status: RunStatus) -> None:
    sim = closed(status, status.value)
    with pytest.raises(Refused) as found:
        check_activity(sim)
    assert (found.value.reason, found.value.status) == (f"run_{status.value}", 409)
    assert found.value.fields == {
        "task_id": str(FIRST),
        "activity_attempt_id": str(attempt()),
        "outcome": "ignored",
        "recorded": False,
        "next_task_id": None,
        "cancel_requested": True,
        "can_continue": False,
        "run_status": status.value,
        "run_closed_reason": status.value,
        "run_closed_at": "2025-11-30T12:00:00.123000Z",
        "activity_status": "cancelled",
        "attempt_status": "cancelled",
        "task_status": "cancelled",
        "lease_owner": "worker-1",
        "lease_expires_at": None,
    }


@pytest.mark.parametrize("end", [COMPLETE, FAIL])
def test_outcomes_of_a_finished_run_pass(end: dict[str, Any]) -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.complete(end)
    check_activity(sim)


def test_a_heartbeat_of_the_holder_goes_on() -> None:
    sim = activity_sim()
    assert beat(sim) == {
        "task_id": str(FIRST),
        "activity_attempt_id": str(attempt()),
        "lease_owner": "worker-1",
        "cancel_requested": False,
        "can_continue": True,
        "reason": None,
        "run_closed_reason": None,
        "run_closed_at": None,
        "heartbeat_recorded": False,
        "lease_expires_at": "2025-11-30T12:05:00.123000Z",
        "last_heartbeat_at": None,
    }
    sim.heartbeat(1)
    assert beat(sim)["last_heartbeat_at"] == "2025-11-30T12:00:00.123000Z"


@pytest.mark.parametrize(
    ("status", "reason", "cancel"),
    [
        (RunStatus.COMPLETED, "run_closed", False),
        (RunStatus.FAILED, "run_closed", False),
        (RunStatus.CANCELLED, "run_cancelled", True),
        (RunStatus.TERMINATED, "run_terminated", True),
    ],
)
def test_a_heartbeat_of_a_closed_run_is_told_to_stop(status: RunStatus, reason: str, cancel: bool) -> None:
    answer = beat(closed(status, status.value))
    assert (answer["can_continue"], answer["reason"], answer["cancel_requested"]) == (False, reason, cancel)
    assert answer["run_closed_reason"] == status.value
    assert answer["run_closed_at"] == "2025-11-30T12:00:00.123000Z"
    assert answer["lease_owner"] == "worker-1"


def test_heartbeats_that_come_too_late() -> None:
    sim = activity_sim(retry_policy={"max_attempts": 2})
    assert beat(sim, owner="worker-2")["reason"] == "stale_task"
    assert beat(sim, task=TaskId(RUN_ID, TaskKind.ACTIVITY, 2), attempt=attempt(step=2))["reason"] == (
        "task_not_leased"
    )
    sim.fail_activity(1)
    assert beat(sim)["reason"] == "stale_attempt"
    sim.claim_activity(1)
    sim.finish_activity(1)
    assert beat(sim)["reason"] == "activity_not_running"
    with pytest.raises(Refused):
        beat(sim, namespace="other")


def test_refusals_for_ids_nobody_knows() -> None:
    assert guards.task_not_found("x").fields == {"task_id": "x"}
    assert guards.task_not_found("x", "y").fields == {"task_id": "x", "activity_attempt_id": "y"}
    assert guards.attempt_not_found("x", "y").status == 404
    assert guards.renewed(Lease(task_id="x", state="l"), 7).heartbeat_at_ms == 7
