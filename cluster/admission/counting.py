"""Begins and ends the counting of leases in a namespace, while tasks are leased (rule D3).

Where no lease limit applies, claims take no tickets. To begin, first every partition is told to refuse
claims without a ticket; then every lease that exists there gets one; only then are tickets given out.
So at no moment is there a lease that a limit does not see.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import structlog

from cluster.admission.tickets import adopt
from cluster.ids import TaskKind
from cluster.store.keys import encode
from cluster.store.store import Store
from cluster.store.together import together

log = structlog.get_logger(__name__)

CHUNK: Final = 100
"""Leases listed per script (H6)."""
UNUSED_MS: Final = 60_000
"""Counting ends when no node has needed it for so long."""


class Counting:
    """Switches the counting of leases on and off; any node may, at any time, at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, namespace: str, kind: TaskKind) -> bool:
        """Count the leases from now on. False: another node is about to; ask again soon.

        Raises StoreError; then it can simply be tried again.
        """
        who = secrets.token_hex(8)
        await self._store.call("SADD", self._store.keys.counted(), namespace, idempotent=True)
        name, mine = await self._switch(namespace, kind, "begin", who)
        if name:
            return True
        if not mine:
            return False
        everywhere = range(self._store.keys.partitions)
        await together(lambda partition: self._begin_in(partition, namespace, kind, who), everywhere)
        opened = bool(await self._switch(namespace, kind, "open", who))
        if opened:
            log.info("lease_counting_began", namespace=namespace, kind=kind.name.lower())
        return opened

    async def adopt_all(self, namespace: str, kind: TaskKind) -> int:
        """Give a ticket to every lease that has lost its own; returns how many had."""
        adopted = 0
        for partition in range(self._store.keys.partitions):
            adopted += await self._adopt_in(partition, namespace, kind)
        return adopted

    async def end(self, namespace: str, kind: TaskKind, who: str) -> bool:
        """Stop what was begun as ``who`` unless it was needed lately; leases keep their tickets."""
        if not await self._switch(namespace, kind, "close", who):
            return False
        for partition in range(self._store.keys.partitions):
            await self._tell(partition, namespace, kind, "off", who)
        log.info("lease_counting_ended", namespace=namespace, kind=kind.name.lower())
        return True

    async def _begin_in(self, partition: int, namespace: str, kind: TaskKind, who: str) -> None:
        await self._tell(partition, namespace, kind, "on", who)
        await self._adopt_in(partition, namespace, kind)

    async def _adopt_in(self, partition: int, namespace: str, kind: TaskKind) -> int:
        keys = self._store.keys
        queue, expiry, adopted = b"", b"-inf", 0
        while True:
            queue, expiry, *rows = await self._store.run(
                "enlist",
                [keys.touch(partition)],
                [keys.base(partition), kind.value, encode(namespace), queue, expiry, CHUNK],
                idempotent=True,
            )
            if rows:
                adopted += await adopt(self._store, namespace, kind, rows)
            if queue is None:
                return adopted

    async def _tell(self, partition: int, namespace: str, kind: TaskKind, mode: str, who: str) -> None:
        keys = self._store.keys
        scope = f"{kind.value}:{encode(namespace)}"
        await self._store.run(
            "terms",
            [keys.touch(partition)],
            [keys.base(partition), scope, "", mode, who],
            idempotent=True,
        )

    async def _switch(self, namespace: str, kind: TaskKind, step: str, who: str) -> Any:
        return await self._store.run(
            "switch",
            [self._store.keys.terms(namespace)],
            [kind.value, step, who, UNUSED_MS],
            idempotent=True,
        )
