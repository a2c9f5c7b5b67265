"""Charts and timelines as geometry, payloads as text."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import payloads
from cluster.times import iso_us
from cluster.workflows.outlines import END_BYTES, WHOLE_BYTES, Outline, outline
from nodes.console.charts import HEIGHT, WIDTH, chart
from nodes.console.payload_views import MOST_RAW, payloads_of, show
from nodes.console.rendering import MOST_TEXT, count, moment, pretty, size, span
from nodes.console.timeline import MOST_ROWS, Look, timeline
from nodes.console.timeline import WIDTH as PICTURE

SECOND = 1_000_000


def event(number: int, kind: str, at: float, **payload: Any) -> Outline:
    return Outline(number, kind, iso_us(round(at * SECOND)), payload, 100, True)


# -- charts -------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e12)), max_size=50, unique_by=lambda p: p[0]),
)
def test_every_point_of_a_chart_lies_in_it(points: list[tuple[int, float]]) -> None:
    points.sort()
    drawn = chart(
        "t", "u", [at for at, _ in points], [("line", [v for _, v in points])], minutes=30, step_ms=5000
    )
    (line,) = drawn.lines
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", line.path):
        assert 0 <= float(x) <= WIDTH
        assert 0 <= float(y) <= HEIGHT
    assert all(value <= drawn.top for _, value in points)


def test_a_pause_breaks_the_line() -> None:
    times = [0, 5_000, 10_000, 900_000, 905_000]
    drawn = chart("t", "u", times, [("line", [1.0] * 5)], minutes=30, step_ms=5000)
    assert drawn.lines[0].path.count("M") == 2


def test_a_chart_says_what_it_shows() -> None:
    drawn = chart("t", "tasks", [0, 5000], [("ready", [7, 3])], minutes=30, step_ms=5000)
    assert drawn.summary == "ready: now 3, at most 7 tasks"
    assert drawn.top == 10
    assert chart("t", "u", [], [("x", [])], minutes=30, step_ms=1).summary == "no samples yet"


# -- timelines ----------------------------------------------------------------------------------


def activity(step: int) -> dict[str, Any]:
    return {"activity_execution_id": f"r-a{step}", "activity_type": "charge", "sequence": step}


def test_an_activity_waits_fails_waits_and_ends() -> None:
    events = [
        event(1, "ActivityScheduled", 0, **activity(1)),
        event(2, "ActivityStarted", 20, **activity(1), started_at=iso_us(10 * SECOND)),
        event(3, "ActivityRetryScheduled", 20, **activity(1)),
        event(4, "ActivityStarted", 90, **activity(1), started_at=iso_us(80 * SECOND)),
        event(5, "ActivityCompleted", 90, **activity(1)),
    ]

    picture = timeline(events, iso_us(0), iso_us(100 * SECOND))

    (row,) = picture.rows
    assert (row.label, row.kind, row.event, row.seconds) == ("charge", "activity", 1, 90)
    assert [(bar.x, bar.width, bar.look) for bar in row.bars] == [
        (0, 100, Look.WAITS),
        (100, 100, Look.BAD),
        (200, 600, Look.WAITS),
        (800, 100, Look.DONE),
    ]
    assert row.words == "done, 2 attempts"


def test_what_is_open_reaches_to_now() -> None:
    picture = timeline(
        [event(1, "TimerScheduled", 50, timer_id="t", delay_seconds=60)], iso_us(0), iso_us(100 * SECOND)
    )
    (row,) = picture.rows
    assert (row.label, row.words, row.seconds) == ("60 s", "open", 50)
    assert (row.bars[0].x, row.bars[0].width) == (500, 500)


def test_signals_are_points() -> None:
    events = [event(n, "SignalReceived", n, signal_name="go") for n in (1, 2)]
    picture = timeline(events, iso_us(0), iso_us(10 * SECOND))
    assert [row.bars[0].look for row in picture.rows] == [Look.POINT, Look.POINT]


def test_a_picture_has_an_end() -> None:
    events = [event(n, "ActivityScheduled", 0, **activity(n)) for n in range(MOST_ROWS + 5)]
    picture = timeline(events, iso_us(0), iso_us(0))
    assert (len(picture.rows), picture.hidden) == (MOST_ROWS, 5)


KINDS = (
    "ActivityScheduled",
    "ActivityStarted",
    "ActivityCompleted",
    "TimerFired",
    "Unknown",
    "SignalReceived",
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(-5, 200), st.integers(1, 3)), max_size=30))
def test_any_events_make_a_picture(raw: list[tuple[str, int, int]]) -> None:
    events = [event(n, kind, at + 1000, **activity(step)) for n, (kind, at, step) in enumerate(raw)]
    picture = timeline(events, iso_us(1000 * SECOND), iso_us(1100 * SECOND))
    for row in picture.rows:
        for bar in row.bars:
            assert 0 <= bar.x <= PICTURE
            assert bar.width > 0


# -- outlines -----------------------------------------------------------------------------------


def stored(payload: dict[str, Any]) -> bytes:
    return orjson.dumps(
        {
            "sequence": 3,
            "id": "r-e3",
            "event_type": "ActivityScheduled",
            "payload": payload,
            "recorded_at": "2026-11-30T12:00:00.000000Z",
            "workflow_task_id": "r-w1",
            "workflow_command_id": None,
        }
    )


@pytest.mark.parametrize("length", [10, WHOLE_BYTES, 3_000_000])
def test_a_large_event_keeps_what_it_begins_with(length: int) -> None:
    evil = '"recorded_at":"1999","workflow_task_id"'
    text = stored({**activity(1), "task_queue": 'a"b', "arguments": {"blob": "x" * length + evil}})
    is_whole = len(text) <= WHOLE_BYTES
    parts = (text, b"") if is_whole else (text[:END_BYTES], text[-END_BYTES:])

    found = outline(3, len(text), *parts)

    assert (found.event_type, found.recorded_at) == ("ActivityScheduled", "2026-11-30T12:00:00.000000Z")
    assert found.payload["activity_type"] == "charge"
    assert found.payload["task_queue"] == 'a"b'
    assert (found.size, found.is_whole) == (len(text), is_whole)


@given(st.binary(max_size=3000), st.binary(min_size=1, max_size=3000))
def test_any_ends_make_an_outline(head: bytes, tail: bytes) -> None:
    assert outline(1, 10_000, head, tail).sequence == 1


# -- values -------------------------------------------------------------------------------------


def test_payloads_are_decoded_or_shown_as_they_are() -> None:
    good = payloads.encode({"a": ["<b>"]})
    known = show("Input", {"codec": good.codec, "blob": good.blob})
    assert known is not None
    assert '"<b>"' in known.text
    assert known.note == "decoded from avro"
    strange = show("x", {"codec": "own", "blob": "QUJD" * 5000})
    assert strange is not None
    assert (len(strange.text), strange.octets) == (MOST_RAW + 3, 15_000)
    assert "cannot read" in strange.note
    assert show("x", None) is None
    assert show("x", {"codec": "avro", "blob": None}) is None


def test_the_payloads_of_an_event_are_found() -> None:
    one = payloads.encode([1])
    event = {"arguments": {"codec": one.codec, "blob": one.blob}, "result": one.blob, "payload_codec": "avro"}
    assert [shown.name for shown in payloads_of(event)] == ["arguments", "result"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.04, "40 ms"), (1.44, "1.4 s"), (59.9, "59 s"), (185, "3 m 05 s"), (7260, "2 h 01 m"),
     (273_600, "3 d 04 h")],
)  # fmt: skip
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_numbers_sizes_and_times() -> None:
    assert count(1234567) == "1\u202f234\u202f567"
    assert (count(None), span(None), moment(None)) == ("\u2013",) * 3
    assert (size(12), size(2048), size(3 << 20)) == ("12 B", "2.0 KiB", "3.0 MiB")
    assert moment("2026-11-30T12:05:30.976555Z") == "2026-11-30 12:05:30"
    assert len(pretty("x" * (MOST_TEXT * 2))) < MOST_TEXT + 50
