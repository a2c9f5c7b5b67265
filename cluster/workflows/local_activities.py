"""Activities that ran inside a workflow task: only their record is kept, no task is made."""

from __future__ import annotations

from typing import Any, Final

from cluster.workflows.command_records import LocalOutcome, RecordLocalActivity
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.failures import APPLICATION, CANCELLATION, TIMEOUT, envelope

_EVENTS: Final = {
    LocalOutcome.COMPLETED: EventType.ACTIVITY_COMPLETED,
    LocalOutcome.FAILED: EventType.ACTIVITY_FAILED,
    LocalOutcome.TIMED_OUT: EventType.ACTIVITY_TIMED_OUT,
    LocalOutcome.CANCELLED: EventType.ACTIVITY_CANCELLED,
}
_CATEGORIES: Final = {
    LocalOutcome.FAILED: APPLICATION,
    LocalOutcome.TIMED_OUT: TIMEOUT,
    LocalOutcome.CANCELLED: CANCELLATION,
}
_SCHEDULED_FIELDS: Final = (
    "retry_policy",
    "start_to_close_timeout",
    "schedule_to_start_timeout",
    "schedule_to_close_timeout",
    "heartbeat_timeout",
    "cancellation_policy",
)


def schedule(decision: Decision, command: RecordLocalActivity, step: int, task_id: str) -> None:
    """Writes the beginning of a local activity."""
    decision.begin(command.group)
    payload = _identity(decision, command, step)
    if command.arguments is not None:
        payload["arguments"] = envelope(command.arguments)
    payload |= {name: command.report[name] for name in _SCHEDULED_FIELDS if name in command.report}
    decision.record(EventType.ACTIVITY_SCHEDULED, payload, workflow_task_id=task_id)


def finish(decision: Decision, command: RecordLocalActivity, step: int, task_id: str) -> None:
    """Writes the end. It wakes nobody: the workflow's code went on in the same task."""
    payload = _identity(decision, command, step)
    report = {name: value for name, value in command.report.items() if name not in _SCHEDULED_FIELDS}
    attempts = report.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict):
        last = attempts[-1]
        payload |= {"activity_attempt_id": last.get("attempt_id"), "attempt_number": len(attempts)}
    payload |= report
    if command.outcome is LocalOutcome.COMPLETED:
        payload["result"] = None
        if command.result is not None:
            payload |= {"result": command.result.blob, "payload_codec": command.result.codec}
    else:
        payload |= {
            "failure_category": _CATEGORIES[command.outcome],
            "non_retryable": report.get("non_retryable", False),
            "exception": _exception(report),
        }
    decision.end(
        command.group,
        _EVENTS[command.outcome],
        payload,
        failed=command.outcome is not LocalOutcome.COMPLETED,
        wakes=bool(command.group),
        workflow_task_id=task_id,
    )


def _exception(report: dict[str, Any]) -> dict[str, Any]:
    given = report.get("exception") or {}
    named = {"type": "exception_type", "class": "exception_class", "message": "message"}
    found = {name: report[field] for name, field in named.items() if field in report}
    return {"non_retryable": report.get("non_retryable", False), **found, **given}


def _identity(decision: Decision, command: RecordLocalActivity, step: int) -> dict[str, Any]:
    return {
        "activity_execution_id": decision.activity_id(step),
        "activity_type": command.activity_type,
        "sequence": step,
        "execution_mode": "local",
        "local_activity": True,
        **command.group,
    }
