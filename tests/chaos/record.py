"""What was seen from outside while things broke: one JSON line per invocation, answer, hand-out, end.

Clients and workers, each in its own process and file, write what *they* saw; nothing is taken from the
server's word about itself. Times are ``CLOCK_MONOTONIC`` in nanoseconds, which all processes of one
machine share. A line is appended with one write, so a killed writer loses at most what it had not seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class Verb(StrEnum):
    """What a client or worker asks for. CLOSE is a decision that ends an execution."""

    START = "start"
    SIGNAL = "signal"
    COMPLETE = "complete"
    FAIL = "fail"
    DECIDE = "decide"
    CLOSE = "close"


class Outcome(StrEnum):
    """How a server answered. ``UNKNOWN``: no answer, or one that says that the outcome is open."""

    OK = "ok"
    REFUSED = "refused"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all lines. ``who`` saw it ``at`` (ns)."""

    at: int = 0
    who: str = ""


class Invoked(Seen, frozen=True, kw_only=True, tag=True):
    """A request was sent. ``op`` names it; ``token`` the hand-out it answers, or the signal it sends."""

    op: str
    verb: Verb
    tenant: str
    execution: str
    task: str = ""
    token: str = ""


class Answered(Seen, frozen=True, kw_only=True, tag=True):
    """The answer to ``op``; ``created``: a start says that it made a new run."""

    op: str
    outcome: Outcome
    reason: str = ""
    created: bool = False


class HandedOut(Seen, frozen=True, kw_only=True, tag=True):
    """A worker got a task.

    ``sent`` (ns) is when it asked, ``lasts`` (ns) how long a lease is good for, 0 when it has no
    end of its own. ``tenant`` is whom the worker works for, ``belongs_to`` what the task itself says.
    ``token`` is unique to the attempt; ``renumbered`` that no later hand-out may carry it again.
    ``cap`` names the limit it counts against.
    """

    tenant: str
    belongs_to: str
    execution: str
    task: str
    attempt: int
    token: str
    sent: int = 0
    lasts: int = 0
    most_attempts: int = 0
    renumbered: bool = True
    cap: str = ""


class Observed(Seen, frozen=True, kw_only=True, tag=True):
    """What a client read about an execution that it asked for since ``sent`` (ns).

    ``results`` are the tokens that its result is made of, ``signals`` those in its history;
    ``final`` marks the look after everything was over.
    """

    tenant: str
    execution: str
    status: str
    sent: int
    terminal: bool = False
    results: tuple[str, ...] | None = None
    signals: tuple[str, ...] = ()
    final: bool = False


class Cap(Seen, frozen=True, kw_only=True, tag=True):
    """A limit that holds during the whole run: at most ``most`` live leases count against ``cap``."""

    cap: str
    most: int


class Remains(Seen, frozen=True, kw_only=True, tag=True):
    """Keys without an end of their own that were left when all was over."""

    family: str
    number: int
    expected: bool


class FaultBegan(Seen, frozen=True, kw_only=True, tag=True):
    """A fault begins. ``forgets``: the store may lose what it acknowledges until the fault is over."""

    number: int
    fault: str
    target: str = ""
    forgets: bool = False


class FaultEnded(Seen, frozen=True, kw_only=True, tag=True):
    """Everything that fault ``number`` broke is whole again, as far as the injector is concerned."""

    number: int


Line = Invoked | Answered | HandedOut | Observed | Cap | Remains | FaultBegan | FaultEnded

_encode = msgspec.json.Encoder().encode
_decode: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Recorder:
    """Appends lines to a file. Use as a context manager."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.who = who
        self._ops = 0

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def note(self, line: Line) -> None:
        """Write a line, at this moment and under this name."""
        stamped: Any = msgspec.structs.replace(line, at=now(), who=self.who)
        os.write(self._file, _encode(stamped) + b"\n")

    def invoke(self, verb: Verb, tenant: str, execution: str, *, task: str = "", token: str = "") -> str:
        """Note a request about to be sent; returns its ``op``."""
        self._ops += 1
        op = f"{self.who}/{self._ops}"
        self.note(Invoked(op=op, verb=verb, tenant=tenant, execution=execution, task=task, token=token))
        return op


def now() -> int:
    """This moment (ns)."""
    return time.monotonic_ns()


def read_lines(paths: Iterable[Path]) -> list[Line]:
    """All lines of some files in order of time. A line cut off by a kill is left out."""
    lines: list[Line] = []
    for path in paths:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        lines += [_decode.decode(line) for line in whole.splitlines()]
    return sorted(lines, key=lambda line: line.at)
