"""Heartbeats of running steps on their way to the store, and the ends that wait behind them.

Frames take effect in order: the checkpoint of a heartbeat is there for the next attempt even if the
attempt fails, or its worker is lost, in the same moment. So its end is settled once it is stored.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from cluster.errors import StoreError
from nodes.streams.results import StepEngine
from nodes.streams.tasks import RunningStep

log = structlog.get_logger(__name__)


class Beats:
    """One per node; ``run`` must be running before anything is stored. ``cancel`` gets attempt id and reason
    of what is not wanted any more.
    """

    def __init__(self, engine: StepEngine, cancel: Callable[[str, str], object]) -> None:
        self._engine = engine
        self._cancel = cancel
        self._latest: dict[str, bytes | None] = {}
        self._ends: dict[str, Callable[[], None]] = {}
        self._nursery: trio.Nursery | None = None
        self._stored = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def beat(self, step: RunningStep, checkpoint: bytes | None) -> None:
        """An attempt is alive; of heartbeats that come faster than the store, the last counts."""
        if self._nursery is None:
            return
        under_way = step.attempt_id in self._latest
        self._latest[step.attempt_id] = checkpoint
        if not under_way:
            self._nursery.start_soon(self._store, step)

    def before(self, attempt_id: str, settle: Callable[[], None]) -> None:
        """Call ``settle`` once no heartbeat of the attempt is under way, mostly now."""
        if attempt_id in self._latest:
            self._ends[attempt_id] = settle
        else:
            settle()

    async def stored(self) -> None:
        """Wait until no heartbeat is under way."""
        while self._latest:
            self._stored = trio.Event()
            await self._stored.wait()

    async def _store(self, step: RunningStep) -> None:
        checkpoint = await self._store_once(step)
        while self._latest[step.attempt_id] is not checkpoint:
            checkpoint = await self._store_once(step)
        del self._latest[step.attempt_id]
        settle = self._ends.pop(step.attempt_id, None)
        if settle is not None:
            settle()
        if not self._latest:
            self._stored.set()

    async def _store_once(self, step: RunningStep) -> bytes | None:
        checkpoint = self._latest[step.attempt_id]
        try:
            verdict = await self._engine.heartbeat(
                step.task_id, step.attempt, step.delivery, step.worker_id, checkpoint
            )
        except StoreError as error:
            log.debug("heartbeat_not_stored", reason=error.reason)
        else:
            if not verdict.continue_ or verdict.cancel_requested:
                self._cancel(step.attempt_id, verdict.reason or "cancel_requested")
        return checkpoint
