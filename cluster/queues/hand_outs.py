"""Steps on their way from the store to a slot."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import trio


class HandedOut(msgspec.Struct, frozen=True):
    """A step that the store has given to a worker; ``body`` is the task as the flow engine makes it."""

    partition: int
    task_id: str
    attempt: int
    delivery: int
    handed_out_ms: int
    body: bytes


@dataclass(slots=True)
class UnderWay:
    """Tells a moment in which nothing is on its way to this node: what the store says is handed out to it is
    known here then.

    Whatever may bring a hand-out is done inside :meth:`begin` and :meth:`end`, any number at a time.
    """

    _number: int = 0
    _alone: trio.Lock = field(default_factory=trio.Lock)
    _none: trio.Event = field(default_factory=trio.Event)

    async def begin(self) -> None:
        """Something that may bring a hand-out begins; waits while somebody looks."""
        if self._alone.locked():
            async with self._alone:
                self._number += 1
        else:
            self._number += 1

    def begin_now(self) -> bool:
        """As :meth:`begin`, but False, and nothing begins, where that would wait."""
        if self._alone.locked():
            return False
        self._number += 1
        return True

    def end(self) -> None:
        """It is over, and what it brought is known."""
        self._number -= 1
        if not self._number:
            self._none.set()

    async def __aenter__(self) -> None:
        """Wait until nothing is under way; nothing begins until the block ends."""
        await self._alone.acquire()
        try:
            while self._number:
                self._none = trio.Event()
                await self._none.wait()
        except BaseException:
            self._alone.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._alone.release()
