"""What failed rests longer each time, up to a minute."""

from __future__ import annotations

import pytest

from cluster.upkeep import setbacks
from cluster.upkeep.setbacks import LONGEST_SECONDS, Setbacks


def test_the_rest_doubles_up_to_a_minute() -> None:
    known, now_ms, rests = Setbacks(), 1_000, []
    for _ in range(10):
        setback = known.failed("t", now_ms)
        rests.append(setback.again_ms - now_ms)
        assert known.rests("t", setback.again_ms - 1)
        assert not known.rests("t", setback.again_ms)
        now_ms = setback.again_ms
    assert rests == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert known.failed("t", now_ms, longest=5).again_ms - now_ms == 5_000


def test_success_forgets() -> None:
    known = Setbacks()
    known.failed("a", 0)
    known.failed("b", 0)
    assert known.next_ms() == 500
    assert known.done("a")
    assert not known.done("a")
    assert known.failed("a", 0).failures == 1
    known.keep_only({"b"})
    assert (len(known), known.rests("a", 0)) == (1, False)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setbacks, "MOST", 3)
    known = Setbacks()
    for number in range(9):
        known.failed(str(number), number)
    assert len(known) == 3
    assert known.rests("8", 8)
    assert not known.rests("0", 0)
    assert LONGEST_SECONDS == 60
