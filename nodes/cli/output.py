"""Plain text for people: aligned columns and ``key: value`` lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def cell(value: Any) -> str:
    """``value`` on one line; nothing for None, JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("\n", " ")
    return json.dumps(value, ensure_ascii=False)


def columns(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """A table with a heading; columns are as wide as their longest cell."""
    table = [[name.upper() for name in names]]
    table += [[cell(record.get(name)) for name in names] for record in records]
    widths = [max(len(row[index]) for row in table) for index in range(len(names))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def pairs(record: Mapping[str, Any]) -> str:
    """One ``key: value`` line each."""
    return "".join(f"{key}: {cell(value)}".rstrip() + "\n" for key, value in record.items())
