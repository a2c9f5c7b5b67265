"""When a schedule fires. Pure: the same arguments always give the same times.

A spec that says nothing, or nothing that can be read, has no occurrences. All times are UTC
milliseconds. Cron follows local time as cron daemons do: what a change to summer time skips fires
once, right after the gap; a fixed time that a change back repeats fires once.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from cluster.schedules.records import Definition, Interval, Spec

SHORTEST_INTERVAL_MS: Final = 1_000
_CRON_FIELDS: Final = 5
_WEEKS = re.compile(r"P([0-9]{1,5})W")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS: Final = 253_402_300_799_000
"""The last moment that a calendar of four-digit years knows."""


def duration_ms(text: str) -> int | None:
    """An ISO-8601 duration of weeks, or of days, hours, minutes and seconds; None for anything else."""
    weeks = _WEEKS.fullmatch(text)
    if weeks:
        text = f"P{int(weeks[1]) * 7}D"
    try:
        return msgspec.convert(text, timedelta) // timedelta(milliseconds=1)
    except (msgspec.ValidationError, OverflowError):
        return None


def next_occurrence(spec: Spec, after_ms: int) -> int | None:
    """The earliest occurrence strictly after ``after_ms``; None when there is none."""
    found = [_next_on_grid(interval, after_ms) for interval in spec.intervals]
    zone = _zone(spec.timezone)
    if zone is not None:
        found += [_next_of_cron(text, zone, after_ms) for text in spec.cron_expressions]
    return min((ms for ms in found if ms is not None and ms <= _END_MS), default=None)


def occurrences(spec: Spec, start_ms: int, end_ms: int) -> Iterator[int]:
    """The occurrences in ``[start_ms, end_ms)``."""
    fire_ms = next_occurrence(spec, start_ms - 1)
    while fire_ms is not None and fire_ms < end_ms:
        yield fire_ms
        fire_ms = next_occurrence(spec, fire_ms)


def due_ms(definition: Definition, fire_ms: int) -> int:
    """When the occurrence ``fire_ms`` fires: up to ``jitter_seconds`` later, always the same for it.

    Never later than the next occurrence, so that jitter loses none.
    """
    if not definition.jitter_seconds:
        return fire_ms
    longest = definition.jitter_seconds * 1000
    following = next_occurrence(definition.spec, fire_ms)
    if following is not None:
        longest = min(longest, following - fire_ms)
    name = f"{definition.namespace}/{definition.schedule_id}/{fire_ms}"
    return fire_ms + binascii.crc32(name.encode()) % (longest + 1)


def next_fire(definition: Definition, after_ms: int, now_ms: int) -> tuple[int | None, int | None]:
    """The next occurrence after ``after_ms`` that is not over yet, and when it fires.

    Occurrences that were due while nobody fired them are left out.
    """
    for reference_ms in (after_ms, now_ms):
        fire_ms = next_occurrence(definition.spec, reference_ms)
        if fire_ms is None:
            return None, None
        due = due_ms(definition, fire_ms)
        if due > now_ms:
            break
    return fire_ms, due


def _next_on_grid(interval: Interval, after_ms: int) -> int | None:
    every = duration_ms(interval.every)
    offset = duration_ms(interval.offset) if interval.offset else 0
    if every is None or every < SHORTEST_INTERVAL_MS or offset is None:
        return None
    return after_ms + every - (after_ms - offset) % every


def _next_of_cron(text: str, zone: tzinfo, after_ms: int) -> int | None:
    try:
        after = (_EPOCH + timedelta(milliseconds=after_ms)).astimezone(zone)
        found = next(_cron(text, after), None)
    except (CronSimError, OverflowError, ValueError):
        return None
    return None if found is None else (found - _EPOCH) // timedelta(milliseconds=1)


def _cron(text: str, after: datetime) -> Iterator[datetime]:
    if len(text.split()) != _CRON_FIELDS:
        raise CronSimError("not five fields")
    return CronSim(text, after)


@lru_cache(maxsize=256)
def _zone(name: str | None) -> tzinfo | None:
    """The time zone called ``name`` (none: UTC), or None when there is no such zone."""
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None
