"""Page tokens: base64 of the ordinal of the last event sent (sdk-wire 2.5), or of the last name."""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Sequence


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


def names_after(
    names: Sequence[str], token: str | None, size: int | None
) -> tuple[Sequence[str], str | None]:
    """A page of sorted ``names`` and the token of the next one; None as ``size`` is all of them.

    A token nobody made counts as absent (server-behaviour 1.7). Names that come and go between two pages
    shift nothing: a page begins after the last name of the one before.
    """
    try:
        last = urlsafe_b64decode((token or "").encode()).decode()
    except ValueError:
        last = ""
    rest = names[bisect_right(names, last) :] if last else names
    if size is None or len(rest) <= size:
        return rest, None
    return rest[:size], urlsafe_b64encode(rest[size - 1].encode()).decode()
