"""Commits of one partition that are asked for together travel as one script call.

``commit.lua`` takes any number of transactions and treats each on its own. Callers that arrive
while a group is being gathered (the same loop turn, as a rule) join it; the group is sent by a
task of the store, so a cancelled caller loses its answer but not the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from cluster.errors import OutcomeUnknown, StoreError
from cluster.store.transaction import Transaction

GROUP_TRANSACTIONS: Final = 32
"""So many take Redis about a millisecond (H6)."""
GROUP_BYTES: Final = 1024 * 1024


class Packed(msgspec.Struct, frozen=True):
    """A transaction and its wire form."""

    tx: Transaction
    data: bytes

    @property
    def repeatable(self) -> bool:
        """Whether asking again cannot apply it twice."""
        return bool(self.tx.request_id and self.tx.ring)


CommitResult = bool | StoreError
Send = Callable[[Sequence[Packed]], Awaitable[list[CommitResult]]]


@dataclass(slots=True)
class _Group:
    members: list[Packed] = field(default_factory=list)
    size: int = 0
    results: list[CommitResult] = field(default_factory=list)
    done: trio.Event = field(default_factory=trio.Event)

    def has_room(self, item: Packed) -> bool:
        if not self.members:
            return True
        return len(self.members) < GROUP_TRANSACTIONS and self.size + len(item.data) <= GROUP_BYTES

    def add(self, item: Packed) -> int:
        self.members.append(item)
        self.size += len(item.data)
        return len(self.members) - 1


def split(items: Sequence[Packed]) -> list[list[Packed]]:
    """Cut into groups within the bounds, each of one mode, keeping the order."""
    groups: list[_Group] = []
    for item in items:
        last = groups[-1] if groups else None
        if last is None or not last.has_room(item) or last.members[0].tx.frees != item.tx.frees:
            last = _Group()
            groups.append(last)
        last.add(item)
    return [group.members for group in groups]


class Aggregator:
    """Gathers single commits into groups by (partition, mode)."""

    def __init__(self, nursery: trio.Nursery, send: Send) -> None:
        """``send`` commits a group and returns one result per transaction; it may not raise."""
        self._nursery = nursery
        self._send = send
        self._open: dict[tuple[int, bool], _Group] = {}

    async def commit(self, item: Packed) -> CommitResult:
        """Commit together with whoever asks in the meantime."""
        key = (item.tx.partition, item.tx.frees)
        group = self._open.get(key)
        if group is None or not group.has_room(item):
            group = self._open[key] = _Group()
            self._nursery.start_soon(self._flush, key, group)
        index = group.add(item)
        await group.done.wait()
        return group.results[index]

    async def _flush(self, key: tuple[int, bool], group: _Group) -> None:
        if self._open.get(key) is group:
            del self._open[key]
        try:
            group.results = await self._send(group.members)
        finally:
            if not group.results:
                group.results = [OutcomeUnknown("the store was closed")] * len(group.members)
            group.done.set()
