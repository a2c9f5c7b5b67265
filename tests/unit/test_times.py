"""Times on the wire."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cluster.times import due_after, iso_ms, iso_seconds, iso_us, milliseconds


def test_forms() -> None:
    assert iso_us(1_764_504_000_000_000) == "2025-11-30T12:00:00.000000Z"
    assert iso_us(1_764_504_000_000_001) == "2025-11-30T12:00:00.000001Z"
    assert iso_ms(1_764_504_000_987) == "2025-11-30T12:00:00.987000Z"
    assert iso_seconds(1_764_504_000_987) == "2025-11-30T12:00:00+00:00"


@given(st.integers(0, 4_102_444_800_000_000))
def test_microseconds_survive(microseconds: int) -> None:
    parsed = datetime.fromisoformat(iso_us(microseconds))
    assert parsed.tzinfo == UTC
    seconds = int(parsed.replace(microsecond=0).timestamp())
    assert seconds * 1_000_000 + parsed.microsecond == microseconds


@given(st.integers(0, 4_102_444_800_000_000), st.floats(0.0001, 1e6))
def test_delays_are_over_when_they_are_due(now_us: int, seconds: float) -> None:
    due_ms = due_after(now_us // 1000, milliseconds(seconds))
    waited_us = due_ms * 1000 - now_us
    assert seconds * 1_000_000 - 1 <= waited_us <= seconds * 1_000_000 + 2_000
    assert due_after(now_us // 1000, 0) == now_us // 1000


def test_delays_that_are_whole_milliseconds_stay_so() -> None:
    assert [milliseconds(s) for s in (0, 0.001, 1.1, 0.29, 1.005)] == [0, 1, 1100, 290, 1005]
    assert [milliseconds(s) for s in (0.0001, 1.0011)] == [1, 1002]
