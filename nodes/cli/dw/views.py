"""What people see of an answer: tables, ``key: value`` lines, text; coloured on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Result = dict[str, Any]

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
"""Line ends and everything a terminal would obey: what a server answers is not trusted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Records under the headings ``columns``; ``heading`` is left out where a list goes on."""

    records: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    heading: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """One ``name: value`` line each, under a title."""

    record: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Lines of text as they are, but for what a terminal would obey."""

    text: str


Block = Rows | Facts | Words
View = Callable[[Result], Iterable[Block]]


@dataclass(frozen=True, slots=True)
class Table:
    """The list under ``key``, one record a row (and with ``--output jsonl`` one a line)."""

    key: str
    columns: tuple[str, ...]

    def __call__(self, result: Result) -> Iterable[Block]:
        yield Rows(result.get(self.key) or [], self.columns)


def table(key: str, columns: str) -> Table:
    """``columns`` are parted by blanks."""
    return Table(key, tuple(columns.split()))


def facts(names: str = "") -> View:
    """The members ``names`` (parted by blanks), or all of them."""

    def show(result: Result) -> Iterable[Block]:
        yield Facts({name: result.get(name) for name in names.split()} if names else without_echo(result))

    return show


def document(key: str | None = None) -> View:
    """The member ``key``, or everything, as JSON."""

    def show(result: Result) -> Iterable[Block]:
        yield Words(as_json(without_echo(result) if key is None else result.get(key)))

    return show


def without_echo(result: Result) -> Result:
    """The answer without what only repeats it or describes the protocol."""
    return {
        name: value
        for name, value in result.items()
        if name not in ("control_plane", "protocol_version", "server_capabilities")
    }


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Characters are kept, but control characters are escaped by JSON itself."""
    return json.dumps(value, indent=indent, ensure_ascii=False).replace("\x7f", "\\u007f")


def cell(value: Any) -> str:
    """``value`` on one line; nothing for None, JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else as_json(value, indent=None)
    return _CONTROLS.sub(" ", text)


def plain(blocks: Iterable[Block]) -> str:
    """Blocks without colours, for pipes and files: aligned columns, an empty line between blocks."""
    return "\n".join(filter(None, map(_plain, blocks)))


def _plain(block: Block) -> str:
    match block:
        case Rows(records, names, heading):
            lines = [[name.upper() for name in names]] if heading else []
            lines += [[cell(record.get(name)) for name in names] for record in records]
            widths = [max((len(line[index]) for line in lines), default=0) for index in range(len(names))]
            texts = (
                "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
                for line in lines
            )
            return "".join(f"{text.rstrip()}\n" for text in texts)
        case Facts(record, title):
            said = [f"{name}: {cell(value)}".rstrip() for name, value in record.items()]
            return "".join(f"{line}\n" for line in ([title] if title else []) + said)
        case Words(text):
            return f"{clean(text)}\n" if text else ""


def clean(text: str) -> str:
    """Text of several lines without what a terminal would obey."""
    return "\n".join(cell(line) for line in text.rstrip().split("\n"))


STATUS_STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "active", "accepting", "alive", "completed", "serving", "ready"), "green"),
    **dict.fromkeys(
        ("running", "pending", "waiting", "draining", "saturated", "warning", "paused"), "yellow"
    ),
    **dict.fromkeys(
        ("failed", "suspect", "stale", "throttled", "unavailable", "no_active_workers", "timed_out"), "red"
    ),
    **dict.fromkeys(("cancelled", "terminated", "skipped"), "dim"),
}
"""How a cell that says no more than this is coloured."""
