"""Counts of a namespace's runs and tasks, over all partitions. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cluster.queues.overview import look_at, queue_names
from cluster.store.together import together

if TYPE_CHECKING:
    from cluster.store.store import Store

FAILING_LIMIT: Final = 1_000
"""Failing runs counted per partition, those that fail longest first."""


@dataclass(slots=True)
class Census:
    """``ready`` to ``overdue`` count tasks. Closed runs include ``archived`` ones."""

    runs: int = 0
    closed: int = 0
    archived: int = 0
    failing: int = 0
    ready: int = 0
    leased: int = 0
    lapsed: int = 0
    overdue: int = 0


class CensusTaker:
    """Counts for one node."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def count(self, namespace: str) -> Census:
        """Everything once; a snapshot per partition. Raises StoreError."""
        census = Census()
        keys = self._store.keys

        async def look(partition: int) -> None:
            for name, key in (
                ("runs", keys.runs(partition, namespace)),
                ("closed", keys.closed(partition, namespace)),
                ("archived", keys.archived(partition, namespace)),
                ("failing", keys.failing(partition, namespace)),
            ):
                size = await self._store.call("ZCARD", key, idempotent=True)
                setattr(census, name, getattr(census, name) + size)

        await together(look, range(keys.partitions))
        census.closed += census.archived
        overview = await look_at(self._store, namespace, sorted(await queue_names(self._store, namespace)))
        for content in overview.queues.values():
            census.ready += content.ready
            census.leased += content.leased
            census.lapsed += content.expired
            census.overdue += content.overdue
        return census

    async def failing(self, namespace: str) -> list[tuple[str, int]]:
        """Workflow type and failures in a row of each open run whose workflow task fails.

        Raises StoreError.
        """
        found: list[tuple[str, int]] = []
        keys = self._store.keys

        async def look(partition: int) -> None:
            key = keys.failing(partition, namespace)
            flat = await self._store.call(
                "ZRANGE", key, 0, FAILING_LIMIT - 1, "REV", "WITHSCORES", idempotent=True
            )
            for run_id, failures in zip(flat[::2], flat[1::2], strict=True):
                run = keys.run(partition, run_id.decode())
                workflow_type = await self._store.call("HGET", run, "type", idempotent=True)
                if workflow_type is not None:
                    found.append((workflow_type.decode(), int(float(failures))))

        await together(look, range(keys.partitions))
        return found
