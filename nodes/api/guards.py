"""Checks of a body that come before everything else (server-behaviour 1.1, step 1)."""

from __future__ import annotations

from typing import Any, Final

from cluster.errors import Refused
from nodes.api import documents
from nodes.api.messages import Request

_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_ACCEPTED: Final = ["application/json", "application/*+json"]


def too_large(limit: int) -> Refused:
    """The refusal of a body over ``limit`` bytes."""
    return Refused("payload_too_large", "The request body is too large.", status=413, limit=limit)


def check_framing(request: Request) -> None:
    """Raises Refused (400) for a request that tells its length in two ways: two readers may differ."""
    names = {name for name, _ in request.headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Refused(
            "malformed_request", "Content-Length and Transfer-Encoding exclude each other.", status=400
        )


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    kind, slash, subtype = media_type.partition("/")
    if media_type == "application/json":
        return True
    return bool(kind and slash and subtype.endswith("+json") and len(subtype) > len("+json"))


def read_body(request: Request, limit: int) -> Any:
    """The JSON document of a request, {} when it has no body.

    Raises Refused: 413 over ``limit`` bytes, 415 for another media type or an encoded body,
    400 for malformed JSON.
    """
    if len(request.body) > limit or (request.content_length or 0) > limit:
        raise too_large(limit)
    if request.method not in _WITH_BODY or not (request.body or request.content_length):
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
