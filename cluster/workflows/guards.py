"""Who may answer a task (server-behaviour 5.4 and 5.8).

Pure checks over what is stored: ``run`` and the task's record (``lease``; state "" when there is
none). They raise :class:`Refused` with the fields of the contract. Order matters: an expired lease
is reported before a foreign owner, and a foreign owner before a wrong attempt.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from cluster.errors import Refused
from cluster.ids import AttemptId, TaskId
from cluster.times import iso_ms, iso_us
from cluster.workflows.closing import TIMED_OUT
from cluster.workflows.deadlines import LEASED
from cluster.workflows.records import Lease, Run, RunState, RunStatus

_STOPPED = (RunStatus.CANCELLED, RunStatus.TERMINATED)
_CLOSED_TEXT = "The run is closed ({})."


def task_not_found(task_id: str, attempt: int | str | None = None) -> Refused:
    """404 for a task nobody in this namespace knows; ``attempt`` as the worker named it."""
    fields: dict[str, Any] = {"task_id": task_id}
    if isinstance(attempt, int):
        fields["workflow_task_attempt"] = attempt
    elif attempt is not None:
        fields["activity_attempt_id"] = attempt
    return Refused("task_not_found", f"No task {task_id!r} is known here.", status=404, **fields)


def attempt_not_found(task_id: str, attempt_id: str) -> Refused:
    """404 for an activity attempt that was never handed out."""
    text = f"No activity attempt {attempt_id!r} is known here."
    return Refused("attempt_not_found", text, status=404, task_id=task_id, activity_attempt_id=attempt_id)


def workflow_task(
    run: Run, lease: Lease, task: TaskId, namespace: str, owner: str, attempt: int, now_ms: int
) -> None:
    """Checks that ``owner`` holds ``task`` as ``attempt``; ``lease`` is the open workflow task's record.

    Raises Refused: task_not_found, run_closed, task_not_leased, lease_expired, lease_owner_mismatch,
    workflow_task_attempt_mismatch.
    """
    task_id = str(task)
    if run.info.namespace != namespace or task.index > run.state.task_index:
        raise task_not_found(task_id, attempt)
    sent: dict[str, Any] = {"task_id": task_id, "workflow_task_attempt": attempt}
    if run.state.status.closed:
        raise _run_closed(run.state, lease, owner, sent)
    if lease.task_id != task_id or lease.state != LEASED:
        status = _task_status(run.state, lease, task)
        text = "The workflow task is not leased."
        raise Refused("task_not_leased", text, status=409, **sent, task_status=status)
    if lease.expires_at_ms <= now_ms:
        raise Refused(
            "lease_expired",
            "The lease of the workflow task has run out.",
            status=409,
            **sent,
            task_status="leased",
            lease_owner=lease.owner,
            lease_expires_at=iso_ms(lease.expires_at_ms),
        )
    if lease.owner != owner:
        text = "The workflow task is leased to another worker."
        raise Refused("lease_owner_mismatch", text, status=409, **sent, lease_owner=lease.owner)
    if lease.attempt != attempt:
        raise Refused(
            "workflow_task_attempt_mismatch",
            "The workflow task is leased under another attempt.",
            status=409,
            **sent,
            current_attempt=lease.attempt,
        )


def activity_task(
    run: Run, lease: Lease, task: TaskId, attempt: AttemptId, namespace: str, owner: str
) -> None:
    """Checks that ``owner`` holds ``attempt`` of ``task``; an expired lease alone is no reason to refuse.

    Returns for a run that completed or failed: its outcomes are accepted and change nothing. Raises
    Refused: task_not_found, attempt_not_found, task_mismatch, lease_owner_mismatch, stale_attempt,
    run_cancelled, run_terminated.
    """
    sent = _identify(run, task, attempt, namespace)
    if run.state.status in _STOPPED:
        raise _run_stopped(run.state, lease, owner, sent)
    if run.state.status.closed:
        return
    reason = _staleness(run, lease, task, attempt)
    if reason is not None:
        raise Refused(
            "stale_attempt",
            "The activity attempt is over.",
            status=409,
            **sent,
            outcome="ignored",
            recorded=False,
            next_task_id=None,
        )
    if lease.owner != owner:
        raise _other_owner(lease, sent)


def activity_heartbeat(
    run: Run, lease: Lease, task: TaskId, attempt: AttemptId, namespace: str, owner: str
) -> dict[str, Any]:
    """The answer to a heartbeat as far as it can be known before the lease is renewed.

    ``can_continue`` says whether the lease may be renewed, else ``reason`` says why not. Raises
    Refused only for what never was: attempt_not_found, task_mismatch.
    """
    if run.info.namespace != namespace or task.index >= run.state.next_step:
        raise attempt_not_found(str(task), str(attempt))
    sent = _identify(run, task, attempt, namespace)
    state = run.state
    held = lease.state == LEASED
    reason = _heartbeat_reason(run, lease, task, attempt, owner)
    return {
        **sent,
        "lease_owner": lease.owner if held else owner,
        "cancel_requested": state.status in _STOPPED,
        "can_continue": reason is None,
        "reason": reason,
        "run_closed_reason": state.closed_reason,
        "run_closed_at": None if state.closed_at_us is None else iso_us(state.closed_at_us),
        "heartbeat_recorded": False,
        "lease_expires_at": iso_ms(lease.expires_at_ms) if held else None,
        "last_heartbeat_at": iso_ms(lease.heartbeat_at_ms) if held and lease.heartbeat_at_ms else None,
    }


def renewed(lease: Lease, now_ms: int) -> Lease:
    """The record of a lease whose worker was heard of at ``now_ms``."""
    return replace(lease, heartbeat_at_ms=now_ms)


def _identify(run: Run, task: TaskId, attempt: AttemptId, namespace: str) -> dict[str, Any]:
    """Checks that the ids name something of this run; returns them as every answer repeats them."""
    task_id, attempt_id = str(task), str(attempt)
    if run.info.namespace != namespace or task.index >= run.state.next_step:
        raise task_not_found(task_id, attempt_id)
    sent = {"task_id": task_id, "activity_attempt_id": attempt_id}
    if attempt.task != task:
        if attempt.task.run_id == task.run_id and attempt.task.index >= run.state.next_step:
            raise attempt_not_found(task_id, attempt_id)
        text = "The activity attempt belongs to another task."
        raise Refused("task_mismatch", text, status=409, **sent, outcome="ignored", recorded=False)
    activity = run.activities.get(task.index)
    if activity is not None and attempt.attempt > activity.attempt:
        raise attempt_not_found(task_id, attempt_id)
    return sent


def _staleness(run: Run, lease: Lease, task: TaskId, attempt: AttemptId) -> str | None:
    """Why the attempt is no longer the current one, or None when it is."""
    if task.index not in run.state.activities:
        return "activity_not_running"
    if lease.state == LEASED and (lease.attempt, lease.delivery) == (attempt.attempt, attempt.delivery):
        return None
    activity = run.activities.get(task.index)
    if activity is not None and activity.attempt == attempt.attempt:
        return "task_not_leased"
    return "stale_attempt"


def _heartbeat_reason(run: Run, lease: Lease, task: TaskId, attempt: AttemptId, owner: str) -> str | None:
    if run.state.status.closed:
        return _stop_reason(run.state) if run.state.status in _STOPPED else "run_closed"
    stale = _staleness(run, lease, task, attempt)
    if stale is None and lease.owner != owner:
        return "stale_task"
    return stale


def _run_closed(state: RunState, lease: Lease, owner: str, sent: dict[str, Any]) -> Refused:
    return Refused(
        "run_closed",
        _CLOSED_TEXT.format(state.closed_reason),
        status=409,
        **sent,
        stop_reason=_stop_reason(state),
        cancel_requested=state.status in _STOPPED,
        can_continue=False,
        **_closed(state),
        task_status=_ended_task_status(state),
        **_holder(lease, owner),
    )


def _run_stopped(state: RunState, lease: Lease, owner: str, sent: dict[str, Any]) -> Refused:
    return Refused(
        _stop_reason(state),
        _CLOSED_TEXT.format(state.closed_reason),
        status=409,
        **sent,
        outcome="ignored",
        recorded=False,
        next_task_id=None,
        cancel_requested=True,
        can_continue=False,
        **_closed(state),
        activity_status="cancelled",
        attempt_status="cancelled",
        task_status="cancelled",
        **_holder(lease, owner),
    )


def _other_owner(lease: Lease, sent: dict[str, Any]) -> Refused:
    text = "The activity task is leased to another worker."
    return Refused("lease_owner_mismatch", text, status=409, **sent, lease_owner=lease.owner)


def _stop_reason(state: RunState) -> str:
    return f"run_{state.status.value}"


def _closed(state: RunState) -> dict[str, Any]:
    return {
        "run_status": state.status.value,
        "run_closed_reason": state.closed_reason,
        "run_closed_at": None if state.closed_at_us is None else iso_us(state.closed_at_us),
    }


def _holder(lease: Lease, owner: str) -> dict[str, Any]:
    """The last holder of a task whose record is gone can only be the one who still answers it."""
    return {
        "lease_owner": lease.owner or owner,
        "lease_expires_at": iso_ms(lease.expires_at_ms) if lease.expires_at_ms else None,
    }


def _ended_task_status(state: RunState) -> str:
    if state.status is RunStatus.COMPLETED:
        return "completed"
    if state.status is RunStatus.FAILED and state.closed_reason != TIMED_OUT:
        return "failed"
    return "cancelled"


def _task_status(state: RunState, lease: Lease, task: TaskId) -> str:
    if not state.task_open or task.index < state.task_index:
        return "completed"
    return "failed" if state.task_waiting or lease.state != "r" else "ready"
