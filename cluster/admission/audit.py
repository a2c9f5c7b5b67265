"""Drops tickets that no lease names, and keeps what partitions and namespaces know in step (rule D2).

A node may die between taking a ticket and claiming with it, or between a commit that ended a lease and
the drop of its ticket. Who takes a namespace's partition looks at tickets older than 10 s, and again every
5 s while it holds it.
No claim can use such a ticket any more, so one that no live lease names is dropped, under the condition
that it still is the one that was looked at.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Sequence
from random import Random
from typing import Final

import structlog
import trio

from cluster.admission import tickets
from cluster.admission.counting import Counting
from cluster.admission.limit_store import LimitStore
from cluster.admission.tickets import OldTicket, Ticket
from cluster.errors import StoreError
from cluster.ids import TaskKind
from cluster.membership.housekeeping import HeldPartition
from cluster.store.store import Store

log = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 5.0
CHUNK: Final = 100
"""Tickets looked at per script (H6)."""
REMEMBERED: Final = 200_000
"""Most tickets whose partition an auditor remembers."""


def auditing_partition(namespace: str, partitions: int) -> int:
    """The partition whose holder audits a namespace."""
    return crc32(namespace.encode()) % partitions


class Audit:
    """Audits, for each held partition, the namespaces that fall to it."""

    def __init__(
        self, store: Store, limits: LimitStore, random: Random, every: float = EVERY_SECONDS
    ) -> None:
        self._store = store
        self._limits = limits
        self._counting = Counting(store)
        self._random = random
        self._every = every
        self._seen: dict[str, int] = {}
        self._generations: dict[str, str] = {}
        self.tickets_dropped = 0
        self.leases_adopted = 0

    async def housekeep(self, held: HeldPartition) -> None:
        """Audit at once and then every few seconds, until cancelled.

        At once, because where nodes die again and again nobody may hold the partition long enough for more.
        """
        while True:
            try:
                if held.may_act():
                    await self._audit_partition(held)
            except StoreError as error:
                log.debug("audit_postponed", partition=held.partition, reason=error.reason)
            await trio.sleep(self._every * self._random.uniform(0.8, 1.2))

    async def _audit_partition(self, held: HeldPartition) -> None:
        names = await self._store.call("SMEMBERS", self._store.keys.counted(), idempotent=True)
        for name in sorted(names):
            namespace = name.decode()
            mine = auditing_partition(namespace, self._store.keys.partitions) == held.partition
            if mine and held.may_act():
                await self.audit(namespace)

    async def audit(self, namespace: str) -> int:
        """Audit one namespace; returns how many tickets were dropped. Any node may; raises StoreError."""
        fields = [f"on:{kind.value}" for kind in TaskKind]
        version, told, *counting = await self._store.call(
            "HMGET", self._store.keys.terms(namespace), "v", "told", *fields, idempotent=True
        )
        if (version or b"0") != (told or b"0"):
            # Whoever changed the limits died before every partition knew.
            self._limits.forget(namespace)
            await self._limits.announce(namespace, int(version))
        before = self.tickets_dropped
        for kind, who in zip(TaskKind, counting, strict=True):
            if who is not None:
                await self._adopt_after_failover(namespace, kind)
            await self._drop_orphans(namespace, kind)
            book = await self._limits.book(namespace)
            if who is not None and not book.counts_leases(kind):
                await self._counting.end(namespace, kind, who.decode())
        return self.tickets_dropped - before

    async def _adopt_after_failover(self, namespace: str, kind: TaskKind) -> None:
        """Another server may have lost tickets whose leases it kept."""
        generation, scope = self._store.generation, f"{kind.value} {namespace}"
        if self._generations.get(scope, generation) != generation:
            adopted = await self._counting.adopt_all(namespace, kind)
            self.leases_adopted += adopted
            if adopted:
                log.warning("lost_tickets_restored", namespace=namespace, leases=adopted)
        self._generations[scope] = generation

    async def _drop_orphans(self, namespace: str, kind: TaskKind) -> None:
        after: OldTicket | None = None
        while True:
            chunk = await tickets.old_tickets(self._store, namespace, kind, after, CHUNK)
            orphans = [
                Ticket(kind, ticket.name, record=ticket.record) for ticket in await self._orphans(chunk)
            ]
            if orphans:
                dropped = await tickets.discharge(self._store, namespace, orphans)
                self.tickets_dropped += dropped
                log.info("unused_tickets_dropped", namespace=namespace, tickets=dropped)
            if len(chunk) < CHUNK:
                return
            after = chunk[-1]

    async def _orphans(self, chunk: Sequence[OldTicket]) -> list[OldTicket]:
        """Those of ``chunk`` that no lease in any partition names."""
        unnamed = {ticket.name: ticket for ticket in chunk}
        by_partition: dict[int, list[str]] = {}
        for name in unnamed:
            if name in self._seen:
                by_partition.setdefault(self._seen[name], []).append(name)
        for partition, names in by_partition.items():
            await self._ask(partition, names, unnamed)
        for partition in range(self._store.keys.partitions):
            if not unnamed:
                break
            await self._ask(partition, list(unnamed), unnamed)
        for name in unnamed:
            self._seen.pop(name, None)
        return list(unnamed.values())

    async def _ask(self, partition: int, names: list[str], unnamed: dict[str, OldTicket]) -> None:
        found = await tickets.named_by_leases(self._store, partition, names)
        if len(self._seen) > REMEMBERED:
            self._seen.clear()
        for name, named in zip(names, found, strict=True):
            if named:
                self._seen[name] = partition
                del unnamed[name]
