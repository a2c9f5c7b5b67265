"""Runs one housekeeper per held partition and stops it before the partition changes hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from cluster.errors import StoreError
from cluster.membership.fence import Fence

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Pauses (s) before a failed housekeeper is started again: doubled each time, up to the longest."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """One tenure of one partition. Scripts of its housekeeping carry ``owner`` and ``nonce`` (E4)."""

    partition: int
    owner: str
    nonce: str
    epoch: int
    session: Fence = field(repr=False, compare=False)
    lease: Fence = field(repr=False, compare=False)

    def may_act(self) -> bool:
        """Whether this tenure is certain at this moment; to be asked before each script (E3)."""
        return self.session.is_open() and self.lease.is_open()


Housekeep = Callable[[HeldPartition], Awaitable[None]]
"""Keeps one partition until it is cancelled. Waits, rather than ends, while ``may_act`` is false."""


@dataclass(eq=False, slots=True)
class _Run:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    finished: trio.Event = field(default_factory=trio.Event)


class Housekeeping:
    """Starts, restarts and stops housekeepers in ``nursery``.

    A housekeeper that fails hurts only its own partition: the error is logged and counted, and it
    starts again after a pause. ``on_finished`` is told of each partition whose housekeeper ended.
    """

    def __init__(
        self, housekeep: Housekeep, nursery: trio.Nursery, on_finished: Callable[[], None] = lambda: None
    ) -> None:
        self._housekeep = housekeep
        self._nursery = nursery
        self._on_finished = on_finished
        self._runs: dict[int, _Run] = {}
        self.failures = 0

    def start(self, held: HeldPartition) -> None:
        """Keep ``held``; waits for an earlier housekeeper of the same partition to end first."""
        previous = self._runs.get(held.partition)
        run = self._runs[held.partition] = _Run()
        self._nursery.start_soon(self._supervise, held, run, previous, name=f"housekeep {held.partition}")

    def stop(self, partition: int) -> None:
        """Cancel the housekeeper of a partition; :meth:`is_running` tells when it has ended."""
        if partition in self._runs:
            self._runs[partition].scope.cancel()

    def is_running(self, partition: int) -> bool:
        return partition in self._runs

    async def stop_all(self) -> None:
        """Cancel all housekeepers and wait until they have ended."""
        runs = list(self._runs.values())
        for run in runs:
            run.scope.cancel()
        for run in runs:
            await run.finished.wait()

    async def _supervise(self, held: HeldPartition, run: _Run, previous: _Run | None) -> None:
        try:
            if previous is not None:
                await previous.finished.wait()
            try:
                with run.scope:
                    await trio.lowlevel.checkpoint()
                    await self._keep_going(held)
            except Exception as error:  # what it raised while it was cancelled
                self._note_failure(held, error)
        finally:
            run.finished.set()
            if self._runs.get(held.partition) is run:
                del self._runs[held.partition]
            self._on_finished()

    async def _keep_going(self, held: HeldPartition) -> None:
        pause = FIRST_PAUSE
        while True:
            started = trio.current_time()
            try:
                await self._housekeep(held)
                _log.warning("housekeeper_ended", partition=held.partition)
            except Exception as error:
                self._note_failure(held, error)
            if trio.current_time() - started > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _note_failure(self, held: HeldPartition, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, StoreError):
            _log.warning(
                "housekeeper_failed", partition=held.partition, reason=error.reason, error=str(error)
            )
        else:
            _log.error("housekeeper_failed", partition=held.partition, exc_info=error)
