"""Payloads for people: decoded where the codec is known, else their size and the start of their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cluster import payloads
from cluster.workflows.records import Payload
from nodes.console.rendering import pretty

MOST_RAW: Final = 4096
"""Characters shown of a blob that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """``text`` is the value as JSON, or the start of the base64 text; ``note`` says which, and how large."""

    name: str
    text: str
    note: str
    octets: int


def show(name: str, envelope: Any) -> ShownPayload | None:
    """An envelope as it travels; None when there is none."""
    if not payloads.is_envelope(envelope) or envelope["blob"] is None:
        return None
    codec, blob = str(envelope["codec"]), str(envelope["blob"])
    octets = len(blob) * 3 // 4
    try:
        value = payloads.json_view(payloads.decode(Payload(codec=codec, blob=blob)))
    except payloads.PayloadError:
        note = f"codec {codec}, which the server cannot read; base64"
        return ShownPayload(name, blob[:MOST_RAW] + ("..." if len(blob) > MOST_RAW else ""), note, octets)
    return ShownPayload(name, pretty(value), f"decoded from {codec}", octets)


def payloads_of(payload: Mapping[str, Any]) -> list[ShownPayload]:
    """All payloads among the members of an event."""
    found = []
    for name, value in payload.items():
        envelope = value
        if isinstance(value, str) and name in ("result", "output") and payload.get("payload_codec"):
            envelope = {"codec": payload["payload_codec"], "blob": value}
        shown = show(name, envelope)
        if shown is not None:
            found.append(shown)
    return found
