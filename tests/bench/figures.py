"""Figures made of samples: medians, ranges, percentiles, ratios."""

from __future__ import annotations

import statistics
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = 5


def say(figure: str, text: str) -> None:
    """One line of the report."""
    print(f"bench  {figure:<40} {text}", flush=True)


async def repeated(run: Callable[[], Awaitable[float]]) -> list[float]:
    """The results of RUNS runs, after one that is thrown away."""
    return [await run() for _ in range(RUNS + 1)][1:]


def spread(values: Sequence[float], unit: str, digits: int = 0) -> str:
    """Median, smallest and largest, for a line of the report."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} {unit} (min {low:,.{digits}f}, max {high:,.{digits}f}, {len(values)} runs)"


def cell(values: Sequence[float], digits: int = 0) -> str:
    """Median and range, for a cell of a table; a single value stands alone."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def percentile(values: Sequence[float], part: float) -> float:
    """The value that ``part`` (0 to 1) of all values do not exceed, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the quotients of runs that followed each other; one that has no partner is left out."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


@dataclass(frozen=True)
class Goal:
    """What a figure should reach. A run reports it; it does not fail because of it."""

    text: str
    reached: bool | None
    """None: it was not measured."""
    measured: str

    def row(self) -> list[str]:
        return [self.text, self.measured, VERDICTS[self.reached]]


VERDICTS = {True: "reached", False: "**not reached**", None: "not measured"}


def noted(notes: Path) -> list[float]:
    """Seconds from due to begun of every task in a file of notes, see ``peers/programs/noting.py``."""
    data = notes.read_bytes() if notes.exists() else b""
    return [value for (value,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]
