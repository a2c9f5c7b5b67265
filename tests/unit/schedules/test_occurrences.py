"""When schedules fire: cron, intervals, time zones, jitter (case R08)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster.schedules.occurrences import due_ms, duration_ms, next_fire, next_occurrence, occurrences
from cluster.schedules.records import Action, Definition, Interval, Spec

HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def cron(*expressions: str, zone: str | None = None) -> Spec:
    return Spec(cron_expressions=expressions, timezone=zone)


def every(length: str, offset: str | None = None) -> Spec:
    return Spec(intervals=(Interval(every=length, offset=offset),))


def definition(spec: Spec, jitter_seconds: int = 0) -> Definition:
    return Definition(
        namespace="default",
        schedule_id="s",
        spec=spec,
        action=Action(workflow_type="t"),
        jitter_seconds=jitter_seconds,
        created_at_ms=0,
        updated_at_ms=0,
    )


@pytest.mark.parametrize(
    ("spec", "after", "expected"),
    [
        (cron("0 12 * * *"), "2026-01-01T10:00", "2026-01-01T12:00"),
        (cron("0 12 * * *"), "2026-01-01T12:00", "2026-01-02T12:00"),
        (cron("0 12 * * *"), "2026-01-01T11:59:59.999", "2026-01-01T12:00"),
        (cron("0 12 * * *", "30 11 * * *"), "2026-01-01T10:00", "2026-01-01T11:30"),
        (cron("junk", "0 12 * * *"), "2026-01-01T10:00", "2026-01-01T12:00"),
        (cron("0 12 * * MON-FRI"), "2026-01-02T13:00", "2026-01-05T12:00"),
        (cron("0 0 29 2 *"), "2026-01-01T00:00", "2028-02-29T00:00"),
        (every("PT30M"), "2026-01-01T10:10", "2026-01-01T10:30"),
        (every("PT30M"), "2026-01-01T10:30", "2026-01-01T11:00"),
        (every("PT1H", "PT15M"), "2026-01-01T10:20", "2026-01-01T11:15"),
        (every("P1D"), "2026-01-01T10:20", "2026-01-02T00:00"),
        (every("P1W"), "2026-01-01T10:20", "2026-01-08T00:00"),
        (
            Spec(cron_expressions=("0 12 * * *",), intervals=(Interval(every="PT7H"),)),
            "2026-01-01T10:00",
            "2026-01-01T12:00",
        ),
        (cron("30 9 * * *", zone="Asia/Kolkata"), "2026-01-01T00:00", "2026-01-01T04:00"),
        # The gap of 29 March in Kyiv (03:00 to 04:00 local) swallows 03:30: it fires right after.
        (cron("30 3 * * *", zone="Europe/Kyiv"), "2026-03-28T12:00", "2026-03-29T01:00"),
        (cron("30 3 * * *", zone="Europe/Kyiv"), "2026-03-29T01:00", "2026-03-30T00:30"),
        # 03:30 happens twice on 25 October: it fires once.
        (cron("30 3 * * *", zone="Europe/Kyiv"), "2026-10-24T12:00", "2026-10-25T00:30"),
        (cron("30 3 * * *", zone="Europe/Kyiv"), "2026-10-25T00:30", "2026-10-26T01:30"),
    ],
)
def test_the_next_occurrence(spec: Spec, after: str, expected: str) -> None:
    found = next_occurrence(spec, ms(after))
    assert found is not None
    assert datetime.fromtimestamp(found / 1000, UTC).isoformat() == f"{expected}:00+00:00"


@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        cron("junk"),
        cron("* * * * * *"),
        cron("@daily"),
        cron("0 0 30 2 *"),
        cron("0 12 * * *", zone="Nowhere/Land"),
        cron("0 12 * * *", zone="../../etc/passwd"),
        every(""),
        every("soon"),
        every("PT0S"),
        every("-PT5M"),
        every("PT0.5S"),
        every("P1M"),
        every("PT1H", "later"),
        every("P99999999999D"),
    ],
)
def test_a_spec_that_means_nothing_has_no_occurrence(spec: Spec) -> None:
    assert next_occurrence(spec, ms("2026-01-01")) is None
    assert list(occurrences(spec, 0, ms("2026-01-01"))) == []
    assert next_fire(definition(spec), 0, 0) == (None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT30M", 1_800_000),
        ("P1DT2H", 26 * HOUR_MS),
        ("P2W", 14 * 24 * HOUR_MS),
        ("PT1.5S", 1500),
        ("x", None),
    ],
)
def test_durations(text: str, expected: int | None) -> None:
    assert duration_ms(text) == expected


def test_a_window_holds_its_start_but_not_its_end() -> None:
    hourly = cron("0 * * * *")
    start, end = ms("2026-01-01T00:00"), ms("2026-01-01T03:00")
    assert list(occurrences(hourly, start, end)) == [start, start + HOUR_MS, start + 2 * HOUR_MS]
    assert list(occurrences(hourly, start + 1, end)) == [start + HOUR_MS, start + 2 * HOUR_MS]
    assert list(occurrences(hourly, start + 1, start + 2)) == []


@given(
    st.integers(1, 5_000_000),
    st.integers(0, 10_000_000),
    st.integers(0, 2_000_000_000_000),
)
def test_the_grid_of_an_interval(seconds: int, offset: int, after: int) -> None:
    found = next_occurrence(every(f"PT{seconds}S", f"PT{offset}S"), after)
    assert found is not None
    assert after < found <= after + seconds * 1000
    assert (found - offset * 1000) % (seconds * 1000) == 0


@given(st.integers(0, 3600), st.integers(0, 2_000_000_000))
def test_jitter_is_bounded_and_always_the_same(jitter: int, minute: int) -> None:
    minutely = definition(every("PT1M"), jitter)
    fire = minute * 60_000
    due = due_ms(minutely, fire)
    assert fire <= due <= fire + min(jitter * 1000, 60_000)
    assert due_ms(minutely, fire) == due


def test_jitter_differs_between_schedules_and_occurrences() -> None:
    hourly = definition(cron("0 * * * *"), 600)
    other = replace(hourly, schedule_id="other")
    times = range(0, 20 * HOUR_MS, HOUR_MS)
    assert len({due_ms(hourly, fire) - fire for fire in times}) > 15
    assert [due_ms(hourly, fire) for fire in times] != [due_ms(other, fire) for fire in times]


@given(st.integers(0, 3600), st.integers(0, 10_000))
def test_nothing_that_is_due_later_is_left_out(jitter: int, late_ms: int) -> None:
    """Firing an occurrence some time after it was due plans the first one that is not over yet."""
    minutely = definition(every("PT1M"), jitter)
    fire = 1_800_000_000_000
    now = due_ms(minutely, fire) + late_ms
    following, due = next_fire(minutely, fire, now)
    assert following is not None
    assert due is not None
    assert following > fire
    assert due > now
    between = [t for t in occurrences(minutely.spec, fire + 1, following) if due_ms(minutely, t) > now]
    assert between == []


def test_what_was_missed_is_not_made_up_for() -> None:
    hourly = definition(cron("0 * * * *"))
    fire = ms("2026-01-01T00:00")
    assert next_fire(hourly, fire, ms("2026-01-01T05:10")) == (ms("2026-01-01T06:00"), ms("2026-01-01T06:00"))
    assert next_fire(hourly, fire, fire) == (fire + HOUR_MS, fire + HOUR_MS)
