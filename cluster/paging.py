"""History page tokens: base64 of the decimal ordinal of the last event sent (sdk-wire 2.5)."""

from __future__ import annotations

from base64 import b64decode, b64encode


def page_token(sent: int, total: int) -> str | None:
    """Token of the page after the first ``sent`` of ``total`` events: base64 of the last ordinal."""
    return b64encode(str(sent).encode()).decode() if sent < total else None


def page_start(token: str) -> int | None:
    """The ordinal a page token stands for (0 = from the start), or None when it is malformed."""
    try:
        start = int(b64decode(token, validate=True))
    except ValueError:
        return None
    return start if 0 <= start < 1 << 53 else None
