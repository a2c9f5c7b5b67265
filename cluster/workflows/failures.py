"""How failures reported by workers appear in events (server-behaviour 5.8, 5.12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster import payloads
from cluster.workflows.deadlines import TimeoutKind
from cluster.workflows.records import Payload

APPLICATION = "application"
TIMEOUT = "timeout"
CANCELLATION = "cancellation"
STRUCTURAL_LIMIT = "structural_limit"


def envelope(payload: Payload) -> dict[str, str]:
    """A payload as events and answers carry it."""
    return {"codec": payload.codec, "blob": payload.blob}


def arguments(payload: Payload | None) -> dict[str, Any]:
    """What a client sent along, as events carry it."""
    if payload is None:
        return {}
    return {"arguments": envelope(payload), "payload_codec": payload.codec}


def activity_failure(failure: Mapping[str, Any], *, non_retryable: bool) -> dict[str, Any]:
    """The failure part of an ActivityFailed event, made from the worker's ``failure`` object."""
    message = failure["message"]
    exception: dict[str, Any] = {"message": message, "non_retryable": non_retryable}
    for name in ("type", "class", "code", "stack_trace", "diagnostics"):
        if failure.get(name) is not None:
            exception[name] = failure[name]
    if failure.get("details") is not None:
        exception |= _details(failure["details"])
    event: dict[str, Any] = {
        "message": message,
        "failure_category": failure.get("kind") or APPLICATION,
        "non_retryable": non_retryable,
        "exception": exception,
    }
    for name, source in (("exception_type", "type"), ("exception_class", "class"), ("code", "code")):
        if failure.get(source) is not None:
            event[name] = failure[source]
    if failure.get("timeout_type") is not None:
        event["timeout_kind"] = failure["timeout_type"]
    return event


def _details(details: object) -> dict[str, Any]:
    """Details as a blob and its codec; an envelope passes unchanged, plain JSON is encoded."""
    if isinstance(details, dict) and payloads.is_envelope(details):
        return {"details": details["blob"], "details_payload_codec": details["codec"]}
    try:
        payload = payloads.encode(details)
    except payloads.PayloadError as error:
        payload = payloads.encode(f"details that cannot be kept: {error}")
    return {"details": payload.blob, "details_payload_codec": payload.codec}


def timeout_failure(kind: TimeoutKind, message: str) -> dict[str, Any]:
    """The failure part of an ActivityTimedOut event."""
    return {
        "timeout_kind": kind.value,
        "message": message,
        "failure_category": TIMEOUT,
        "non_retryable": False,
        "exception_type": "ActivityTimedOut",
        "exception": {"type": "ActivityTimedOut", "message": message, "non_retryable": False},
    }
