"""What a decision about a flow looks at, and what it asks to be done in one atomic commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from cluster.errors import HeadraceError, Refused
from cluster.flows.records import FlowRun, FlowState, StepState, Task


class NotLoaded(HeadraceError):
    """A decision needs more than was read; it is made again once these are there."""

    def __init__(
        self,
        *,
        steps: tuple[int, ...] = (),
        messages: dict[str, int] | None = None,
        task: bool = False,
        handed_out: bool = False,
    ) -> None:
        super().__init__("the decision needs more of the run")
        self.steps = steps
        self.messages = messages or {}
        self.task = task
        self.handed_out = handed_out


class View(msgspec.Struct, frozen=True):
    """A run as one moment showed it, as far as it was read.

    ``messages`` are the first ones of some channels. ``task`` is the record of the task of
    interest, ``handed_out`` are the open executions whose task is leased; None: not looked at.
    """

    run: FlowRun
    messages: dict[str, tuple[bytes, ...]] = {}
    task: Task | None = None
    handed_out: frozenset[int] | None = None

    def step(self, k: int) -> StepState | None:
        """The open execution ``k``, None when it is not open. Raises NotLoaded."""
        if k not in self.run.state.open:
            return None
        step = self.run.steps.get(k)
        if step is None:
            raise NotLoaded(steps=(k,))
        return step

    def need(self, ks: Iterable[int]) -> None:
        """Check that these executions were read, as far as they are open. Raises NotLoaded."""
        wanted = frozenset(ks).intersection(self.run.state.open)
        missing = wanted.difference(self.run.steps)
        if missing:
            raise NotLoaded(steps=tuple(sorted(missing)))

    def known_task(self) -> Task:
        """The record of the task of interest. Raises NotLoaded."""
        if self.task is None:
            raise NotLoaded(task=True)
        return self.task


class ReadyStep(msgspec.Struct, frozen=True):
    """Put the current attempt of an execution on its queue."""

    step: StepState


class DropTask(msgspec.Struct, frozen=True):
    """End the task of execution ``k`` (leased, ready or absent).

    ``told``: nobody waits for its result any more, so whoever runs it is told to stop.
    """

    k: int
    told: bool = False


@dataclass(frozen=True, slots=True)
class AskToStop:
    """Tell whoever runs the task of ``k`` that the flow is being stopped; it may still answer."""

    k: int


class ReturnTask(msgspec.Struct, frozen=True):
    """Make the leased task of ``k`` ready again: same attempt, next delivery.

    ``excluded`` is a worker that must not get it again, "" when anyone may. Nobody gets it before
    ``due_ms``; 0: at once.
    """

    k: int
    attempt: int
    delivery: int
    excluded: str = ""
    due_ms: int = 0


class Arm(msgspec.Struct, frozen=True):
    """Set the timer ``name`` of this run to an absolute time in ms."""

    name: str
    due_ms: int


class Disarm(msgspec.Struct, frozen=True):
    """Remove the timer ``name`` of this run, if it is set."""

    name: str


class Append(msgspec.Struct, frozen=True):
    """Add messages to the end of a channel."""

    channel: str
    values: tuple[bytes, ...]


class Take(msgspec.Struct, frozen=True):
    """Remove the first ``count`` messages of a channel."""

    channel: str
    count: int


class Forget(msgspec.Struct, frozen=True):
    """Remove a channel with its messages."""

    channel: str


Effect = ReadyStep | DropTask | AskToStop | ReturnTask | Arm | Disarm | Append | Take | Forget


def stored_size(effects: Iterable[Effect]) -> int:
    """Bytes that effects move. A ready step counts twice: it is stored, and it is sent to a worker."""
    size = 0
    for effect in effects:
        if isinstance(effect, ReadyStep):
            step = effect.step
            size += 2 * (len(step.input) + len(step.attributes) + len(step.conditions))
        elif isinstance(effect, Append):
            size += sum(map(len, effect.values))
    return size


class Changes(msgspec.Struct):
    """A decision: the new state and the effects, to be done in order.

    ``steps`` maps ``k`` to the new record, or to None when the execution is over. ``attributes`` is
    None when they stay. ``history`` are the entries to append (JSON-ready). ``outcome`` is what the
    caller is told, ``refusal``, when set, comes beside the stored changes.
    """

    state: FlowState
    steps: dict[int, StepState | None] = {}
    attributes: dict[str, bytes] | None = None
    effects: list[Effect] = []
    history: list[dict[str, Any]] = []
    outcome: dict[str, Any] = {}
    refusal: Refused | None = None
    halts: bool = False
    """Whether from now on nothing of the run may be handed out: it closes or begins to stop."""
    closes: bool = False
