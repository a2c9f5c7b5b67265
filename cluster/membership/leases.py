"""Partition leases in Redis, for many partitions in one script call where that is possible (E4)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import trio

from cluster.errors import StoreError
from cluster.membership.timing import Timing, milliseconds

if TYPE_CHECKING:
    from cluster.store.store import Store


class Standing(IntEnum):
    """What a look made of a lease, seen from the node that looked."""

    NOT_OURS = 0
    KEPT = 1
    TAKEN = 2


@dataclass(frozen=True, slots=True)
class Lease:
    """One partition's lease as Redis showed it. ``owner`` is "" and ``ends_in`` 0 when it is free."""

    partition: int
    owner: str
    ends_in: float
    epoch: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Leases seen in one look, and the nonce of those taken in it."""

    leases: tuple[Lease, ...]
    nonce: str


class LeaseStore:
    """Renews, takes and releases partition leases.

    On a Redis Cluster a script may touch one slot only: held leases are renewed side by side, and
    the others are looked at only while some are wanted.
    """

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._nonce = secrets.token_hex(8)

    async def exchange(self, owner: str, held: Mapping[int, str], want: int) -> LeaseView:
        """Renew ``held`` (partition -> nonce) and take up to ``want`` free leases.

        A partition without an entry in the answer was not reached. Raises StoreError when none was.
        The nonce for new leases stays the same until a call succeeds, so a lease whose taking
        went unheard is recognised by the next one.
        """
        nonce = self._nonce
        if self._store.clustered:
            leases = await self._one_by_one(owner, held, want)
        else:
            leases = await self._ask(owner, range(self._store.keys.partitions), held, want)
        self._nonce = secrets.token_hex(8)
        return LeaseView(tuple(leases), nonce)

    async def release(self, owner: str, held: Mapping[int, str]) -> None:
        """Give leases back (partition -> nonce) and tell the others. Raises StoreError."""
        groups = [[partition] for partition in held] if self._store.clustered else [list(held)]
        for group in filter(None, groups):
            await self._store.run(
                "release",
                [self._store.keys.lease(partition) for partition in group],
                [owner, self._store.keys.changed_channel(), *(held[partition] for partition in group)],
                idempotent=True,
                urgent=True,
            )

    async def _one_by_one(self, owner: str, held: Mapping[int, str], want: int) -> list[Lease]:
        partitions = range(self._store.keys.partitions) if want else sorted(held)
        seen: dict[int, Lease] = {}
        failures: list[StoreError] = []

        async def look(partition: int, take: int) -> None:
            try:
                (seen[partition],) = await self._ask(owner, [partition], held, take)
            except StoreError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for partition in partitions:
                nursery.start_soon(look, partition, 0)
        free = [lease.partition for lease in seen.values() if not lease.owner]
        async with trio.open_nursery() as nursery:
            for partition in free[:want]:
                nursery.start_soon(look, partition, 1)
        if failures and not seen:
            raise failures[0]
        return list(seen.values())

    async def _ask(
        self, owner: str, partitions: Sequence[int], held: Mapping[int, str], want: int
    ) -> list[Lease]:
        reply = await self._store.run(
            "partitions",
            [self._store.keys.lease(partition) for partition in partitions],
            [
                owner,
                milliseconds(self._timing.lease_ttl),
                want,
                self._nonce,
                *(held.get(partition, "") for partition in partitions),
            ],
            idempotent=True,
            urgent=True,
        )
        now_ms = reply[0]
        return [
            Lease(
                partition=partition,
                owner=reply[i].decode(),
                ends_in=max(0, reply[i + 1] - now_ms) / 1000,
                epoch=reply[i + 2],
                standing=Standing(reply[i + 3]),
            )
            for partition, i in zip(partitions, range(1, len(reply), 4), strict=True)
        ]
