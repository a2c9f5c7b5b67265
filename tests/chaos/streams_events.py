"""What workers and clients of flows saw while things broke: JSON lines ``{"at", "who", "what", ...}``.

``at`` is Unix time in seconds. Each line is one write to a file opened for appending, so a process that
is killed loses nothing it had written, and what it does comes after the line that says so.

=============  =====================================================================================
worker         ``handed_out`` (a task came), ``ending`` (it is about to be ended, ``how``), ``confirmed``,
               ``closed`` (the node says that the slot of an attempt is over), ``cut`` (connection lost)
client         ``starting``/``started``, ``stopping``/``stopped``, ``calling``/``answered`` (RPCs)
the test       ``fault`` (``kind``, ``target``, ``seconds``)
=============  =====================================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventLog:
    """Appends the events of one process."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._who = who

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.time(), "who": self._who, "what": what, **fields})
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_events(paths: Iterable[Path]) -> list[Event]:
    """All events, in the order of their times."""
    events = [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    return sorted(events, key=lambda event: event["at"])
