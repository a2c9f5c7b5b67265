"""Ends the wait of steps for one worker when its time is over (R29)."""

from __future__ import annotations

from typing import Final

from cluster.errors import ConditionFailed
from cluster.ids import parse_task_id, partition_of_task
from cluster.store.store import Store
from cluster.store.transaction import Transaction

TIMERS: Final = "sticky"
"""First word of the names of these timers; the task's id follows."""


class StickyTimers:
    """Owner of the timers. Any node may fire them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def due(self, timer: str, due_ms: int) -> None:
        """Move the step to its queue, if it still waits. Raises StoreError."""
        task = parse_task_id(timer.partition(" ")[2])
        if task is None:
            return
        tx = Transaction(partition_of_task(task), frees=True)
        tx.expect_due(timer, due_ms)
        tx.disarm(timer)
        tx.unstick(str(task))
        try:
            await self._store.commit(tx)
        except ConditionFailed:
            return
