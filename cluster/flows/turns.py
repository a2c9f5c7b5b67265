"""Lets what concerns the same flow go one after the other on one node.

Commits are safe without this. But a flow with many parallel steps would have most of its decisions
made in vain: each rests on what the node remembers, which the one before it is about to change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass(slots=True)
class _Turn:
    lock: trio.Lock = field(default_factory=trio.Lock)
    users: int = 0


class Turns:
    """One lock per flow that somebody is at."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def of(self, run_ids: Iterable[str]) -> AsyncIterator[None]:
        """Have all these runs to oneself. Taken in one order, so nobody waits in a circle."""
        held: list[str] = []
        try:
            for run_id in sorted(set(run_ids)):
                await self._take(run_id)
                held.append(run_id)
            yield
        finally:
            for run_id in held:
                turn = self._turns[run_id]
                turn.lock.release()
                self._leave(run_id, turn)

    async def _take(self, run_id: str) -> None:
        turn = self._turns.setdefault(run_id, _Turn())
        turn.users += 1
        try:
            turn.lock.acquire_nowait()
        except trio.WouldBlock:
            try:
                await turn.lock.acquire()
            except BaseException:
                self._leave(run_id, turn)
                raise

    def _leave(self, run_id: str, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[run_id]
