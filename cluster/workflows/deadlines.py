"""The four timeouts of an activity (server-behaviour 5.10), as absolute times.

An activity has one timer, set to the earliest of the deadlines that count in its state:

=========  ==================================================
state      deadlines
=========  ==================================================
ready      schedule_to_close, schedule_to_start
leased     schedule_to_close, heartbeat, start_to_close
back-off   schedule_to_close (and the end of the back-off)
=========  ==================================================
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cluster.times import due_after
from cluster.workflows.records import ActivityState, Lease, RunInfo

LEASED: Final = "l"
LEASE_MARGIN_MS: Final = 5_000
"""A lease outlives start_to_close by this much, so the timeout decides and not the lease."""


class TimeoutKind(StrEnum):
    SCHEDULE_TO_CLOSE = "schedule_to_close"
    SCHEDULE_TO_START = "schedule_to_start"
    HEARTBEAT = "heartbeat"
    START_TO_CLOSE = "start_to_close"


class RunTimeoutKind(StrEnum):
    EXECUTION = "execution_timeout"
    RUN = "run_timeout"


def due_in(now_us: int, seconds: int) -> int:
    """The first millisecond at which ``seconds`` after ``now_us`` are over; this one for no time at all."""
    return -(-now_us // 1000) + seconds * 1000 if seconds else now_us // 1000


def deadlines(activity: ActivityState, lease: Lease) -> dict[TimeoutKind, int]:
    """The deadlines that count now, in milliseconds, in order of precedence.

    ``lease`` is the record of the activity's task; its state is "" when there is none.
    """
    found: dict[TimeoutKind, int] = {}
    if activity.schedule_to_close_seconds:
        found[TimeoutKind.SCHEDULE_TO_CLOSE] = schedule_to_close_ms(activity)
    if lease.state != LEASED:
        if activity.schedule_to_start_seconds and not activity.waiting:
            found[TimeoutKind.SCHEDULE_TO_START] = due_after(
                activity.ready_at_ms, activity.schedule_to_start_seconds * 1000
            )
        return found
    if activity.heartbeat_seconds:
        seen = max(lease.leased_at_ms, lease.heartbeat_at_ms)
        found[TimeoutKind.HEARTBEAT] = due_after(seen, activity.heartbeat_seconds * 1000)
    if activity.start_to_close_seconds:
        length_ms = activity.start_to_close_seconds * 1000
        found[TimeoutKind.START_TO_CLOSE] = due_after(lease.leased_at_ms, length_ms)
    return found


def schedule_to_close_ms(activity: ActivityState) -> int:
    """When the whole execution must be over, or 0 when there is no such limit."""
    if not activity.schedule_to_close_seconds:
        return 0
    return due_in(activity.scheduled_at_us, activity.schedule_to_close_seconds)


def reached(activity: ActivityState, lease: Lease, now_ms: int) -> TimeoutKind | None:
    """The first deadline, by precedence, that has come."""
    return next((kind for kind, due in deadlines(activity, lease).items() if due <= now_ms), None)


def next_due_ms(activity: ActivityState, lease: Lease) -> int | None:
    """When to look at the activity again; None when nothing limits it in its present state."""
    due = list(deadlines(activity, lease).values())
    if activity.waiting:
        due.append(activity.ready_at_ms)
    return min(due, default=None)


def hand_out_deadline(activity: ActivityState) -> tuple[int, int]:
    """How a hand-out sets the activity's timer: (ms from now, latest absolute ms); 0 = none.

    With nothing but schedule_to_close the first value is its whole length, so that the second decides.
    """
    limits = [activity.start_to_close_seconds, activity.heartbeat_seconds, activity.schedule_to_close_seconds]
    after = min((seconds for seconds in limits if seconds), default=0)
    return after * 1000, schedule_to_close_ms(activity)


def activity_lease_ms(activity: ActivityState, default_ms: int) -> int:
    """How long a lease of the activity's task lasts.

    The SDK sends no heartbeat by itself, so a shorter lease would run the activity twice.
    """
    if not activity.start_to_close_seconds:
        return default_ms
    return max(default_ms, activity.start_to_close_seconds * 1000 + LEASE_MARGIN_MS)


def run_due_ms(info: RunInfo) -> int | None:
    """When the run times out, whichever limit comes first; None when it has none."""
    limits = (info.execution_deadline_ms, info.run_deadline_ms)
    return min((due for due in limits if due is not None), default=None)


def run_reached(info: RunInfo, now_ms: int) -> RunTimeoutKind | None:
    """The limit of the run that has come: the earlier one when both have."""
    execution, run = info.execution_deadline_ms, info.run_deadline_ms
    due = run_due_ms(info)
    if due is None or due > now_ms:
        return None
    return RunTimeoutKind.RUN if run == due and execution != due else RunTimeoutKind.EXECUTION
