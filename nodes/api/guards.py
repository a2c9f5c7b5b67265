"""Checks of head and body that come before everything else (server-behaviour 1.1, step 1)."""

from __future__ import annotations

from typing import Any, Final

from cluster.errors import Refused
from nodes.api import documents
from nodes.api.limits import MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from nodes.api.messages import Request

_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_ACCEPTED: Final = ["application/json", "application/*+json"]


def too_large(limit: int) -> Refused:
    """The refusal of a body over ``limit`` bytes."""
    return Refused("payload_too_large", "The request body is too large.", status=413, limit=limit)


def target_too_long(limit: int) -> Refused:
    """The refusal of a path with its query over ``limit`` bytes."""
    return Refused("target_too_long", "The path is too long.", status=414, limit=limit)


def header_too_large(limit: int, most_headers: int) -> Refused:
    """The refusal of a header over ``limit`` bytes or with more than ``most_headers`` lines."""
    text = "The request's header is too large."
    return Refused("header_too_large", text, status=431, limit=limit, most_headers=most_headers)


def check_head(request: Request) -> None:
    """Raises Refused: 400 for a target that is no path, 414 and 431 for what is too large.

    HTTP/1.1 refuses these while it reads them, with the same answers.
    """
    if not request.raw_path.startswith(b"/") or b"#" in request.raw_path or b"#" in request.query_string:
        raise Refused("malformed_request", "The target of the request is not a path.", status=400)
    query = len(request.query_string)
    if len(request.raw_path) + query + bool(query) > MAX_TARGET_BYTES:
        raise target_too_long(MAX_TARGET_BYTES)
    size = sum(len(name) + len(value) + 4 for name, value in request.headers)
    if size > MAX_HEADER_BYTES or len(request.headers) > MAX_HEADERS:
        raise header_too_large(MAX_HEADER_BYTES, MAX_HEADERS)


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        return True
    kind, slash, subtype = media_type.partition("/")
    return bool(kind and slash and subtype.endswith("+json") and len(subtype) > len("+json"))


def read_body(request: Request, limit: int) -> Any:
    """The JSON document of a request, {} when it has no body.

    Raises Refused: 413 over ``limit`` bytes, 415 for another media type or an encoded body,
    400 for malformed JSON.
    """
    declared = request.content_length or 0
    if len(request.body) > limit or declared > limit:
        raise too_large(limit)
    if request.method not in _WITH_BODY or not (request.body or declared):
        return {}
    if not _is_json(request.header(b"content-type") or ""):
        raise Refused(
            "unsupported_media_type",
            "Request bodies must be JSON.",
            status=415,
            accepted_content_types=_ACCEPTED,
        )
    if (request.header(b"content-encoding") or "identity").lower() != "identity":
        raise Refused(
            "unsupported_media_type",
            "Compressed request bodies are not accepted.",
            status=415,
            accepted_content_types=_ACCEPTED,
        )
    try:
        return documents.read(request.body)
    except documents.DocumentError as error:
        raise Refused(
            "malformed_json",
            "Request bodies must contain valid JSON.",
            status=400,
            json_error=str(error),
        ) from None
