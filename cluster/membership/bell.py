"""A wake-up that is never lost: a ring while nobody waits ends the next wait at once."""

from __future__ import annotations

import trio


class Bell:
    """One task waits, anybody rings; rings between two waits count once."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, seconds: float = float("inf")) -> None:
        """Return at the next ring, or after ``seconds``."""
        with trio.move_on_after(seconds):
            await self._event.wait()
        self._event = trio.Event()
