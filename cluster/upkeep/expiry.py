"""Removes expired runs from held partitions, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol

import structlog
import trio

from cluster.errors import StoreError
from cluster.membership.housekeeping import HeldPartition
from cluster.namespaces import NamespaceStore
from cluster.workflows.retention import CHUNK, cutoff_ms

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.05
"""Pause between chunks, so that a large expiry leaves Redis free for work."""


class Keeping(Protocol):
    """Removes what has expired: runs of workflows, or of flows."""

    async def keep(self, partition: int, cutoffs_ms: Mapping[str, int]) -> int:
        """Remove up to a CHUNK of expired runs per namespace; returns how many went."""


class Expiry:
    """A chore of the keepers: one loop per held partition."""

    def __init__(
        self,
        retention: Keeping,
        namespaces: NamespaceStore,
        now_ms: Callable[[], int],
        random: Random,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._retention = retention
        self._namespaces = namespaces
        self._now_ms = now_ms
        self._random = random
        self._interval = interval
        self.removed = 0

    async def housekeep(self, held: HeldPartition) -> None:
        """Keep one partition until cancelled."""
        while True:
            await trio.sleep(self._interval * self._random.uniform(0.5, 1.5))
            try:
                await self.expire(held)
            except StoreError as error:
                log.debug("expiry_postponed", partition=held.partition, reason=error.reason)

    async def expire(self, held: HeldPartition) -> None:
        """Remove what has expired in a partition now."""
        namespaces = await self._namespaces.list()
        now_ms = self._now_ms()
        cutoffs_ms = {namespace.name: cutoff_ms(now_ms, namespace.retention_days) for namespace in namespaces}
        while held.may_act():
            removed = await self._retention.keep(held.partition, cutoffs_ms)
            self.removed += removed
            if removed < CHUNK:
                break
            await trio.sleep(PAUSE_SECONDS)
