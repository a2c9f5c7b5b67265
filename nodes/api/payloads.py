"""Payloads in request bodies: envelopes pass untouched, bare JSON is encoded (server-behaviour 5.12)."""

from __future__ import annotations

from typing import Any

from cluster import payloads
from cluster.errors import ValidationFailed
from cluster.workflows.records import Payload


def read_payload(value: Any, field: str) -> Payload | None:
    """The payload in ``field``, None for null.

    An object with exactly ``codec`` and ``blob`` is an envelope. A string that is a blob of the
    codec already is taken as that blob; any other JSON value is encoded. Raises ValidationFailed.
    """
    if value is None:
        return None
    if payloads.is_envelope(value):
        return _envelope(value, field)
    if isinstance(value, dict) and value.keys() == {"codec", "external_storage"}:
        raise ValidationFailed({field: ["External payload storage is not available on this server."]})
    if isinstance(value, str) and _is_blob(value):
        return Payload(codec=payloads.CODEC, blob=value)
    try:
        return payloads.encode(value)
    except payloads.PayloadError as error:
        raise ValidationFailed({field: [f"The {field} field cannot be encoded: {error}."]}) from None


def _envelope(value: dict[str, Any], field: str) -> Payload | None:
    codec, blob = value["codec"], value["blob"]
    if codec != payloads.CODEC:
        raise ValidationFailed({f"{field}.codec": ["The payload codec is not supported; use avro."]})
    if blob is None:
        return None
    if not isinstance(blob, str):
        raise ValidationFailed({f"{field}.blob": [f"The {field}.blob field must be a string."]})
    return Payload(codec=codec, blob=blob)


def _is_blob(text: str) -> bool:
    try:
        payloads.decode(Payload(codec=payloads.CODEC, blob=text))
    except payloads.PayloadError:
        return False
    return True


def show_envelope(payload: Payload | None) -> dict[str, str] | None:
    """A payload as ``{codec, blob}``."""
    return None if payload is None else {"codec": payload.codec, "blob": payload.blob}


def show_value(payload: Payload | None) -> Any:
    """A payload's value for people to read; None when it cannot be shown as JSON."""
    if payload is None:
        return None
    try:
        return payloads.json_view(payloads.decode(payload))
    except payloads.PayloadError:
        return None
