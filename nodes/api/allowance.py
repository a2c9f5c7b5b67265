"""What a connection may do often, but not all the time: a bucket of tokens."""

from __future__ import annotations

from typing import Final

SIGNALS: Final = 1000
"""Frames that want an answer, or bring nothing, that a connection may send at once."""

SIGNALS_PER_SECOND: Final = 100.0


class Allowance:
    """So many at once, and so many a second in the long run. ``now`` is in seconds, of any clock."""

    def __init__(self, most: int, per_second: float, now: float) -> None:
        self._most = most
        self._per_second = per_second
        self._left = float(most)
        self._at = now

    def spend(self, now: float) -> bool:
        """Take one; False when there is none left."""
        if not self.has_some(now):
            return False
        self._left -= 1
        return True

    def has_some(self, now: float) -> bool:
        """Whether there is one to take."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        return self._left >= 1
