"""How times are written on the wire, and when a delay is over.

Inside the cluster a time is an integer since the epoch, in UTC.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (UTC throughout, a zone only slows it down)


def iso_us(microseconds: int) -> str:
    """Microseconds since the epoch as ``2026-11-30T12:05:30.976555Z``: always six digits, always Z."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_second(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    # Most times that are written lie close together.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()


@lru_cache(maxsize=1024)
def iso_ms(milliseconds: int) -> str:
    """Milliseconds since the epoch in the form of :func:`iso_us`."""
    return iso_us(milliseconds * 1000)


def iso_seconds(milliseconds: int) -> str:
    """Milliseconds since the epoch as whole seconds with an offset: ``2026-11-30T12:05:30+00:00``."""
    return (_EPOCH + timedelta(seconds=milliseconds // 1000)).isoformat(timespec="seconds") + "+00:00"


def milliseconds(seconds: float) -> int:
    """A delay in whole milliseconds, never shorter: what is beyond them counts as one more."""
    return math.ceil(round(seconds * 1000, 3))


def due_after(now_ms: int, delay_ms: int) -> int:
    """The first millisecond at which ``delay_ms`` are over; this one for no delay at all.

    ``now_ms`` was cut off: up to a millisecond of it had gone by already.
    """
    return now_ms + delay_ms + 1 if delay_ms else now_ms
