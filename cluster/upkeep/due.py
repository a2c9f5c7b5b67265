"""Does what is due in a partition: fires timers, ends lapsed leases, works off chunks.

Every piece is a conditional commit, so any node may do it at any time (B4): the holder does it
when it is due, everybody when it is overdue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson
import structlog
import trio

from cluster.errors import HeadraceError
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.workflows.client_answers import Target
from cluster.workflows.engine import Engine

log = structlog.get_logger(__name__)

BATCH: Final = 100
"""Most timers and most leases fetched at once."""
PARALLEL: Final = 16
"""Decisions in flight at once for one partition."""


@dataclass(frozen=True, slots=True)
class DueReport:
    """``done`` pieces were handled, ``failed`` ones are still due.

    ``next_due_ms`` is the earliest one that is not due yet, None when none waits; the present when
    more is due than one run does.
    """

    now_ms: int
    done: int
    failed: int
    next_due_ms: int | None


TimerOwner = Callable[[str, int], Awaitable[None]]
"""Does what a timer (its whole name, its due time in ms) stands for, if it is still set and due."""


class DueWork:
    """Shared by the housekeepers of a node and by its polls.

    ``owners`` maps the first word of a timer's name to its owner; all other timers begin with a
    run id and are the engine's.
    """

    def __init__(self, store: Store, engine: Engine, owners: Mapping[str, TimerOwner] | None = None) -> None:
        self._store = store
        self._engine = engine
        self._owners = dict(owners or {})
        self.timers_fired = 0
        self.leases_lapsed = 0
        self.failures = 0

    async def run(self, partition: int) -> DueReport:
        """Do everything that is due now, at most BATCH of each kind. Raises StoreError."""
        keys = self._store.keys
        now, timers, leases, work, next_due = await self._store.run(
            "due", [keys.touch(partition)], [keys.base(partition), BATCH], idempotent=True
        )
        now_ms = int(now)
        due = [(timers[i].decode(), int(float(timers[i + 1]))) for i in range(0, len(timers), 2)]
        failed = self.failures
        async with trio.open_nursery() as nursery:
            limit = trio.CapacityLimiter(PARALLEL)
            for timer, due_ms in due:
                nursery.start_soon(self._fire, limit, timer, due_ms)
            for task_id in leases:
                nursery.start_soon(self._lapse, limit, task_id.decode())
        if work is not None:
            await self._work_off(partition, work)
        failed = self.failures - failed
        full = len(due) == BATCH or len(leases) == BATCH or work is not None
        following = now_ms if full else int(next_due)
        done = max(0, len(due) + len(leases) - failed)
        return DueReport(now_ms, done, failed, following if following >= 0 else None)

    async def _fire(self, limit: trio.CapacityLimiter, timer: str, due_ms: int) -> None:
        async with limit:
            try:
                owner = self._owners.get(timer.partition(" ")[0], self._engine.timer_due)
                await owner(timer, due_ms)
                self.timers_fired += 1
            except Exception as error:
                self._failed("timer", timer, error)

    async def _lapse(self, limit: trio.CapacityLimiter, task_id: str) -> None:
        async with limit:
            try:
                await self._engine.lease_lapsed(task_id)
                self.leases_lapsed += 1
            except Exception as error:
                self._failed("lease", task_id, error)

    def _failed(self, kind: str, name: str, error: Exception) -> None:
        # One run that cannot be advanced, for whatever reason, must not hold up the others; it is
        # tried again later.
        self.failures += 1
        if isinstance(error, HeadraceError):
            log.warning("could not do what is due", kind=kind, name=name, reason=error.reason)
        else:
            log.error("could not do what is due", kind=kind, name=name, exc_info=error)

    async def _work_off(self, partition: int, item: bytes) -> None:
        """Do one chunk and take it off the list; one that fails goes to the end, so that it is tried
        again after the others."""
        tx = Transaction(partition, frees=True)
        job = orjson.loads(item)
        for task_id in job.get("drop", ()):
            tx.drop(task_id, tell=True)
        failed = self.failures
        async with trio.open_nursery() as nursery:
            limit = trio.CapacityLimiter(PARALLEL)
            for child in job.get("close", ()):
                nursery.start_soon(self._close, limit, child)
        work = self._store.keys.work(partition)
        tx.redis("LREM", work, 1, item)
        if self.failures > failed:
            tx.redis("RPUSH", work, item)
        await self._store.commit(tx)

    async def _close(self, limit: trio.CapacityLimiter, child: dict[str, str]) -> None:
        target = Target(child["ns"], child["workflow_id"])
        async with limit:
            try:
                await self._engine.close_child(target, child["parent_run_id"], child["verb"], child["reason"])
            except Exception as error:
                self._failed("child", target.workflow_id, error)
