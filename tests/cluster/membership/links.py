"""A node's way to the store, which a test can stop, cut or watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import trio

from cluster.errors import OutcomeUnknown, StoreUnavailable
from cluster.store.store import Store


class Link:
    """A node's own way to a shared store, which a test can stop, cut or watch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._flowing = trio.Event()
        self._flowing.set()
        self.is_cut = False
        self.refused: set[str] = set()
        self.lose_replies = 0
        self.generation = store.generation
        self.clustered = False
        self.calls: list[tuple[str, int]] = []

    def freeze(self) -> None:
        """Calls wait, as in a process that is stopped."""
        self._flowing = trio.Event()

    def thaw(self) -> None:
        self._flowing.set()

    async def run(self, script: str, keys: Sequence[str], args: Sequence[Any], **options: bool) -> Any:
        await self._flowing.wait()
        if self.is_cut or script in self.refused:
            await trio.lowlevel.checkpoint()
            raise StoreUnavailable("cut off by the test")
        self.calls.append((script, len(keys)))
        reply = await self._store.run(script, keys, args, **options)
        if self.lose_replies:
            self.lose_replies -= 1
            raise OutcomeUnknown("reply lost by the test")
        await self._flowing.wait()
        return reply

    def as_store(self) -> Store:
        return cast(Store, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
