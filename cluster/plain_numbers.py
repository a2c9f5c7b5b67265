"""Numbers in JSON that its readers would understand differently, or not at all.

JSON bounds no number. But an integer beyond 64 bits is rounded by one reader, kept by the next and
refused by a third; Python reads no more than 4,300 digits; and 1e400 is an infinity, which JSON has not.
"""

from __future__ import annotations

import math
import re
from typing import Final

_SUSPECT: Final = re.compile(rb"[0-9](?:[0-9]{18}|[eE])")
"""Without this there is no such number. It begins with a digit, which is looked for fast."""
# Possessive, and at home with a string that does not end: hostile input must not make it look twice.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NUMBER: Final = re.compile(rb"-?[0-9]++(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+")
_MOST_DIGITS: Final = 20
_MIN_INTEGER: Final = -(1 << 63)
_MAX_INTEGER: Final = (1 << 63) - 1


def number_problem(text: bytes) -> str | None:
    """What is wrong with a number in the JSON ``text``, None when nothing is. Linear in its length."""
    if not _SUSPECT.search(text):
        return None
    for match in _NUMBER.finditer(_STRING.sub(b"", text)):
        number = match[0]
        if not number.lstrip(b"-").isdigit():
            if not math.isfinite(float(number)):
                return "number is too large"
        elif len(number) > _MOST_DIGITS or not _MIN_INTEGER <= int(number) <= _MAX_INTEGER:
            return "integer does not fit into 64 bits"
    return None
