"""The picture of a history: one row for each thing that took time, drawn between a run's start and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from cluster.workflows.events import EventType
from cluster.workflows.outlines import Outline

WIDTH: Final = 1000
MOST_ROWS: Final = 60
_LEAST: Final = 3.0
"""Width of what took no time."""


class Look(StrEnum):
    """How a bar is drawn."""

    WAITS = "waits"
    RUNS = "runs"
    DONE = "done"
    BAD = "bad"
    POINT = "point"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time, in units of the picture's WIDTH."""

    x: float
    width: float
    look: Look


@dataclass(slots=True)
class Row:
    """One thing. ``words`` say what the bars show; ``event`` is the number of its first event."""

    label: str
    kind: str
    event: int
    bars: list[Bar] = field(default_factory=list)
    words: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The rows in the order of their beginnings. ``hidden`` more were left out."""

    rows: list[Row]
    seconds: float
    hidden: int


_KEYS: Final = ("activity_execution_id", "timer_id", "child_call_id", "condition_wait_id", "wait_id")
_NAMES: Final = ("activity_type", "child_workflow_type", "signal_name", "update_name", "condition_key")
_ENDS: Final = {
    EventType.ACTIVITY_COMPLETED: Look.DONE,
    EventType.ACTIVITY_FAILED: Look.BAD,
    EventType.ACTIVITY_TIMED_OUT: Look.BAD,
    EventType.ACTIVITY_CANCELLED: Look.BAD,
    EventType.TIMER_FIRED: Look.DONE,
    EventType.TIMER_CANCELLED: Look.BAD,
    EventType.CONDITION_WAIT_SATISFIED: Look.DONE,
    EventType.CONDITION_WAIT_TIMED_OUT: Look.BAD,
    EventType.CHILD_RUN_COMPLETED: Look.DONE,
    EventType.CHILD_RUN_FAILED: Look.BAD,
    EventType.CHILD_RUN_CANCELLED: Look.BAD,
    EventType.CHILD_RUN_TERMINATED: Look.BAD,
    EventType.UPDATE_COMPLETED: Look.DONE,
}
_BEGINS: Final = {
    EventType.ACTIVITY_SCHEDULED: "activity",
    EventType.TIMER_SCHEDULED: "timer",
    EventType.CONDITION_WAIT_OPENED: "condition",
    EventType.CHILD_WORKFLOW_SCHEDULED: "child",
    EventType.UPDATE_ACCEPTED: "update",
}
_POINTS: Final = {
    EventType.SIGNAL_RECEIVED: "signal",
    EventType.CANCEL_REQUESTED: "cancel",
    EventType.TERMINATE_REQUESTED: "terminate",
    EventType.REPAIR_REQUESTED: "repair",
}


def name_of(event: Outline) -> str:
    """What an event is about, as far as a name says it."""
    return next((str(event.payload[name]) for name in _NAMES if event.payload.get(name)), "")


def timeline(events: Sequence[Outline], started_at: str, until: str) -> Timeline:
    """The picture of ``events`` from the run's start until its end, or now. Times as the API writes them."""
    start = datetime.fromisoformat(started_at)
    length = max((datetime.fromisoformat(until) - start).total_seconds(), 0.001)

    def place(moment: str) -> float:
        passed = (datetime.fromisoformat(moment) - start).total_seconds()
        return min(max(passed / length, 0.0), 1.0) * WIDTH

    threads: dict[str, _Thread] = {}
    for event in events:
        kind = EventType(event.event_type) if event.event_type in _KNOWN else None
        key = _key(event)
        if kind in _POINTS:
            threads[f"#{event.sequence}"] = _Thread(_POINTS[kind], event, is_point=True)
        elif kind in _BEGINS:
            threads[key] = _Thread(_BEGINS[kind], event)
        elif key in threads:
            threads[key].add(kind, event)
    found = list(threads.values())
    rows = [thread.row(place, until) for thread in found[:MOST_ROWS]]
    return Timeline(rows, length, max(0, len(found) - MOST_ROWS))


_KNOWN: Final = frozenset(EventType)


def _key(event: Outline) -> str:
    for name in (*_KEYS, "update_id"):
        if event.payload.get(name):
            return f"{name}:{event.payload[name]}"
    return f"step:{event.payload.get('sequence')}"


def _delay(event: Outline) -> str:
    seconds = event.payload.get("delay_seconds")
    return f"{seconds} s" if isinstance(seconds, int) else ""


class _Thread:
    """The events of one thing, in order."""

    def __init__(self, kind: str, first: Outline, *, is_point: bool = False) -> None:
        self._kind = kind
        self._first = first
        self._is_point = is_point
        self._changes: list[tuple[str, Look]] = []
        self._end: tuple[str, Look] | None = None
        self._attempts = 0

    def add(self, kind: EventType | None, event: Outline) -> None:
        if kind in _ENDS:
            self._end = (event.recorded_at, _ENDS[kind])
        elif kind in (EventType.ACTIVITY_STARTED, EventType.CHILD_RUN_STARTED):
            self._attempts += 1
            self._changes.append((str(event.payload.get("started_at") or event.recorded_at), Look.RUNS))
        elif kind is EventType.ACTIVITY_RETRY_SCHEDULED:
            self._changes.append((event.recorded_at, Look.WAITS))

    def row(self, place: Callable[[str], float], until: str) -> Row:
        name = name_of(self._first) or _delay(self._first) or self._kind
        row = Row(name, self._kind, self._first.sequence)
        begun = self._first.recorded_at
        if self._is_point:
            row.bars.append(Bar(place(begun), _LEAST, Look.POINT))
            row.words = "received"
            return row
        end, outcome = self._end or (until, None)
        changes = [(begun, Look.WAITS if self._kind == "activity" else Look.RUNS), *self._changes]
        for number, (moment, look) in enumerate(changes):
            following = changes[number + 1][0] if number + 1 < len(changes) else end
            is_last = number + 1 == len(changes)
            shown = self._shown(look, is_last, outcome)
            x = place(moment)
            row.bars.append(Bar(round(x, 2), round(max(place(following) - x, _LEAST), 2), shown))
        row.seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begun)).total_seconds()
        row.words = self._words(outcome)
        return row

    def _shown(self, look: Look, is_last: bool, outcome: Look | None) -> Look:
        if is_last:
            return outcome or look
        # What ran and is followed by something else has failed and is tried again.
        return Look.BAD if look is Look.RUNS else look

    def _words(self, outcome: Look | None) -> str:
        said = {None: "open", Look.DONE: "done"}.get(outcome, "ended without a result")
        return f"{said}, {self._attempts} attempts" if self._attempts > 1 else said
