"""Line charts as geometry; the template draws them as SVG, without script and without style attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 320
HEIGHT: Final = 96
GAP_FACTOR: Final = 4
"""A pause of so many usual steps breaks the line: nobody watched meanwhile."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name and its SVG path; ``last`` is its newest value."""

    name: str
    path: str
    last: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of ``top`` from 0 over ``minutes``; ``summary`` says in words what it shows."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    top: float
    minutes: int
    summary: str


def chart(
    title: str,
    unit: str,
    times_ms: Sequence[int],
    series: Sequence[tuple[str, Sequence[float]]],
    *,
    minutes: int,
    step_ms: int,
) -> Chart:
    """Lines over the last ``minutes`` before the newest of ``times_ms``, which ascend."""
    end = times_ms[-1] if times_ms else 0
    start = end - minutes * 60_000
    top = _round_up(max((value for _, values in series for value in values), default=0.0))
    lines = tuple(
        Line(name, _path(times_ms, values, start, end, top, step_ms), values[-1] if values else 0.0)
        for name, values in series
    )
    return Chart(title, unit, lines, top, minutes, _summary(lines, series, unit))


def _path(
    times_ms: Sequence[int], values: Sequence[float], start: int, end: int, top: float, step_ms: int
) -> str:
    parts: list[str] = []
    previous: int | None = None
    for at, value in zip(times_ms, values, strict=True):
        if at < start:
            continue
        x = WIDTH * (at - start) / max(1, end - start)
        y = HEIGHT - HEIGHT * min(1.0, value / top)
        is_first = previous is None or at - previous > GAP_FACTOR * step_ms
        parts.append(f"{'M' if is_first else 'L'}{x:.1f} {y:.1f}")
        if is_first:
            # A point alone would not be seen.
            parts.append("h0.1")
        previous = at
    return "".join(parts)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ... that is not smaller; at least 1."""
    size = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * size:
                return factor * size
        size *= 10


def _summary(lines: Sequence[Line], series: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    said = [
        f"{line.name}: now {line.last:g}, at most {max(values):g} {unit}".strip()
        for line, (_, values) in zip(lines, series, strict=True)
        if values
    ]
    return "; ".join(said) if said else "no samples yet"
