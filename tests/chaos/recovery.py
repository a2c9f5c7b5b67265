"""How soon work goes on at its usual rate after something broke. Pure: times in, seconds out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

SECOND: Final = 1_000_000_000
BACK: Final = 0.9
"""Work is back once a second has this share of the usual number of hand-outs."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What many measurements look like. In the unit of what was measured; zeros when there was none."""

    number: int
    p50: float
    p99: float
    worst: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f}, p99 {self.p99:.2f}, worst {self.worst:.2f} of {self.number}"


def spread(values: Sequence[float]) -> Spread:
    """Median, 99th percentile (never more than the worst) and worst."""
    if not values:
        return Spread(0, 0.0, 0.0, 0.0)
    if len(values) == 1:
        return Spread(1, values[0], values[0], values[0])
    hundredths = quantiles(values, n=100, method="inclusive")
    return Spread(len(values), hundredths[49], hundredths[98], max(values))


def back_after(handed: Sequence[int], moment: int, rate: float, share: float = BACK) -> float:
    """Seconds from ``moment`` (ns) to the first second with a share of ``rate`` hand-outs; infinite if none.

    ``handed`` are times of hand-outs (ns), sorted.
    """
    needed = max(1, int(share * rate))
    first = bisect_left(handed, moment)
    # Each candidate second begins at the moment itself or right after a hand-out.
    for index in range(first, len(handed) - needed + 1):
        begins = moment if index == first else handed[index - 1]
        if handed[index + needed - 1] - begins <= SECOND:
            return (begins - moment) / SECOND
    return float("inf")


def longest_silence(handed: Sequence[int], moment: int, until: int) -> float:
    """The longest time (s) without a hand-out between two moments (ns)."""
    near = handed[bisect_left(handed, moment) : bisect_left(handed, until)]
    return max(b - a for a, b in zip([moment, *near], [*near, until], strict=True)) / SECOND
