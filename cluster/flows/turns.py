"""Lets what concerns the same flow go one after the other on one node.

Commits are safe without this. But a flow with many parallel steps would have most of its decisions
made in vain: each rests on what the node remembers, which the one before it is about to change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from trio.lowlevel import ParkingLot, checkpoint_if_cancelled


class Turns:
    """Who is at which flow; nearly always nobody else waits, and then it costs an entry in a table."""

    def __init__(self) -> None:
        self._waiting: dict[str, ParkingLot | None] = {}
        """The flows that somebody is at; None until somebody else waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def of(self, run_ids: Iterable[str]) -> AsyncIterator[None]:
        """Have all these runs to oneself. Taken in one order, so nobody waits in a circle."""
        held: list[str] = []
        await checkpoint_if_cancelled()
        try:
            for run_id in sorted(set(run_ids)):
                if run_id in self._waiting:
                    await self._wait(run_id)
                else:
                    self._waiting[run_id] = None
                held.append(run_id)
            yield
        finally:
            for run_id in held:
                self._leave(run_id)

    async def _wait(self, run_id: str) -> None:
        lot = self._waiting[run_id]
        if lot is None:
            lot = self._waiting[run_id] = ParkingLot()
        await lot.park()

    def _leave(self, run_id: str) -> None:
        """Hand over to who waits longest, if anybody does."""
        lot = self._waiting[run_id]
        if lot:
            lot.unpark()
        else:
            del self._waiting[run_id]
