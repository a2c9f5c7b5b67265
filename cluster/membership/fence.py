"""Self-fencing: a node knows by itself when others may think that it is gone (E2, E3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def boottime() -> float:
    """Seconds on a clock that also runs while the machine is suspended, where there is one."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Fence:
    """Open for ``span`` seconds after the last good renewal was sent; closed for good once dropped.

    The span counts from sending, because the expiry in Redis counts from a moment after it.
    """

    __slots__ = ("_clock", "_deadline", "_dropped", "_span")

    def __init__(self, span: float, clock: Callable[[], float] = boottime) -> None:
        self._span = span
        self._clock = clock
        self._deadline = float("-inf")
        self._dropped = False

    def renewed(self, sent: float) -> None:
        """A renewal that was sent at ``sent`` has succeeded."""
        self._deadline = max(self._deadline, sent + self._span)

    def drop(self) -> None:
        self._dropped = True

    def is_open(self) -> bool:
        """Whether acting is safe at this very moment."""
        return not self._dropped and self._clock() < self._deadline
