"""What is wrong with the settings, and what they are: text for people, secrets masked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from cluster.settings.names import BY_KEY, Name
from cluster.settings.origins import Origin
from cluster.settings.schema import Settings
from cluster.settings.values import mask_url

MASK = "***"
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, as one line; a warning does not stop the start."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line of ``headrace config``."""

    key: str
    variable: str | None
    value: Any
    origin: str
    text: str


def masked(name: Name | None, value: object) -> str:
    """``value`` as it may be shown: secrets hidden, long text cut."""
    if name is not None and name.secret:
        return mask_url(str(value)) if name.key == "redis_url" else MASK
    shown = repr(value) if isinstance(value, str) else str(value)
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}..."


def unknown_key(key: str, origin: Origin) -> Problem:
    close = difflib.get_close_matches(key, list(BY_KEY), n=1, cutoff=0.7)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return Problem(f"unknown setting {key} in {origin}{hint}")


def bad_value(key: str, value: object, origin: Origin, expected: str) -> Problem:
    name = BY_KEY.get(key)
    shown = masked(name, value)
    where = f"{key} = {shown} in {origin}"
    if name is not None and name.variable == str(origin):
        where = f"{name.variable}={shown}"
    return Problem(f"{where}: {expected}")


def summary(problems: Sequence[Problem]) -> str:
    """All problems, one a line."""
    return "\n".join(problem.text for problem in problems)


def _plain(name: Name, value: Any) -> Any:
    if name.secret and value is not None:
        return masked(name, value)
    return value.value if hasattr(value, "value") else value


def rows(settings: Settings) -> list[Row]:
    """Every setting with its value and origin, in the order of the schema."""
    result = []
    for key, name in BY_KEY.items():
        holder: BaseModel = settings
        attribute = key
        if key.startswith("matching."):
            holder = settings.matching
            fields = type(settings.matching).model_fields
            attribute = next(field for field in fields if f"matching.{fields[field].alias}" == key)
        value = _plain(name, getattr(holder, attribute))
        result.append(Row(key, name.variable, value, str(settings.origin(key)), name.text))
    return result
