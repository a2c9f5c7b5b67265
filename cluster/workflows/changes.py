"""What a decision asks the engine to do, in one atomic commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cluster.errors import Refused
from cluster.workflows.records import (
    ActivityState,
    ChildState,
    PendingEvent,
    RunInfo,
    RunState,
    TimerState,
    UpdateState,
)


@dataclass(frozen=True, slots=True)
class ReadyWorkflowTask:
    """Put workflow task ``index`` on the run's queue, handed out as ``attempt``."""

    index: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class ReadyActivityTask:
    """Put the current attempt of an activity on its queue."""

    activity: ActivityState


@dataclass(frozen=True, slots=True)
class Requeue:
    """Make a leased task ready again as ``attempt``, at its old place in the queue."""

    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DropTask:
    """End a task (leased, ready or absent): its record, lease, entry and timer go."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Arm:
    """Set the timer ``name`` of this run (see ``timers``) to an absolute time in ms."""

    name: str
    due_ms: int


@dataclass(frozen=True, slots=True)
class Disarm:
    """Remove the timer ``name`` of this run, if it is set."""

    name: str


@dataclass(frozen=True, slots=True)
class CloseChild:
    """Cancel or terminate a child, later and by whoever comes first (rule F2)."""

    workflow_id: str
    parent_run_id: str
    verb: str
    """"cancel" or "terminate"."""
    reason: str


Effect = ReadyWorkflowTask | ReadyActivityTask | Requeue | DropTask | Arm | Disarm | CloseChild


@dataclass(frozen=True, slots=True)
class ChildOver:
    """What the parent of a run that closed is to be told."""

    status: str
    """Status of the child's last run, or ``timed_out``."""
    run_id: str
    payload: dict[str, Any]


@dataclass(slots=True)
class Changes:
    """A decision: the new state, the events to append (in order) and the effects.

    ``activities``, ``timers``, ``children`` and ``updates`` map a step (or number) to its new record,
    or to None when it is over. ``outcome`` is what the caller is told (JSON-ready). ``effects`` are
    to be done in order. ``refusal``, when set, is raised to the caller after the changes are stored.

    The history grows by ``events``, then by the ``releases`` pending events (those that waited
    before this decision and its own ``buffered``), then by ``tail``.
    """

    state: RunState
    events: list[PendingEvent] = field(default_factory=list)
    buffered: list[PendingEvent] = field(default_factory=list)
    releases: int = 0
    tail: list[PendingEvent] = field(default_factory=list)
    activities: dict[int, ActivityState | None] = field(default_factory=dict)
    timers: dict[int, TimerState | None] = field(default_factory=dict)
    children: dict[int, ChildState | None] = field(default_factory=dict)
    updates: dict[int, UpdateState | None] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    outcome: dict[str, object] = field(default_factory=dict)
    closes: bool = False
    refusal: Refused | None = None
    info: RunInfo | None = None
    """The run's facts, when memo or search attributes changed."""
    starts: list[NewRun] = field(default_factory=list)
    """Runs that begin in the same commit: children, or the next run of this workflow id."""
    signals_to: str | None = None
    """The run among ``starts`` that takes the pending signals, right after its first two events."""
    report: ChildOver | None = None
    """Set when the run closes and nothing continues it: its parent, if any, hears of it."""
    grows: bool = False
    """Whether it takes in something new, which a full store must refuse."""
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is kept as long as the run, by name: answers to clients, ends of updates, who asked for what."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """``first`` says that its workflow id is new too."""

    info: RunInfo
    changes: Changes
    first: bool
