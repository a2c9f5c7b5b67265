"""Start and end of a run."""

from __future__ import annotations

from typing import Any, assert_never

from cluster.times import iso_ms, iso_seconds
from cluster.workflows import deadlines, hosting
from cluster.workflows.activities import envelope, schedule
from cluster.workflows.changes import Arm, Changes, Disarm
from cluster.workflows.commands import Command, CompleteWorkflow, FailWorkflow, ScheduleActivity
from cluster.workflows.deadlines import RunTimeoutKind
from cluster.workflows.decision import RUN_TIMER, Decision, untouched
from cluster.workflows.events import EventType
from cluster.workflows.failures import APPLICATION, TIMEOUT
from cluster.workflows.records import Lease, Run, RunInfo, RunState, RunStatus

COMPLETED = "completed"
FAILED = "failed"
TIMED_OUT = "timed_out"


def start(info: RunInfo, now_us: int) -> Changes:
    """The first decision of a run; its state, two events and the first workflow task."""
    decision = _started(info, now_us)
    decision.open_workflow_task()
    return decision.changes()


def start_host(info: RunInfo, activity: ScheduleActivity, now_us: int) -> Changes:
    """The first decision of a run that hosts a standalone activity: it has no workflow task."""
    decision = _started(info, now_us)
    schedule(decision, activity, hosting.ONLY_STEP, None)
    decision.set(status=RunStatus.WAITING, next_step=hosting.ONLY_STEP + 1)
    return decision.changes()


def _started(info: RunInfo, now_us: int) -> Decision:
    decision = Decision(Run(info=info, state=RunState(), version=0), now_us)
    identity: dict[str, Any] = {
        "workflow_id": info.workflow_id,
        "workflow_instance_id": info.workflow_id,
        "workflow_run_id": info.run_id,
        "workflow_type": info.workflow_type,
    }
    decision.record(EventType.START_ACCEPTED, identity | {"outcome": "started_new"})
    optional = {
        "business_key": info.business_key,
        "memo": info.memo or None,
        "search_attributes": info.search_attributes or None,
        "execution_timeout_seconds": info.execution_timeout_seconds,
        "run_timeout_seconds": info.run_timeout_seconds,
        "execution_deadline_at": info.execution_deadline_ms and iso_seconds(info.execution_deadline_ms),
        "run_deadline_at": info.run_deadline_ms and iso_seconds(info.run_deadline_ms),
        "compatibility": info.marker or None,
    }
    started = identity | {"run_number": info.run_number, "task_queue": info.task_queue}
    started |= {name: value for name, value in optional.items() if value is not None}
    decision.record(EventType.WORKFLOW_STARTED, started)
    due = deadlines.run_due_ms(info)
    if due is not None:
        decision.effects.append(Arm(RUN_TIMER, due))
    return decision


def close_by_command(decision: Decision, command: Command, task_id: str) -> None:
    """Applies the terminal command of a batch."""
    match command:
        case CompleteWorkflow(result=result):
            payload: dict[str, Any] = {"output": None}
            if result is not None:
                payload = {"output": envelope(result), "payload_codec": result.codec}
            decision.close(
                RunStatus.COMPLETED,
                COMPLETED,
                EventType.WORKFLOW_COMPLETED,
                payload,
                workflow_task_id=task_id,
            )
            decision.set(output=result)
        case FailWorkflow(failure=failure):
            failure = {"failure_category": APPLICATION, "non_retryable": False} | failure
            decision.close(
                RunStatus.FAILED, FAILED, EventType.WORKFLOW_FAILED, failure, workflow_task_id=task_id
            )
            decision.set(failure=failure)
        case _:
            raise AssertionError(f"{command} does not end a run")


def run_deadline(run: Run, task_lease: Lease, now_us: int) -> Changes:
    """The run's timer fired: fails the run as timed out if a limit has come, else waits on.

    ``task_lease`` is of no weight: a leased workflow task ends with its run.
    """
    if run.state.status.closed:
        return untouched(run, Disarm(RUN_TIMER))
    decision = Decision(run, now_us, task_lease)
    kind = deadlines.run_reached(run.info, decision.now_ms)
    if kind is None:
        decision.arm(RUN_TIMER, deadlines.run_due_ms(run.info))
        return untouched(run, *decision.effects)
    match kind:
        case RunTimeoutKind.EXECUTION:
            due = run.info.execution_deadline_ms
            text = "The workflow was not over within its execution timeout."
        case RunTimeoutKind.RUN:
            due = run.info.run_deadline_ms
            text = "The run was not over within its run timeout."
        case _:
            assert_never(kind)
    failure: dict[str, Any] = {"timeout_kind": kind.value, "message": text, "failure_category": TIMEOUT}
    if due is not None:
        failure["deadline_at"] = iso_ms(due)
    decision.close(RunStatus.FAILED, TIMED_OUT, EventType.WORKFLOW_TIMED_OUT, failure)
    decision.set(failure=failure)
    return decision.changes()
