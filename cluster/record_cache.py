"""A node's memory of small records that live in Redis.

An entry is trusted while change messages arrive: whoever writes a record publishes its name, and
after a gap in the subscription everything is forgotten. ``max_age`` bounds what a lost message can
do. Absence is never remembered, so a new record is seen at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cluster.store.keys import decode, encode

if TYPE_CHECKING:
    from cluster.store.store import Store

Record = TypeVar("Record")

MAX_AGE_SECONDS: Final = 600.0
MAX_ENTRIES: Final = 100_000


def change_message(family: str, *names: str) -> str:
    """The message that tells all nodes that a record changed."""
    return " ".join((family, *map(encode, names)))


class RecordCache(Generic[Record]):
    """Reads records of one family through ``load``, which gets the record's names."""

    def __init__(
        self,
        family: str,
        load: Callable[..., Awaitable[Record | None]],
        *,
        max_age: float = MAX_AGE_SECONDS,
        max_entries: int = MAX_ENTRIES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._family = family
        self._load = load
        self._max_age = max_age
        self._max_entries = max_entries
        self._now = now
        self._entries: dict[tuple[str, ...], tuple[Record, float]] = {}
        self._loading: dict[tuple[str, ...], int] = {}
        self._changed: set[tuple[str, ...]] = set()
        self._watching = False

    async def watch(self, store: Store) -> None:
        """Listen for changes. Until this returns nothing is remembered."""
        store.on_message(store.keys.changed_channel(), self._heard)
        store.on_reconnect(self.forget_all)
        await store.subscribe(store.keys.changed_channel())
        self._watching = True

    async def get(self, *names: str) -> Record | None:
        """The record, or None when there is none. May raise StoreError."""
        entry = self._entries.get(names)
        if entry is not None and self._now() - entry[1] < self._max_age:
            return entry[0]
        self._loading[names] = self._loading.get(names, 0) + 1
        try:
            asked = self._now()
            record = await self._load(*names)
            changed = names in self._changed
        finally:
            self._loading[names] -= 1
            if not self._loading[names]:
                del self._loading[names]
                self._changed.discard(names)
        if record is not None and self._watching and not changed:
            self._remember(names, record, asked)
        return record

    def forget(self, *names: str) -> None:
        """The record changed: read it again, and do not keep an answer that is on its way."""
        self._entries.pop(names, None)
        if names in self._loading:
            self._changed.add(names)

    def forget_all(self) -> None:
        """Messages may have been missed."""
        self._entries.clear()
        self._changed.update(self._loading)

    def _remember(self, names: tuple[str, ...], record: Record, asked: float) -> None:
        self._entries.pop(names, None)
        if len(self._entries) >= self._max_entries:
            del self._entries[next(iter(self._entries))]
        self._entries[names] = (record, asked)

    def _heard(self, channel: str, message: bytes) -> None:
        family, *names = message.decode(errors="replace").split(" ")
        if family == self._family:
            self.forget(*map(decode, names))
