"""What is kept of a schedule.

A schedule is one hash in the partition of its name. ``Definition`` (field ``d``) is what the user
gave and changes only by an update; ``ScheduleState`` (field ``s``) is rewritten by every fire. Times
are UTC milliseconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from cluster.records import Document, Record
from cluster.workflows.records import Payload


class Status(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DELETED = "deleted"


class Overlap(StrEnum):
    """What to do when a fire finds the run of the previous one still open."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    ALLOW_ALL = "allow_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class Interval(Record, frozen=True, kw_only=True):
    """Fires on the grid epoch + offset + k * every; both are ISO-8601 durations."""

    every: str
    offset: str | None = None


class Spec(Record, frozen=True, kw_only=True):
    """When to fire. Cron expressions have five fields and mean local time in ``timezone``."""

    cron_expressions: tuple[str, ...] = ()
    intervals: tuple[Interval, ...] = ()
    timezone: str | None = None


class Action(Record, frozen=True, kw_only=True):
    """The workflow to start. ``task_queue`` None means the default queue."""

    workflow_type: str
    task_queue: str | None = None
    input: Payload | None = None
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None


class Definition(Document, frozen=True, kw_only=True):
    """What a user said about a schedule."""

    namespace: str
    schedule_id: str
    spec: Spec
    action: Action
    overlap_policy: Overlap = Overlap.SKIP
    jitter_seconds: int = 0
    max_runs: int | None = None
    memo: dict[str, Any] = msgspec.field(default_factory=dict)
    search_attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    note: str | None = None
    created_at_ms: int
    updated_at_ms: int


class RecentAction(Record, frozen=True, kw_only=True):
    """One of the last fires. ``outcome`` is started, drained, backfilled or failed."""

    outcome: str
    fire_ms: int
    acted_at_ms: int
    workflow_id: str | None = None
    run_id: str | None = None
    reason: str | None = None


class ScheduleState(Document, frozen=True, kw_only=True):
    """The changing part of a schedule."""

    status: Status = Status.ACTIVE
    paused_at_ms: int | None = None
    deleted_at_ms: int | None = None
    next_fire_ms: int | None = None
    """The next occurrence, before its jitter; None while the schedule does not fire by itself."""
    next_due_ms: int | None = None
    """When that occurrence fires: the time of the schedule's timer."""
    last_fired_ms: int | None = None
    fires_count: int = 0
    failures_count: int = 0
    remaining_actions: int | None = None
    skipped_trigger_count: int = 0
    last_skip_reason: str | None = None
    last_skipped_at_ms: int | None = None
    recent_actions: tuple[RecentAction, ...] = ()
    buffered: tuple[int, ...] = ()
    """Occurrences that wait for the previous run to close, in order."""
    latest_workflow_id: str | None = None
    latest_run_id: str | None = None
    history_length: int = 0
    """Sequence of the newest event."""


class Schedule(Record, frozen=True, kw_only=True):
    """A schedule as a decision sees it. ``version`` 0: it does not exist yet."""

    definition: Definition
    state: ScheduleState
    version: int = 0


class EventType(StrEnum):
    """Every kind of event in a schedule's history."""

    CREATED = "ScheduleCreated"
    UPDATED = "ScheduleUpdated"
    PAUSED = "SchedulePaused"
    RESUMED = "ScheduleResumed"
    TRIGGERED = "ScheduleTriggered"
    SKIPPED = "ScheduleTriggerSkipped"
    DELETED = "ScheduleDeleted"


class ScheduleEvent(Record, frozen=True, kw_only=True):
    """One event; ``sequence`` counts from 1 without a gap."""

    sequence: int
    event_type: str
    recorded_at_ms: int
    workflow_id: str | None = None
    run_id: str | None = None
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
