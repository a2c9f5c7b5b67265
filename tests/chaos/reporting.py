"""A table of what happened: faults, how work went on beside them, and how soon it was back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.chaos.record import Answered, FaultBegan, FaultEnded, HandedOut, Line, Outcome

SECOND = 1_000_000_000
WINDOW = SECOND
BACK = 0.5
"""Work is back once a window has this share of the hand-outs of an undisturbed one."""


@dataclass
class Row:
    """All faults of one kind. ``healing``, ``back`` and ``silence`` in seconds, one of each fault."""

    fault: str
    healing: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    silence: list[float] = field(default_factory=list)


def summarise(lines: Sequence[Line]) -> str:
    """Counts and the table as text."""
    handed = [line.at for line in lines if isinstance(line, HandedOut)]
    answers = [line for line in lines if isinstance(line, Answered)]
    counted = {outcome: sum(line.outcome is outcome for line in answers) for outcome in Outcome}
    text = [
        f"{len(handed)} hand-outs; answers: "
        + ", ".join(f"{number} {outcome}" for outcome, number in counted.items()),
        f"{'fault':42} {'n':>3} {'healed after':>13} {'longest silence':>16} {'back after':>11}",
    ]
    for row in rows(lines):
        cells = [_spread(values) for values in (row.healing, row.silence, row.back)]
        text.append(f"{row.fault:42} {len(row.healing):3} {cells[0]:>13} {cells[1]:>16} {cells[2]:>11}")
    return "\n".join(text)


def rows(lines: Sequence[Line]) -> list[Row]:
    """One row per kind of fault.

    ``healing``: how long the fault was there. ``silence``: the longest time without a hand-out from its
    beginning on. ``back``: from its end until half the hand-outs of an undisturbed second came in one.
    """
    handed = [line.at for line in lines if isinstance(line, HandedOut)]
    faults = list(_faults(lines))
    usual = _usual(handed, faults)
    found: defaultdict[str, Row] = defaultdict(lambda: Row(""))
    for index, (name, began, ended) in enumerate(faults):
        until = faults[index + 1][1] if index + 1 < len(faults) else handed[-1] if handed else ended
        row = found[name]
        row.fault = name
        row.healing.append((ended - began) / SECOND)
        near = [at for at in handed if began <= at <= until]
        gaps = [b - a for a, b in zip([began, *near], [*near, max(until, began)], strict=True)]
        row.silence.append(max(gaps, default=0) / SECOND)
        row.back.append(_back(handed, ended, usual) / SECOND)
    return sorted(found.values(), key=lambda row: row.fault)


def _faults(lines: Sequence[Line]) -> Iterator[tuple[str, int, int]]:
    """Name, beginning and end of each fault that ended."""
    began: dict[int, FaultBegan] = {}
    for line in lines:
        if isinstance(line, FaultBegan):
            began[line.number] = line
        elif isinstance(line, FaultEnded):
            yield began[line.number].fault, began[line.number].at, line.at


def _usual(handed: Sequence[int], faults: Sequence[tuple[str, int, int]]) -> float:
    """Hand-outs in a window before the first fault."""
    if not handed or not faults:
        return 0.0
    span = faults[0][1] - handed[0]
    return WINDOW * sum(at < faults[0][1] for at in handed) / span if span > 0 else 0.0


def _back(handed: Sequence[int], ended: int, usual: float) -> float:
    """From ``ended`` to the end of the first window with enough hand-outs, less the window itself."""
    later = [at for at in handed if at >= ended]
    needed = max(1, int(BACK * usual))
    for index in range(len(later) - needed + 1):
        if later[index + needed - 1] - later[index] <= WINDOW:
            return later[index] - ended
    return float("inf")


def _spread(values: Sequence[float]) -> str:
    """Median and worst."""
    return f"{median(values):.1f} / {max(values):.1f} s"
