"""Wrong tokens at the login page: so many from one address, then nobody logs in from there for a moment.

Tokens are too long to be guessed; this keeps those who try from costing anything. Behind a balancer all
browsers have its address, so it is the login alone that waits: sessions go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachetools import LRUCache

from cluster.errors import Refused
from nodes.api.allowance import Allowance

WRONG: Final = 30
WRONG_PER_SECOND: Final = 0.5
MOST_ADDRESSES: Final = 10_000
RETRY_AFTER_SECONDS: Final = 2


class Attempts:
    """What is left to each address. ``now`` returns seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left: LRUCache[str, Allowance] = LRUCache(MOST_ADDRESSES)

    def check(self, address: str | None) -> None:
        """Raises Refused (429) while nothing is left."""
        left = self._left.get(address or "")
        if left is not None and not left.has_some(self._now()):
            raise Refused(
                "too_many_attempts",
                "Too many wrong tokens came from your address; wait a moment.",
                status=429,
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )

    def failed(self, address: str | None) -> None:
        """A wrong token came."""
        now, name = self._now(), address or ""
        if name not in self._left:
            self._left[name] = Allowance(WRONG, WRONG_PER_SECOND, now)
        self._left[name].spend(now)
