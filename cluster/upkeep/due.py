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

from cluster.errors import HeadraceError, StoreError, StoreRefused
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.upkeep.setbacks import Setbacks
from cluster.workflows.client_answers import Target
from cluster.workflows.engine import Engine

log = structlog.get_logger(__name__)

BATCH: Final = 100
"""Most timers and most leases fetched at once."""
PARALLEL: Final = 16
"""Decisions in flight at once for one partition."""
WORK: Final = "work"
WORK_REST_SECONDS: Final = 5.0
"""Longest rest of a partition's chunked work: one chunk that fails must not hold up the others long."""


@dataclass(frozen=True, slots=True)
class DueReport:
    """``done`` pieces were handled, ``failed`` ones met a store that could not serve.

    ``next_due_ms`` is when something is worth doing next, None when nothing waits; the present when
    more is due than one run does. ``worked``: it did a chunk of work, and nothing else is urgent.
    """

    now_ms: int
    done: int
    failed: int
    next_due_ms: int | None
    worked: bool = False


@dataclass(slots=True)
class _Tally:
    """What came of one run in a partition."""

    setbacks: Setbacks
    now_ms: int
    done: int = 0
    unserved: int = 0

    def succeeded(self, name: str) -> None:
        self.done += 1
        if self.setbacks.done(name):
            log.info("setback_overcome", name=name)


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
        self._setbacks: dict[int, Setbacks] = {}

    @property
    def resting(self) -> int:
        """Pieces that failed here and wait for another try."""
        return sum(map(len, self._setbacks.values()))

    async def run(self, partition: int) -> DueReport:
        """Do everything that is due now, at most BATCH of each kind. Raises StoreError."""
        keys = self._store.keys
        setbacks = self._setbacks.setdefault(partition, Setbacks())
        # What rests is still due and comes first: fetch so much more that it crowds out nothing.
        most = BATCH + len(setbacks)
        now, timers, leases, work, next_due = await self._store.run(
            "due", [keys.touch(partition)], [keys.base(partition), most], idempotent=True
        )
        now_ms = int(now)
        due = [(timers[i].decode(), int(float(timers[i + 1]))) for i in range(0, len(timers), 2)]
        lapsed = [task_id.decode() for task_id in leases]
        full = len(due) == most or len(lapsed) == most
        if not full:
            setbacks.keep_only(
                {name for name, _ in due} | set(lapsed) | ({WORK} if work is not None else set())
            )
        tally = _Tally(setbacks, now_ms)
        async with trio.open_nursery() as nursery:
            limit = trio.CapacityLimiter(PARALLEL)
            for timer, due_ms in due:
                if not setbacks.rests(timer, now_ms):
                    nursery.start_soon(self._fire, limit, tally, timer, due_ms)
            for task_id in lapsed:
                if not setbacks.rests(task_id, now_ms):
                    nursery.start_soon(self._lapse, limit, tally, task_id)
        works = work is not None and not setbacks.rests(WORK, now_ms)
        if works:
            await self._work_off(partition, work, tally)
        waits = [ms for ms in (int(next_due), setbacks.next_ms()) if ms is not None and ms >= 0]
        following = now_ms if full or works else min(waits, default=None)
        return DueReport(now_ms, tally.done, tally.unserved, following, works and not full)

    async def _fire(self, limit: trio.CapacityLimiter, tally: _Tally, timer: str, due_ms: int) -> None:
        async with limit:
            try:
                owner = self._owners.get(timer.partition(" ")[0], self._engine.timer_due)
                await owner(timer, due_ms)
            except Exception as error:
                self._failed(tally, "timer", timer, error)
            else:
                self.timers_fired += 1
                tally.succeeded(timer)

    async def _lapse(self, limit: trio.CapacityLimiter, tally: _Tally, task_id: str) -> None:
        async with limit:
            try:
                await self._engine.lease_lapsed(task_id)
            except Exception as error:
                self._failed(tally, "lease", task_id, error)
            else:
                self.leases_lapsed += 1
                tally.succeeded(task_id)

    def _failed(self, tally: _Tally, kind: str, name: str, error: Exception) -> None:
        """One piece that cannot be done, for whatever reason, must not hold up the others. It rests,
        unless it is only the store that could not serve."""
        self.failures += 1
        reason = error.reason if isinstance(error, HeadraceError) else type(error).__name__
        if isinstance(error, StoreError) and not isinstance(error, StoreRefused):
            tally.unserved += 1
            log.debug("due_piece_postponed", kind=kind, name=name, reason=reason)
            return
        setback = tally.setbacks.failed(name, tally.now_ms)
        if setback.failures == 1:  # said once, counted each time
            shown = None if isinstance(error, HeadraceError) else error
            log.error("due_piece_failed", kind=kind, name=name, reason=reason, exc_info=shown)

    async def _work_off(self, partition: int, item: bytes, tally: _Tally) -> None:
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
                nursery.start_soon(self._close, limit, tally, child)
        work = self._store.keys.work(partition)
        tx.redis("LREM", work, 1, item)
        if self.failures > failed:
            tx.redis("RPUSH", work, item)
            tally.setbacks.failed(WORK, tally.now_ms, longest=WORK_REST_SECONDS)
        else:
            tally.setbacks.done(WORK)
        await self._store.commit(tx)

    async def _close(self, limit: trio.CapacityLimiter, tally: _Tally, child: dict[str, str]) -> None:
        target = Target(child["ns"], child["workflow_id"])
        async with limit:
            try:
                await self._engine.close_child(target, child["parent_run_id"], child["verb"], child["reason"])
            except Exception as error:
                self._failed(tally, "child", target.workflow_id, error)
