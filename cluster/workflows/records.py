"""What is kept of a run between two decisions.

A run is one hash in its partition. ``RunInfo`` (field ``i``) is written at the start and again only
when memo or search attributes change; ``RunState`` (field ``s``) is rewritten by every decision; each
open activity, timer, child and update has a field of its own (``a:<step>``, ``t:<step>``,
``c:<step>``, ``u:<number>``), so a run with a thousand open activities does not rewrite a thousand
records to complete one. ``step`` is the *workflow sequence* of the command that opened the item
(sdk-wire 4.1), not the ordinal of an event.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from cluster.records import Document, Record


class RunStatus(StrEnum):
    """Status of a run as clients see it (server-behaviour 5.1)."""

    PENDING = "pending"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"

    @property
    def closed(self) -> bool:
        return self not in (RunStatus.PENDING, RunStatus.WAITING)


class Payload(Record, frozen=True, kw_only=True):
    """An opaque payload: codec name and blob, never decoded on the way through."""

    codec: str
    blob: str


class RetryPolicy(Record, frozen=True, kw_only=True):
    """Retry rules of an activity or a child; ``max_attempts`` counts the first attempt too."""

    max_attempts: int = 1
    backoff_seconds: tuple[int, ...] = ()
    non_retryable_error_types: tuple[str, ...] = ()


class ParentRef(Record, frozen=True, kw_only=True):
    """The run, and its command, that a child reports to. It lives in the child's partition."""

    workflow_id: str
    run_id: str
    step: int


class RunInfo(Document, frozen=True, kw_only=True):
    """Facts fixed at the start of a run. Times are UTC microseconds or milliseconds as named."""

    namespace: str
    workflow_id: str
    run_id: str
    run_number: int = 1
    workflow_type: str
    task_queue: str
    marker: str = ""
    business_key: str | None = None
    payload_codec: str = "avro"
    input: Payload | None = None
    memo: dict[str, Any] = {}
    search_attributes: dict[str, Any] = {}
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    started_at_us: int
    execution_deadline_ms: int | None = None
    run_deadline_ms: int | None = None
    schedule_id: str | None = None
    """The schedule that started the workflow; it is told when the run closes."""
    standalone_activity: str | None = None
    """Type of the only activity of a run that hosts it and has no workflow code."""
    parent: ParentRef | None = None
    continued_from: str | None = None
    """The run before this one under the same workflow id."""
    attempt: int = 1
    """Which try of a child with a retry policy this run is."""
    retry: RetryPolicy | None = None
    traceparent: str = ""
    """The trace in which the run was started; tasks carry it to their workers."""


class ActivityState(Document, frozen=True, kw_only=True):
    """An open activity. ``attempt`` is the number of the current (ready, leased or waiting) one."""

    step: int
    activity_type: str
    task_queue: str
    arguments: Payload | None = None
    attempt: int = 1
    retry: RetryPolicy | None = None
    start_to_close_seconds: int | None = None
    schedule_to_start_seconds: int | None = None
    schedule_to_close_seconds: int | None = None
    heartbeat_seconds: int | None = None
    scheduled_at_us: int
    ready_at_ms: int
    """When the current attempt became (or becomes) ready; schedule_to_start counts from here."""
    waiting: bool = False
    """True while the current attempt waits for its back-off to end (no task record exists)."""
    lapses: int = 0
    """Leases of this activity that ended without an answer."""
    last_failure: dict[str, Any] | None = None
    group: dict[str, Any] = {}
    """Group metadata of the command, copied into every event of this activity."""
    cancellation_policy: str | None = None
    worker_session: dict[str, Any] | None = None


class TimerState(Document, frozen=True, kw_only=True):
    """An open timer."""

    step: int
    delay_seconds: int
    fire_at_ms: int
    group: dict[str, Any] = {}


class ChildState(Document, frozen=True, kw_only=True):
    """An open child. ``run_id`` is its first run, by which the parent's events name it."""

    step: int
    workflow_id: str
    run_id: str
    workflow_type: str
    policy: str
    """What becomes of it when this run closes (a ParentClosePolicy)."""
    group: dict[str, Any] = {}


class WaitState(Record, frozen=True, kw_only=True):
    """An open condition wait; ``key`` and ``fingerprint`` as the command had them."""

    step: int
    key: str | None = None
    fingerprint: str | None = None
    timeout_seconds: int | None = None
    due_ms: int | None = None
    group: dict[str, Any] = {}


class OpenUpdate(Record, frozen=True, kw_only=True):
    """An accepted update without a result, as the run's state lists it."""

    number: int
    """Its number among the run's commands."""
    name: str
    tries: int = 0
    """Workflow tasks that ended without an answer to it."""


class UpdateState(Document, frozen=True, kw_only=True):
    """What else is kept of an accepted update, for the event that applies it."""

    number: int
    arguments: Payload | None = None


class Race(Record, frozen=True, kw_only=True):
    """A select group with open members: member index -> leaves that are not over."""

    open: dict[str, int]
    resolved: bool = False


class PendingEvent(Record, frozen=True, kw_only=True):
    """An event on its way into a history."""

    event_type: str
    payload: dict[str, Any]
    recorded_at_us: int
    wakes: bool = True
    """Whether the workflow has to look at it: it then needs a workflow task."""
    workflow_task_id: str | None = None
    """The workflow task whose completion made this event."""
    workflow_command_id: str | None = None
    """The client's command (signal, update, cancel) that made this event."""


class KeptHistory(Record, frozen=True, kw_only=True):
    """The history that a worker's process keeps (see ``kept_histories``); empty: nobody does any more."""

    registration: str = ""
    """Names the process: the token of the registration under which it was leased the task."""
    events: int = 0
    """How many events it keeps."""
    until_ms: int = 0


class RunState(Document, frozen=True, kw_only=True):
    """The changing part of a run."""

    status: RunStatus = RunStatus.PENDING
    closed_reason: str | None = None
    closed_at_us: int | None = None
    last_progress_at_us: int = 0
    history_length: int = 0
    """Events in the history; the next ordinal is this plus one."""
    next_step: int = 1
    """The next workflow sequence."""
    task_index: int = 0
    """Index of the newest workflow task; task ids of the run count from 1."""
    task_open: bool = False
    """Whether the newest workflow task is ready, leased or backing off."""
    task_waiting: bool = False
    """The open workflow task backs off after a failure: it has no task record yet."""
    task_attempt: int = 1
    """Attempt the open workflow task had when it was last put on the queue by a decision."""
    task_failures: int = 0
    """Consecutive failures of the open workflow task reported by workers."""
    last_task_failure: dict[str, Any] | None = None
    resume: dict[str, Any] = {}
    """Why the open workflow task exists: its resume context (server-behaviour 5.2), known keys only."""
    task_update: str | None = None
    """The update the open workflow task is for; None: an ordinary one."""
    kept: KeptHistory | None = None
    """Who keeps the history between workflow tasks, if somebody does."""
    pending: int = 0
    """Events that came while the workflow task was leased; they stand in a list of their own."""
    pending_wake: dict[str, Any] | None = None
    """Resume context of the first pending event that wakes the run; None when none does."""
    buffered: int = 0
    """Events that ever waited; the next one's id counts from here."""
    commands: int = 0
    """Commands of clients this run took (signals, updates, cancel ...)."""
    signals: int = 0
    """Signals no workflow task has seen yet."""
    pending_signals: int = 0
    """Those of them that are pending events."""
    updates: tuple[OpenUpdate, ...] = ()
    """In the order of their acceptance."""
    waits: tuple[WaitState, ...] = ()
    """Open condition waits."""
    races: dict[str, Race] = {}
    """Open select groups as "base:size"."""
    children: tuple[int, ...] = ()
    """Steps of the open children."""
    activities: tuple[int, ...] = ()
    """Steps of the open activities."""
    timers: tuple[int, ...] = ()
    """Steps of the open timers."""
    groups: dict[str, int] = {}
    """Outermost parallel group as "base:size" -> members that are not over yet."""
    output: Payload | None = None
    failure: dict[str, Any] | None = None


class Run(Record, frozen=True, kw_only=True):
    """What a decision looks at. The items may be only those it needs."""

    info: RunInfo
    state: RunState
    version: int
    activities: dict[int, ActivityState] = {}
    timers: dict[int, TimerState] = {}
    children: dict[int, ChildState] = {}
    updates: dict[int, UpdateState] = {}


class Lease(Record, frozen=True, kw_only=True):
    """The task record of a hand-out, as read from the store."""

    task_id: str
    state: str
    """"r" ready, "l" leased; "" when there is no record."""
    attempt: int = 0
    delivery: int = 0
    owner: str = ""
    leased_at_ms: int = 0
    expires_at_ms: int = 0
    heartbeat_at_ms: int = 0
    progress: dict[str, Any] | None = None
    registration: str = ""
    """Of a leased workflow task: the registration of the worker's process."""
