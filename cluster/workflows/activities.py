"""Activities: scheduled by a command, handed out attempt by attempt, over exactly once.

::

    schedule ─► ready ─► leased ─► completed
                 ▲  ▲       │
                 │  └─lapse─┤ (at most 3, not counted as attempts)
                 │          ├─► failed / timed out
              back-off ◄────┘ (while the retry policy has attempts left)

An attempt's start is not written when it is handed out (a claim writes no history). It is written
just before the event that ends the attempt, with the latest progress its worker reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cluster.ids import AttemptId, TaskId, TaskKind
from cluster.times import iso_ms, iso_seconds
from cluster.workflows import deadlines, hosting, retry
from cluster.workflows.changes import Changes, Disarm, DropTask, ReadyActivityTask, Requeue
from cluster.workflows.commands import ScheduleActivity
from cluster.workflows.deadlines import LEASED, TimeoutKind
from cluster.workflows.decision import Decision, untouched
from cluster.workflows.events import EventType
from cluster.workflows.failures import CANCELLATION, activity_failure, envelope, timeout_failure
from cluster.workflows.names import activity_timer
from cluster.workflows.records import ActivityState, Lease, Payload, Run

_NO_LEASE = Lease(task_id="", state="")

_TIMEOUT_TEXTS = {
    TimeoutKind.SCHEDULE_TO_CLOSE: "The activity was not over within its schedule-to-close timeout.",
    TimeoutKind.SCHEDULE_TO_START: "No worker took the activity within its schedule-to-start timeout.",
    TimeoutKind.HEARTBEAT: "The worker sent no heartbeat within the heartbeat timeout.",
    TimeoutKind.START_TO_CLOSE: "The attempt was not over within its start-to-close timeout.",
}


def schedule(decision: Decision, command: ScheduleActivity, step: int, task_id: str | None) -> None:
    """Opens an activity and puts its first attempt on its queue."""
    activity = ActivityState(
        step=step,
        activity_type=command.activity_type,
        task_queue=command.queue or decision.info.task_queue,
        arguments=command.arguments,
        retry=command.retry,
        start_to_close_seconds=command.start_to_close_seconds,
        schedule_to_start_seconds=command.schedule_to_start_seconds,
        schedule_to_close_seconds=command.schedule_to_close_seconds,
        heartbeat_seconds=command.heartbeat_seconds,
        scheduled_at_us=decision.now_us,
        ready_at_ms=decision.now_ms,
        group=command.group,
        cancellation_policy=command.cancellation_policy,
        worker_session=command.worker_session,
    )
    decision.open_activity(activity)
    payload = _identity(decision, activity) | {"task_queue": activity.task_queue}
    optional = {
        "arguments": envelope(activity.arguments) if activity.arguments else None,
        "retry_policy": retry.snapshot(activity),
        "cancellation_policy": activity.cancellation_policy,
        "worker_session": activity.worker_session,
    }
    payload |= {name: value for name, value in optional.items() if value is not None}
    decision.record(EventType.ACTIVITY_SCHEDULED, payload, workflow_task_id=task_id)
    _make_ready(decision, activity)


def complete_activity(
    run: Run, step: int, lease: Lease, task_lease: Lease, result: Payload | None, now_us: int
) -> Changes:
    """A worker's result of the leased attempt. The caller has checked who sends it."""
    outcome = _recorded("completed")
    if run.state.status.closed:
        return _silent(run, outcome)
    activity = run.activities[step]
    decision = Decision(run, now_us, task_lease)
    _record_attempt(decision, activity, lease)
    payload = _attempt(decision, activity, lease) | {"result": None}
    if result is not None:
        payload |= {"result": result.blob, "payload_codec": result.codec}
    _end(decision, activity, EventType.ACTIVITY_COMPLETED, payload)
    outcome["next_task_id"] = decision.settle()
    return decision.changes(outcome)


def fail_activity(
    run: Run, step: int, lease: Lease, task_lease: Lease, failure: Mapping[str, Any], now_us: int
) -> Changes:
    """A worker's failure of the leased attempt: tried again if the policy allows, else final."""
    outcome = _recorded("failed")
    if run.state.status.closed:
        return _silent(run, outcome)
    activity = run.activities[step]
    decision = Decision(run, now_us, task_lease)
    _record_attempt(decision, activity, lease)
    retryable = retry.is_retryable(activity, failure)
    described = activity_failure(failure, non_retryable=not retryable)
    delay = retry.activity_delay(activity) if retryable else None
    if delay is not None:
        _try_again(decision, activity, lease, delay, described)
        outcome["next_task_id"] = decision.activity_id(step)
        return decision.changes(outcome)
    _end(decision, activity, EventType.ACTIVITY_FAILED, _attempt(decision, activity, lease) | described)
    outcome["next_task_id"] = decision.settle()
    return decision.changes(outcome)


def activity_lapsed(run: Run, step: int, lease: Lease, task_lease: Lease, now_us: int) -> Changes:
    """The lease of an attempt ran out without an answer and the task goes to another worker.

    The attempt number grows, so the late worker is refused, but no attempt of the policy is used.
    After MAX_LAPSES the activity is given up as timed out.
    """
    activity = run.activities.get(step)
    if run.state.status.closed or activity is None:
        return untouched(run, DropTask(lease.task_id))
    decision = Decision(run, now_us, task_lease)
    kind = deadlines.reached(activity, lease, decision.now_ms)
    if kind is not None:
        return _time_out(decision, activity, lease, kind)
    _record_attempt(decision, activity, lease)
    if activity.lapses >= retry.MAX_LAPSES:
        text = "The worker's lease ran out without an answer, too often to hand the activity out again."
        failed = timeout_failure(TimeoutKind.START_TO_CLOSE, text)
        payload = _attempt(decision, activity, lease) | failed | _deadline_times(activity, lease)
        _end(decision, activity, EventType.ACTIVITY_TIMED_OUT, payload)
        return decision.changes()
    payload = _attempt(decision, activity, lease) | {
        "reason": "lease_expired",
        "next_attempt_number": activity.attempt + 1,
        "delay_seconds": 0,
    }
    decision.record(EventType.ACTIVITY_RETRY_SCHEDULED, payload)
    again = replace(
        activity, attempt=activity.attempt + 1, lapses=activity.lapses + 1, ready_at_ms=decision.now_ms
    )
    decision.activities[step] = again
    decision.effects.append(Requeue(decision.activity_id(step), again.attempt))
    decision.arm(activity_timer(step), deadlines.next_due_ms(again, _NO_LEASE))
    return decision.changes()


def activity_deadline(run: Run, step: int, lease: Lease, task_lease: Lease, now_us: int) -> Changes:
    """The activity's timer fired: enforces a timeout, ends a back-off, or waits on."""
    activity = run.activities.get(step)
    if run.state.status.closed or activity is None:
        return untouched(run, Disarm(activity_timer(step)))
    decision = Decision(run, now_us, task_lease)
    kind = deadlines.reached(activity, lease, decision.now_ms)
    if kind is not None:
        return _time_out(decision, activity, lease, kind)
    if activity.waiting and activity.ready_at_ms <= decision.now_ms:
        # A late timer must not eat into schedule_to_start: it counts from now.
        again = replace(activity, waiting=False, ready_at_ms=decision.now_ms)
        decision.activities[step] = again
        decision.effects.append(Disarm(activity_timer(step)))
        _make_ready(decision, again)
        return decision.changes()
    decision.arm(activity_timer(step), deadlines.next_due_ms(activity, lease))
    return untouched(run, *decision.effects)


def _recorded(outcome: str) -> dict[str, object]:
    return {"outcome": outcome, "recorded": True, "reason": None, "next_task_id": None}


def _silent(run: Run, outcome: dict[str, object]) -> Changes:
    """The run completed or failed meanwhile: the outcome is accepted, and changes nothing."""
    changes = untouched(run)
    changes.outcome = outcome
    return changes


def _time_out(decision: Decision, activity: ActivityState, lease: Lease, kind: TimeoutKind) -> Changes:
    _record_attempt(decision, activity, lease)
    failed = timeout_failure(kind, _TIMEOUT_TEXTS[kind])
    delay = None if kind is TimeoutKind.SCHEDULE_TO_CLOSE else retry.activity_delay(activity)
    if delay is not None:
        _try_again(decision, activity, lease, delay, failed)
    else:
        payload = _attempt(decision, activity, lease) | failed | _deadline_times(activity, lease)
        _end(decision, activity, EventType.ACTIVITY_TIMED_OUT, payload)
    return decision.changes()


def _try_again(
    decision: Decision, activity: ActivityState, lease: Lease, delay: int, failed: Mapping[str, Any]
) -> None:
    """Ends the current attempt and plans the next one ``delay`` seconds later; wakes nobody."""
    ready_at_ms = decision.in_seconds(delay)
    payload = _attempt(decision, activity, lease) | {
        "next_attempt_number": activity.attempt + 1,
        "delay_seconds": delay,
        "retry_at": iso_ms(ready_at_ms),
    }
    causes = ("message", "exception_type", "timeout_kind")
    payload |= {name: failed[name] for name in causes if name in failed}
    decision.record(EventType.ACTIVITY_RETRY_SCHEDULED, payload)
    again = replace(
        activity,
        attempt=activity.attempt + 1,
        waiting=delay > 0,
        ready_at_ms=ready_at_ms,
        last_failure=dict(failed),
    )
    decision.activities[activity.step] = again
    if not activity.waiting:
        decision.effects.append(DropTask(decision.activity_id(activity.step)))
    if again.waiting:
        decision.arm(activity_timer(activity.step), deadlines.next_due_ms(again, _NO_LEASE))
    else:
        _make_ready(decision, again)


def _make_ready(decision: Decision, activity: ActivityState) -> None:
    """Puts the current attempt on its queue; the activity has no timer at this moment."""
    decision.effects.append(ReadyActivityTask(activity))
    due = deadlines.next_due_ms(activity, _NO_LEASE)
    if due is not None:
        decision.arm(activity_timer(activity.step), due)


def _end(decision: Decision, activity: ActivityState, event: EventType, payload: Mapping[str, Any]) -> None:
    """Writes the activity's last event and drops what is left of it."""
    decision.end_activity(activity)
    decision.end(activity.group, event, payload, failed=event is not EventType.ACTIVITY_COMPLETED)
    _drop(decision, activity)
    hosting.finish(decision, event, payload)


def withdraw(decision: Decision, activity: ActivityState) -> None:
    """Ends an open activity without an event: its operation was cancelled."""
    decision.end_activity(activity)
    _drop(decision, activity)


def cancelled_payload(decision: Decision, activity: ActivityState, reason: str) -> dict[str, Any]:
    """Payload of the event that says that an open activity was cancelled with its run."""
    return _identity(decision, activity) | {
        "attempt_number": activity.attempt,
        "message": reason,
        "closed_reason": "cancelled",
        "failure_category": CANCELLATION,
        "non_retryable": True,
    }


def _drop(decision: Decision, activity: ActivityState) -> None:
    if activity.waiting:
        decision.effects.append(Disarm(activity_timer(activity.step)))
    else:
        decision.effects.append(DropTask(decision.activity_id(activity.step)))


def _record_attempt(decision: Decision, activity: ActivityState, lease: Lease) -> None:
    """Writes that the attempt was started, and its latest progress, if it was handed out at all."""
    if lease.state != LEASED:
        return
    payload = _attempt(decision, activity, lease)
    started = {"lease_owner": lease.owner, "started_at": iso_ms(lease.leased_at_ms)}
    decision.record(EventType.ACTIVITY_STARTED, payload | started)
    if lease.progress is not None:
        beat = {"progress": lease.progress, "heartbeat_at": iso_ms(lease.heartbeat_at_ms)}
        decision.record(EventType.ACTIVITY_HEARTBEAT_RECORDED, payload | beat)


def _identity(decision: Decision, activity: ActivityState) -> dict[str, Any]:
    """What every event of an activity carries."""
    return {
        "activity_execution_id": decision.activity_id(activity.step),
        "activity_type": activity.activity_type,
        "sequence": activity.step,
        **activity.group,
    }


def _attempt(decision: Decision, activity: ActivityState, lease: Lease) -> dict[str, Any]:
    """What an event about the current attempt carries; no attempt id before its first hand-out."""
    payload = _identity(decision, activity) | {"attempt_number": activity.attempt}
    if lease.state == LEASED:
        task = TaskId(decision.info.run_id, TaskKind.ACTIVITY, activity.step)
        payload["activity_attempt_id"] = str(AttemptId(task, activity.attempt, lease.delivery))
    return payload


def _deadline_times(activity: ActivityState, lease: Lease) -> dict[str, Any]:
    found = deadlines.deadlines(activity, lease)
    return {"deadlines": {kind.value: iso_seconds(due) for kind, due in found.items()}} if found else {}
