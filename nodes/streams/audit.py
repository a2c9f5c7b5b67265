"""Compares what runs on a node's streams with what the store says its session has handed out.

Whatever a lost message or reply left wrong is found here: attempts that ended without their worker,
flows that are being stopped, tasks that were handed out and never came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import structlog
import trio

from cluster.errors import StoreError
from cluster.ids import parse_task_id
from cluster.store.store import Store
from cluster.upkeep.orphans import Orphan, find_orphans
from nodes.streams.tasks import RunningStep

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0


class Audit:
    """One per node.

    Inside ``under_way`` nothing is on its way from the store to a slot. ``in_use`` says whether there
    are streams. ``running`` are the attempts on them, ``cancel(attempt id, reason)`` asks the worker of one
    to stop, ``repair`` gives back one that reached nobody. Nothing is concluded while ``standing`` is None or
    from what was read while it changed: the store may not know yet what runs here (E5).
    """

    def __init__(
        self,
        store: Store,
        may_act: Callable[[], bool],
        session: Callable[[], str],
        under_way: AbstractAsyncContextManager[object],
        *,
        in_use: Callable[[], bool],
        running: Callable[[], Sequence[RunningStep]],
        cancel: Callable[[str, str], bool],
        repair: Callable[[Orphan], None],
        standing: Callable[[], int | None] = lambda: 0,
    ) -> None:
        self._store = store
        self._may_act = may_act
        self._session = session
        self._under_way = under_way
        self._in_use = in_use
        self._running = running
        self._cancel = cancel
        self._repair = repair
        self._standing = standing
        self._now = trio.Event()
        self._stops = False
        self._strangers: set[str] = set()

    def soon(self) -> None:
        """Look at once: a reply was lost."""
        self._now.set()

    def look_for_stops(self) -> None:
        """Look at once, also for flows that are being stopped: a message may have been lost."""
        self._stops = True
        self._now.set()

    async def run(self) -> None:
        """Look now and then until cancelled."""
        while True:
            with trio.move_on_after(LOOK_SECONDS):
                await self._now.wait()
            asked, self._now = self._now.is_set(), trio.Event()
            if not (asked or self._in_use() or self._strangers) or not self._may_act():
                continue
            try:
                await self.look()
            except* StoreError:
                log.debug("audit_postponed")

    async def look(self) -> None:
        """An attempt that is over is cancelled at its worker. A task nobody here knows, seen twice,
        came with a reply that was lost: it goes back. Raises StoreError.
        """
        session, keys = self._session(), self._store.keys
        stops, self._stops = self._stops, False
        standing = self._standing()
        async with self._under_way:
            before = {step.task_id: step for step in self._running() if step.session == session}
            listed: dict[int, set[str]] = {}

            async def read(partition: int) -> None:
                key = keys.handed_out(partition, session)
                members = await self._store.call("SMEMBERS", key, idempotent=True)
                listed[partition] = {member.decode() for member in members}

            async with trio.open_nursery() as nursery:
                for partition in range(keys.partitions):
                    nursery.start_soon(read, partition)
        if standing is None or self._standing() != standing:
            self._strangers = set()
            return
        handed_out = {task_id for ids in listed.values() for task_id in ids}
        for task_id in before.keys() - handed_out:
            self._cancel(before[task_id].attempt_id, "attempt_over")
        strange = {partition: ids - before.keys() for partition, ids in listed.items()}
        for partition, ids in strange.items():
            if ids & self._strangers:
                await self._return(partition, ids & self._strangers)
        self._strangers = {task_id for ids in strange.values() for task_id in ids}
        if stops:
            await self._cancel_stopped([step for step in before.values() if step.task_id in handed_out])

    async def _return(self, partition: int, strangers: set[str]) -> None:
        # Between two claims: a task that is on its way here right now is no stranger, even if it was
        # one a moment ago (the attempt before may have timed out meanwhile).
        async with self._under_way:
            left = await find_orphans(self._store, partition, self._session())
            known = {step.task_id for step in self._running()}
        for orphan in left.tasks if left is not None else ():
            if orphan.task_id in strangers and orphan.task_id not in known:
                self._repair(orphan)

    async def _cancel_stopped(self, steps: Sequence[RunningStep]) -> None:
        """Ask for the end of attempts whose flows are being stopped. Raises StoreError."""

        async def check(step: RunningStep) -> None:
            task = parse_task_id(step.task_id)
            if task is not None:
                key = self._store.keys.run(step.partition, task.run_id)
                if await self._store.call("HGET", key, "c", idempotent=True):
                    self._cancel(step.attempt_id, "cancel_requested")

        async with trio.open_nursery() as nursery:
            for step in steps:
                nursery.start_soon(check, step)
