"""How long answers took lately, in a few numbers and constant memory."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

_BOUNDS: Final = tuple(0.0005 * 1.25**step for step in range(60))
"""Upper bounds of the classes in seconds, 0.5 ms to 5 min; what is read is at most a quarter too high."""


class RecentLatency:
    """Counts durations since it was last asked."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)

    def note(self, seconds: float) -> None:
        """An answer took so long."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1

    def take(self) -> tuple[float, float]:
        """Median and 99th percentile in seconds of what was noted since the last call; 0 when nothing was."""
        counts, self._counts = self._counts, [0] * len(self._counts)
        return _quantile(counts, 0.5), _quantile(counts, 0.99)


def _quantile(counts: list[int], part: float) -> float:
    wanted, seen = sum(counts) * part, 0
    for place, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            return _BOUNDS[min(place, len(_BOUNDS) - 1)]
    return 0.0
