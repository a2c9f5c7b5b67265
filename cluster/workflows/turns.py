"""Decisions about one run take turns on a node.

Commits of one run can only hold one after the other. Without turns a node whose workers answer at
the same moment competes with itself, and most decisions are made in vain. A turn is a courtesy and
protects nothing: who has waited too long, because the store is slow, goes without.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import trio

PATIENCE_SECONDS: Final = 3.0
"""Longest wait for a turn."""


class Turns:
    """Keeps the turns of one node."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, run_id: str) -> AsyncIterator[None]:
        """Waits until nobody else of this node decides about the run, but not for ever."""
        lock = self._locks.get(run_id)
        if lock is None:
            lock = self._locks[run_id] = trio.Lock()
        try:
            lock.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(PATIENCE_SECONDS) as waited:
                await lock.acquire()
            if waited.cancelled_caught:
                yield
                return
        try:
            yield
        finally:
            lock.release()
