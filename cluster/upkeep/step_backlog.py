"""Counts what waits on the stream plane, per partition held here (R86 to R89, R94).

A partition takes part in the count of entries once it was looked at as a whole; the age of its oldest
step is known from the first look on, because heads are kept by the store itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog
import trio

from cluster.errors import StoreError
from cluster.ids import TaskKind
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.served import Served, ServedTypes
from cluster.queues.slot_groups import STICKY
from cluster.store.store import Store

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
CHUNK: Final = 100


class Unserved(StrEnum):
    """Why nobody can run what a queue holds."""

    NO_WORKER = "no_worker"
    NO_SUPPORTING_WORKER = "no_supporting_worker"


@dataclass(slots=True)
class PartitionBacklog:
    """Non-empty queues: undelivered entries, and oldest ready time (ms), by encoded queue name."""

    entries: dict[str, int] = field(default_factory=dict)
    oldest_ms: dict[str, int] = field(default_factory=dict)
    unserved: dict[str, Unserved] = field(default_factory=dict)
    counted: bool = False


class StepBacklog:
    """The backlogs of the partitions held here."""

    def __init__(self, store: Store, served: Served) -> None:
        self._store = store
        self._served = served
        self.partitions: dict[int, PartitionBacklog] = {}

    @property
    def entries(self) -> int:
        """Steps in queues, in partitions that were counted."""
        return sum(
            count for found in self.partitions.values() if found.counted for count in found.entries.values()
        )

    @property
    def sticky(self) -> int:
        """Steps that wait for one worker."""
        start = f"{STICKY}:"
        return sum(
            count
            for found in self.partitions.values()
            for queue, count in found.entries.items()
            if queue.startswith(start)
        )

    @property
    def oldest_ms(self) -> int | None:
        """Ready time of the oldest step, None when none waits."""
        times = (ms for found in self.partitions.values() for ms in found.oldest_ms.values())
        return min(times, default=None)

    def unserved(self) -> dict[Unserved, int]:
        """Non-empty queues that no connected worker can serve; a queue in several partitions is one."""
        reasons: dict[str, Unserved] = {}
        for found in self.partitions.values():
            # What stands aside after it came back again and again belongs to the same queue.
            reasons |= {_without_marker(queue): reason for queue, reason in found.unserved.items()}
        return {reason: list(reasons.values()).count(reason) for reason in Unserved}

    async def housekeep(self, held: HeldPartition) -> None:
        """Count one partition until cancelled."""
        try:
            while True:
                if held.may_act():
                    try:
                        await self.look(held.partition)
                    except StoreError as error:
                        log.debug("backlog_not_counted", partition=held.partition, reason=error.reason)
                await trio.sleep(LOOK_SECONDS)
        finally:
            self.partitions.pop(held.partition, None)

    async def look(self, partition: int) -> None:
        """Look at all queues of a partition. Raises StoreError."""
        served = await self._served.read()
        found, cursor = PartitionBacklog(counted=True), b"0"
        shown = self.partitions.setdefault(partition, PartitionBacklog())
        keys = self._store.keys
        while True:
            _, cursor, rows = await self._store.run(
                "backlog",
                [keys.touch(partition)],
                [keys.base(partition), f"{TaskKind.STEP}{STICKY}", cursor, CHUNK],
                idempotent=True,
            )
            for i in range(0, len(rows), 3):
                queue, count, oldest = rows[i].decode(), int(rows[i + 1]), rows[i + 2]
                if count > 0 and oldest:
                    found.entries[queue] = count
                    found.oldest_ms[queue] = int(float(oldest))
                    reason = _unserved(queue, served)
                    if reason is not None:
                        found.unserved[queue] = reason
            if not shown.counted:
                shown.oldest_ms |= found.oldest_ms
            if cursor == b"0":
                break
        self.partitions[partition] = found


def _without_marker(queue: str) -> str:
    kind, namespace, flow_type, _, type_part = queue.split(":")
    return f"{kind}:{namespace}:{flow_type}:{type_part}"


def _unserved(queue: str, served: list[ServedTypes]) -> Unserved | None:
    kind, namespace, flow_type, _, type_part = queue.split(":")
    if kind != TaskKind.STEP:
        return None
    workers = [one for one in served if (one.namespace, one.flow_type) == (namespace, flow_type)]
    if not workers:
        return Unserved.NO_WORKER
    if not any(one.supports(type_part) for one in workers):
        return Unserved.NO_SUPPORTING_WORKER
    return None
