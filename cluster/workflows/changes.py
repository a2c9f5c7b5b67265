"""What a decision asks the engine to do, in one atomic commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.workflows.records import ActivityState, PendingEvent, RunState, TimerState


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
    name: str


Effect = ReadyWorkflowTask | ReadyActivityTask | DropTask | Arm | Disarm


@dataclass(slots=True)
class Changes:
    """A decision: the new state, the events to append (in order) and the effects.

    ``activities`` and ``timers`` map a step to its new record, or to None when it is over.
    ``outcome`` is what the caller is told (JSON-ready).
    """

    state: RunState
    events: list[PendingEvent] = field(default_factory=list)
    activities: dict[int, ActivityState | None] = field(default_factory=dict)
    timers: dict[int, TimerState | None] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    outcome: dict[str, object] = field(default_factory=dict)
    closes: bool = False
