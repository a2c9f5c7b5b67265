"""What a decision asks the engine to do, in one atomic commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.errors import Refused
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


Effect = ReadyWorkflowTask | ReadyActivityTask | Requeue | DropTask | Arm | Disarm


@dataclass(slots=True)
class Changes:
    """A decision: the new state, the events to append (in order) and the effects.

    ``activities`` and ``timers`` map a step to its new record, or to None when it is over.
    ``outcome`` is what the caller is told (JSON-ready). ``effects`` are to be done in order.
    ``refusal``, when set, is raised to the caller after the changes are stored.
    """

    state: RunState
    events: list[PendingEvent] = field(default_factory=list)
    activities: dict[int, ActivityState | None] = field(default_factory=dict)
    timers: dict[int, TimerState | None] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    outcome: dict[str, object] = field(default_factory=dict)
    closes: bool = False
    refusal: Refused | None = None
