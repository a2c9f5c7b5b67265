"""Memos and search attributes in request bodies: sizes that depend on settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from cluster.settings.schema import Settings
from nodes.api import documents

ATTRIBUTE_NAME: Final = r"^[a-zA-Z][a-zA-Z0-9_]*$"
_NAME = re.compile(ATTRIBUTE_NAME)


def memo_too_large(memo: object, settings: Settings) -> bool:
    """Whether a memo is larger than the server keeps."""
    return isinstance(memo, dict) and len(documents.write(memo)) > settings.max_memo_bytes


def attribute_faults(attributes: object, settings: Settings) -> list[str]:
    """What is wrong with the names and values of a search_attributes object."""
    if not isinstance(attributes, dict):
        return []
    return [text for pair in attributes.items() for text in _faults(*pair, settings)]


def _faults(name: str, value: Any, settings: Settings) -> Iterator[str]:
    longest = settings.max_search_attribute_key_length
    if not _NAME.fullmatch(name):
        yield "A search attribute's name starts with a letter, then letters, digits and underscores."
    elif len(name) > longest:
        yield f"A search attribute's name must not be longer than {longest} bytes."
    largest = settings.max_search_attribute_value_bytes
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    if any(len(text.encode()) > largest for text in texts):
        yield f"The value of {name[:longest]} must not be larger than {largest} bytes."
