"""Decoding of paths and query strings: percent-decoded once, strict UTF-8, no guessing."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from cluster.errors import Refused

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
MAX_QUERY_FIELDS = 64


def _decode(part: bytes, where: str) -> str:
    if _BAD_ESCAPE.search(part):
        raise _malformed(where)
    return _text(unquote_to_bytes(part), where)


def _text(part: bytes, where: str) -> str:
    try:
        return part.decode()
    except ValueError:
        raise _malformed(where) from None


def _malformed(where: str) -> Refused:
    return Refused("malformed_request", f"The {where} is not valid percent-encoded UTF-8.", status=400)


def split_path(raw_path: bytes) -> tuple[str, ...]:
    """The decoded segments of a path; an encoded slash stays inside its segment.

    One trailing slash is ignored. Raises Refused (400) for a malformed escape or bad UTF-8.
    """
    path = raw_path[1:] if raw_path.startswith(b"/") else raw_path
    if path.endswith(b"/"):
        path = path[:-1]
    if b"%" not in path:
        return tuple(_text(path, "path").split("/"))
    return tuple(_decode(part, "path") for part in path.split(b"/"))


def parse_query(query_string: bytes) -> dict[str, str]:
    """Query fields; the last of repeated ones counts. Raises Refused (400) when malformed."""
    fields: dict[str, str] = {}
    for count, pair in enumerate(filter(None, query_string.split(b"&"))):
        if count >= MAX_QUERY_FIELDS:
            raise Refused("malformed_request", "The query string has too many fields.", status=400)
        name, _, value = pair.replace(b"+", b" ").partition(b"=")
        fields[_decode(name, "query string")] = _decode(value, "query string")
    return fields
