"""Hears of flows that close and calls that end, so that nobody has to look again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from cluster.store.store import Store


class Listener:
    """One who waits for a run to close, or for the answer to a request."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Returns when it may have come since the last call; look at it then."""
        await self._event.wait()
        self._event = trio.Event()


class FlowEnds:
    """Wakes listeners when what they wait for has come, or when that may have been missed.

    Runs go by their id, requests to a run by ``<run id>/<digest>``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: dict[str, set[Listener]] = {}
        self.closed = False
        store.on_message(store.keys.flow_end_channel(""), self._on_end)
        store.on_reconnect(self._ring_all)

    @asynccontextmanager
    async def listening(self, place: str) -> AsyncIterator[Listener]:
        """A listener that misses nothing from now on. Raises StoreUnavailable."""
        listener = Listener()
        channel = self._store.keys.flow_end_channel(place)
        self._listeners.setdefault(place, set()).add(listener)
        try:
            await self._store.subscribe(channel)
            try:
                yield listener
            finally:
                await self._store.unsubscribe(channel)
        finally:
            self._listeners[place].discard(listener)
            if not self._listeners[place]:
                del self._listeners[place]

    def _on_end(self, channel: str, _message: bytes) -> None:
        for listener in self._listeners.get(channel.rpartition(":")[2], ()):
            listener.ring()

    @property
    def listeners(self) -> int:
        """How many wait here now."""
        return sum(len(listeners) for listeners in self._listeners.values())

    def close(self) -> None:
        """Let everybody go: this node is leaving."""
        self.closed = True
        self._ring_all()

    def _ring_all(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.ring()
