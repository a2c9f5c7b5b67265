"""An estimate of Redis time, the one clock that all nodes share.

Scripts decide by Redis ``TIME``; a node needs the same time to compute due times and ages. Every
reply that carries Redis time bounds its offset to the local clock: the script ran between sending
and receiving. The tightest of the recent bounds is used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SAMPLES: Final = 16
DRIFT: Final = 0.001
"""How far two clocks may drift apart, as a fraction: quartz and slewing stay far below."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Redis time minus local time lies in ``[low, high]`` seconds, as seen at local time ``at``."""

    low: float
    high: float
    at: float

    def agrees(self, other: _Sample) -> bool:
        slack = 0.002 + abs(self.at - other.at) * DRIFT
        return self.low <= other.high + slack and other.low <= self.high + slack


class Clock:
    """Estimates Redis time from observed replies; from the first one on it never goes backwards.

    Where Redis time steps back (a failover to a server whose clock is behind) the estimate stands
    still until it is reached again. Before the first observation it follows the host's clock,
    which may be ahead and binds nothing.
    """

    def __init__(
        self, *, local: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._local = local
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        self._offset = wall() - local()
        self._latest_us = 0

    @property
    def synchronized(self) -> bool:
        """Whether Redis time was ever observed."""
        return bool(self._samples)

    def local(self) -> float:
        """The local clock (s), for the times that :meth:`observe` wants."""
        return self._local()

    def observe(self, redis_ms: float, sent: float, received: float) -> None:
        """Take in that Redis showed ``redis_ms`` between local times ``sent`` and ``received`` (s).

        A reading that contradicts the earlier ones (the host was suspended, Redis failed over, a
        clock was set) replaces them all.
        """
        sample = _Sample(redis_ms / 1000 - received, redis_ms / 1000 - sent, received)
        if any(not sample.agrees(known) for known in self._samples):
            self._samples.clear()
        self._samples.append(sample)
        best = min(self._samples, key=lambda s: s.high - s.low + (received - s.at) * DRIFT)
        self._offset = (best.low + best.high) / 2

    def now_us(self) -> int:
        """Redis time in microseconds since the epoch."""
        estimate = int((self._local() + self._offset) * 1_000_000)
        if self._samples:
            self._latest_us = estimate = max(self._latest_us, estimate)
        return estimate

    def now_ms(self) -> int:
        """Redis time in milliseconds since the epoch."""
        return self.now_us() // 1000
