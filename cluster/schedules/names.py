"""Where a schedule lives, and the names of what belongs to it."""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from typing import Final

from cluster.ids import partition_of_workflow
from cluster.store.keys import decode, encode

FIRE_TIMER: Final = "schedule"
"""First word of the timer that fires a schedule."""
FREED_TIMER: Final = "freed"
"""First word of the timer that says that a run of a schedule has closed."""

_STRANGE = re.compile(r"[^a-zA-Z0-9._:-]")
_LONGEST_PART: Final = 80
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def partition_of_schedule(namespace: str, schedule_id: str, partitions: int) -> int:
    """CRC32 of namespace and id; a namespace's name holds no slash."""
    return binascii.crc32(f"{namespace}/{schedule_id}".encode()) % partitions


def fire_timer(namespace: str, schedule_id: str) -> str:
    return f"{FIRE_TIMER} {encode(namespace)} {encode(schedule_id)}"


def freed_timer(namespace: str, schedule_id: str) -> str:
    return f"{FREED_TIMER} {encode(namespace)} {encode(schedule_id)}"


def parse_timer(timer: str) -> tuple[str, str]:
    """Namespace and id of the schedule a timer belongs to."""
    _, namespace, schedule_id = timer.split(" ")
    return decode(namespace), decode(schedule_id)


def workflow_id(namespace: str, schedule_id: str, fire_ms: int, partitions: int, salt: str = "") -> str:
    """The workflow of an occurrence: always the same id, in the schedule's own partition (F1).

    So the fire, the look at the previous run and the start are one commit, and an occurrence can
    not be started twice. ``salt`` tells apart what may happen twice at the same time.
    """
    partition = partition_of_schedule(namespace, schedule_id, partitions)
    moment = datetime.fromtimestamp(fire_ms / 1000, UTC)
    stem = f"{_STRANGE.sub('_', schedule_id)[:_LONGEST_PART]}-{moment:%Y%m%dT%H%M%S}Z"
    draw = binascii.crc32(f"{namespace}/{schedule_id}/{fire_ms}/{salt}".encode())
    while True:
        candidate = f"{stem}-{_base36(draw)}"
        if partition_of_workflow(candidate, partitions) == partition:
            return candidate
        draw += 1


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"
