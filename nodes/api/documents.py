"""Reading and writing JSON bodies.

orjson already refuses NaN, infinities, lone surrogates and bad UTF-8. Added here: duplicate
keys, nesting deeper than ``MAX_DEPTH`` and integers that do not fit into 64 bits, all of which
two readers could understand differently.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from cluster.plain_numbers import number_problem

MAX_DEPTH: Final = 64

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class DocumentError(ValueError):
    """The bytes are no JSON that every reader understands alike; the text says why."""


def read(body: bytes) -> Any:
    """The JSON value of ``body``. Raises DocumentError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DocumentError(str(error)) from None
    problem = number_problem(body)
    if problem is not None:
        raise DocumentError(problem)
    if _is_plain(value, body):
        return value
    if _count_keys(value) != _STRING.sub(b"", body).count(b":"):
        raise DocumentError("duplicate key in an object")
    return value


def _is_plain(value: Any, body: bytes) -> bool:
    """Whether ``body`` is what we would write for ``value``, as compact JSON of other writers mostly is.

    Then no key was lost between the two, and with so few brackets nothing is nested too deeply.
    """
    return body.count(b"{") + body.count(b"[") <= MAX_DEPTH and orjson.dumps(value) == body


def _count_keys(value: Any) -> int:
    """Keys of all objects in ``value``; raises DocumentError when it is nested too deeply."""
    keys = 0
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                keys += len(item)
                below.extend(child for child in item.values() if isinstance(child, dict | list))
            elif isinstance(item, list):
                below.extend(child for child in item if isinstance(child, dict | list))
        if not below:
            return keys
        level = below
    raise DocumentError(f"nested deeper than {MAX_DEPTH} levels")


def write(value: Any) -> bytes:
    """``value`` as compact JSON; ``orjson.Fragment`` members are copied as they are."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
