"""Times on the wire."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cluster.times import iso_ms, iso_seconds, iso_us


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
