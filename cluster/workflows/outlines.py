"""Outlines of events: what a list shows, in little memory however large the payloads are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

WHOLE_BYTES: Final = 4096
"""Larger events are outlined by END_BYTES of each of their ends."""
END_BYTES: Final = 1024

_MEMBER: Final = re.compile(r'"([a-z_]+)":("(?:[^"\\]|\\.)*"|-?[0-9.]+|true|false|null)')
_TYPE: Final = re.compile(r'"event_type":"([A-Za-z]+)"')
_RECORDED: Final = re.compile(r'"recorded_at":"([^"]*)","workflow_task_id"')


@dataclass(frozen=True, slots=True)
class Outline:
    """One event. ``payload`` of a large one (``is_whole`` false) has the plain members it begins with."""

    sequence: int
    event_type: str
    recorded_at: str
    payload: dict[str, Any]
    size: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class OutlinePage:
    """Events in order; ``total`` is how many the history has."""

    events: list[Outline]
    total: int


def outline(sequence: int, size: int, text: bytes, tail: bytes) -> Outline:
    """The outline of an event that is ``text``, or begins and ends with ``text`` and ``tail``."""
    if not tail:
        event = orjson.loads(text)
        return Outline(sequence, event["event_type"], event["recorded_at"], event["payload"], size, True)
    head, end = text.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
    kind, recorded = _TYPE.search(head), _RECORDED.findall(end)
    members = head.partition('"payload":{')[2]
    return Outline(
        sequence,
        kind[1] if kind else "",
        recorded[-1] if recorded else "",
        {match[1]: orjson.loads(match[2]) for match in _plain_start(members)},
        size,
        False,
    )


def _plain_start(members: str) -> Sequence[re.Match[str]]:
    """The members at the start of an object, up to the first that is no plain value."""
    found: list[re.Match[str]] = []
    place = 0
    while match := _MEMBER.match(members, place):
        found.append(match)
        place = match.end()
        if members[place : place + 1] != ",":
            break
        place += 1
    return found
