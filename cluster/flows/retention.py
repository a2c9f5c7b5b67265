"""Retention of flows: closed runs go when their namespace's time is over.

Any number of nodes may do it at the same time: what belongs to a closed run does not change, and the
flow's own record goes only while it names that run as the current one.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.errors import ConditionFailed
from cluster.flows.storage import Wants, flow_keys, load
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.workflows.retention import expired_runs


class FlowRetention:
    """Removes expired runs of flows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, partition: int, cutoffs_ms: Mapping[str, int]) -> int:
        """Remove up to a chunk of expired runs per namespace from one partition; returns how many.

        ``cutoffs_ms`` maps namespaces to the time before which runs must have closed.
        """
        removed = 0
        async for namespace, run_id in expired_runs(self._store, partition, cutoffs_ms, "fclosed"):
            removed += await self._remove(partition, namespace, run_id)
        return removed

    async def _remove(self, partition: int, namespace: str, run_id: str) -> bool:
        keys = self._store.keys
        tx = Transaction(partition, frees=True)
        picture = await load(self._store, run_id, Wants())
        if picture is not None:
            info = picture.run.info
            flow_key = keys.flow(partition, namespace, info.flow_id)
            current = await self._store.call("HGET", flow_key, "run", idempotent=True)
            if current is not None and current.decode() == run_id:
                tx.expect_equal(flow_key, "run", run_id)
                tx.redis("DEL", flow_key)
            tx.redis("UNLINK", *flow_keys(keys, info))
        tx.redis("ZREM", keys.flows(partition, namespace), run_id)
        tx.redis("ZREM", keys.closed_flows(partition, namespace), run_id)
        try:
            await self._store.commit(tx)
        except ConditionFailed:
            return False  # the flow was started again meanwhile; the next pass sees that
        return True
