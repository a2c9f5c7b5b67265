"""The end of a run: by a command of its worker, by a client, by its timeouts.

A run that ends with a retry policy and attempts left, or by continue-as-new, is followed by the
next run of the same workflow id, begun in the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from cluster.times import iso_ms
from cluster.workflows import activities, deadlines, retry, starting, timers
from cluster.workflows.changes import Changes, Disarm
from cluster.workflows.command_records import CompleteWorkflow, ContinueAsNew, FailWorkflow
from cluster.workflows.commands import Command
from cluster.workflows.deadlines import RunTimeoutKind
from cluster.workflows.decision import Decision, untouched
from cluster.workflows.events import EventType
from cluster.workflows.failures import APPLICATION, STRUCTURAL_LIMIT, TIMEOUT, envelope
from cluster.workflows.limits import Limits, is_too_long
from cluster.workflows.names import RUN_TIMER
from cluster.workflows.records import Lease, Run, RunInfo, RunStatus

COMPLETED = "completed"
FAILED = "failed"
TIMED_OUT = "timed_out"
TOO_LONG = "history_limit_exceeded"
CONTINUED = "continued"


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
            _fail(decision, FAILED, EventType.WORKFLOW_FAILED, failure, task_id)
        case ContinueAsNew():
            _continue(decision, command, task_id)
        case _:
            raise AssertionError(f"{command} does not end a run")


def _continue(decision: Decision, command: ContinueAsNew, task_id: str) -> None:
    """Ends the run and begins the next one. Signals no task has seen go along: none is lost."""
    info = decision.info
    changed: dict[str, Any] = {
        "workflow_type": command.workflow_type or info.workflow_type,
        "task_queue": command.queue or info.task_queue,
        "attempt": 1,
    }
    if command.arguments is not None:
        changed |= {"input": command.arguments, "payload_codec": command.arguments.codec}
    signals = decision.state.pending_signals
    following = starting.next_run(info, decision.now_us, signals=signals, **changed)
    decision.hand_over(following)
    payload = {
        "continued_to_run_id": following.info.run_id,
        "closed_reason": CONTINUED,
        "workflow_type": following.info.workflow_type,
        "task_queue": following.info.task_queue,
    }
    decision.close(
        RunStatus.COMPLETED,
        CONTINUED,
        EventType.WORKFLOW_CONTINUED_AS_NEW,
        payload,
        workflow_task_id=task_id,
        continued=True,
    )


def _fail(
    decision: Decision,
    reason: str,
    event: EventType,
    failure: Mapping[str, Any],
    task_id: str | None,
    *,
    retryable: bool = True,
) -> None:
    """Ends the run as failed; one with tries left is followed by the next try."""
    info = decision.info
    delay = retry.run_delay(info, failure) if retryable else None
    payload = dict(failure)
    if delay is not None:
        following = starting.next_run(info, decision.now_us, delay_seconds=delay, attempt=info.attempt + 1)
        decision.starts.append(following)
        payload |= {"retried_as_run_id": following.info.run_id, "retry_delay_seconds": delay}
    decision.close(
        RunStatus.FAILED, reason, event, payload, workflow_task_id=task_id, continued=delay is not None
    )
    decision.set(failure=dict(failure))


def stop(
    decision: Decision,
    run: Run,
    status: RunStatus,
    reason: str | None,
    request: EventType,
    ending: EventType,
    command_id: str,
) -> None:
    """Cancels or terminates a run at once; no code of the workflow runs any more (sdk-wire 4.9)."""
    decision.release()
    said = {"reason": reason, "workflow_command_id": command_id}
    decision.record(request, said, workflow_command_id=command_id)
    text = reason or f"The workflow was {status.value}."
    for step in run.state.activities:
        activity = run.activities.get(step)
        if activity is not None:
            payload = activities.cancelled_payload(decision, activity, text)
            decision.record(EventType.ACTIVITY_CANCELLED, payload)
    for step in run.state.timers:
        timer = run.timers.get(step)
        if timer is not None:
            decision.record(EventType.TIMER_CANCELLED, timers.cancelled_payload(decision, timer))
    decision.close(status, status.value, ending, said, workflow_command_id=command_id)


def run_deadline(run: Run, task_lease: Lease, now_us: int, structural: Limits) -> Changes:
    """The run's timer fired: fails the run as timed out if a limit has come, or because its history is too
    long, else waits on.

    ``task_lease`` is of no weight: a leased workflow task ends with its run.
    """
    if run.state.status.closed:
        return untouched(run, Disarm(RUN_TIMER))
    decision = Decision(run, now_us, task_lease)
    kind = deadlines.run_reached(run.info, decision.now_ms)
    if kind is None and is_too_long(structural, run.state.history_length):
        grown = _too_long(run.state.history_length, structural.history_event_count)
        _fail(decision, TOO_LONG, EventType.WORKFLOW_FAILED, grown, None, retryable=False)
        return decision.changes()
    if kind is None:
        decision.arm(RUN_TIMER, deadlines.run_due_ms(run.info))
        return untouched(run, *decision.effects)
    text, due = _overdue(run.info, kind)
    failure: dict[str, Any] = {"timeout_kind": kind.value, "message": text, "failure_category": TIMEOUT}
    if due is not None:
        failure["deadline_at"] = iso_ms(due)
    retryable = kind is RunTimeoutKind.RUN
    _fail(decision, TIMED_OUT, EventType.WORKFLOW_TIMED_OUT, failure, None, retryable=retryable)
    return decision.changes()


def _too_long(events: int, limit: int) -> dict[str, Any]:
    return {
        "message": f"The history has {events} events, and {limit} are allowed: continue as new before that.",
        "failure_category": STRUCTURAL_LIMIT,
        "non_retryable": True,
        "limit_kind": "history_event_count",
        "current_value": events,
        "configured_limit": limit,
    }


def _overdue(info: RunInfo, kind: RunTimeoutKind) -> tuple[str, int | None]:
    match kind:
        case RunTimeoutKind.EXECUTION:
            return "The workflow was not over within its execution timeout.", info.execution_deadline_ms
        case RunTimeoutKind.RUN:
            return "The run was not over within its run timeout.", info.run_deadline_ms
        case _:
            assert_never(kind)
