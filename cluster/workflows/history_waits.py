"""Waiting for the next event of a run without asking for it.

A waiting node marks the run; while the mark is fresh every commit of the run says so on the run's
channel. A run that nobody watches costs its commits nothing.
"""

from __future__ import annotations

from typing import Final

import trio

from cluster.ids import partition_of_run
from cluster.store.store import Store

MARGIN_MS: Final = 5_000
"""How much longer than the wait a mark lasts."""


class HistoryWaits:
    """The waits of one node."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefix = f"{store.keys.prefix}:events:"
        self._waiting: dict[str, set[trio.Event]] = {}
        self._closed = False

    def watch(self) -> None:
        """Hear of changes from now on."""
        self._store.on_message(self._prefix, self._on_change)
        self._store.on_reconnect(self._on_reconnect)

    def close(self) -> None:
        """End every wait, and let none last any more."""
        self._closed = True
        self._on_reconnect()

    @property
    def waiting(self) -> int:
        return sum(len(events) for events in self._waiting.values())

    async def wait(self, run_id: str, known: int, seconds: float) -> None:
        """Return once the run has more than ``known`` events, is closed or gone, or time is up."""
        channel = self._store.keys.events_channel(run_id)
        with trio.move_on_after(seconds):
            await self._store.subscribe(channel)
            try:
                await self._until_more(run_id, known, int(seconds * 1000) + MARGIN_MS)
            finally:
                with trio.CancelScope(shield=True):
                    await self._store.unsubscribe(channel)

    async def _until_more(self, run_id: str, known: int, mark_ms: int) -> None:
        keys, partition = self._store.keys, partition_of_run(run_id) or 0
        changed = trio.Event()
        waiting = self._waiting.setdefault(run_id, set())
        try:
            while True:
                changed = trio.Event()
                waiting.add(changed)
                # The mark is set before the events are counted, so no change falls between.
                count = await self._store.run(
                    "watch",
                    [keys.run(partition, run_id), keys.history(partition, run_id)],
                    [mark_ms],
                    idempotent=True,
                )
                if self._closed or count is None or count < 0 or count > known:
                    return
                await changed.wait()
                waiting.discard(changed)
        finally:
            waiting.discard(changed)
            if not waiting and self._waiting.get(run_id) is waiting:
                del self._waiting[run_id]

    def _on_change(self, channel: str, _message: bytes) -> None:
        for event in self._waiting.get(channel.removeprefix(self._prefix), ()):
            event.set()

    def _on_reconnect(self) -> None:
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()
