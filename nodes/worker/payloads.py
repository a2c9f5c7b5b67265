"""Values of handlers and clients as JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """``value`` as JSON. Raises ValueError for NaN and infinities, and what msgspec cannot encode."""
    data = _encode(value)
    # The encoder writes them as null, which would silently become another value.
    if b"null" in data and not _is_finite(msgspec.to_builtins(value)):
        raise ValueError("NaN and infinities cannot be written as JSON")
    return data


def _is_finite(value: Any) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return False
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
    return True
