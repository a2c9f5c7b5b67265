"""Takes what ended on the streams of this node to the flow engine, a loop turn at a time.

While the store is away results are held and tried again; nobody is told anything meanwhile (E2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
import trio

from cluster.errors import HeadraceError, StoreError
from cluster.flows.finishing import HeartbeatVerdict, StepResult, Verdict
from cluster.queues.hand_outs import UnderWay

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 0.25
LONGEST_RETRY_SECONDS: Final = 2.0
BATCH: Final = 256
"""Most results in one call of the engine."""


class StepEngine(Protocol):
    """The flow engine, as the streams need it."""

    async def finish(self, results: Sequence[StepResult]) -> list[Verdict]: ...

    async def heartbeat(
        self, task_id: str, attempt: int, delivery: int, worker_id: str, checkpoint: bytes | None
    ) -> HeartbeatVerdict: ...


class SettledStore(Protocol):
    """Says whether the store knows what this node runs (E5)."""

    @property
    def standing(self) -> int | None: ...

    async def settled(self) -> None: ...


class BarrierPort(SettledStore, Protocol):
    """Makes the store know what runs here after it was restarted or replaced (E5)."""

    def ring(self) -> None: ...


Settled = Callable[[Verdict], None]
"""Is told the fate of a result, once it is durable."""


class Results:
    """One per node; ``run`` must be running before anything is settled. The end of one step may bring the
    next one, so it is noted in ``under_way``.
    """

    def __init__(self, engine: StepEngine, under_way: UnderWay, barrier: SettledStore | None = None) -> None:
        self._engine = engine
        self._under_way = under_way
        self._barrier = barrier
        self._gathered: list[tuple[StepResult, Settled]] = []
        self._nursery: trio.Nursery | None = None
        self.pending = 0
        self.retries = 0
        self._drained = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def settle(self, result: StepResult, settled: Settled) -> None:
        """Give a result to the engine, together with whatever else ends in this loop turn."""
        if self._nursery is None:
            return
        if not self._gathered:
            self._nursery.start_soon(self._flush)
        self._gathered.append((result, settled))
        self.pending += 1

    async def drained(self) -> None:
        """Wait until the engine has taken everything."""
        while self.pending:
            self._drained = trio.Event()
            await self._drained.wait()

    async def _flush(self) -> None:
        await self._under_way.begin()
        try:
            await self._take_everything()
        finally:
            self._under_way.end()

    async def _take_everything(self) -> None:
        gathered, self._gathered = self._gathered, []
        for start in range(0, len(gathered), BATCH):
            batch = gathered[start : start + BATCH]
            verdicts = await self._finish_known([result for result, _ in batch])
            self.pending -= len(batch)
            if not self.pending:
                self._drained.set()
            for (_, settled), verdict in zip(batch, verdicts, strict=True):
                settled(verdict)

    async def _finish_known(self, results: list[StepResult]) -> list[Verdict]:
        """A store that was restarted may refuse what it does not know yet to run here: ask it again."""
        verdicts = await self._finish(results)
        if self._barrier is None or self._barrier.standing is not None:
            return verdicts
        refused = [index for index, verdict in enumerate(verdicts) if not verdict.accepted]
        if refused:
            await self._barrier.settled()
            again = await self._finish([results[index] for index in refused])
            for index, verdict in zip(refused, again, strict=True):
                verdicts[index] = verdict
        return verdicts

    async def _finish(self, results: list[StepResult]) -> list[Verdict]:
        pause = RETRY_SECONDS
        while True:
            try:
                return await self._engine.finish(results)
            except StoreError as error:
                log.debug("results_postponed", results=len(results), reason=error.reason)
            except HeadraceError as error:
                return await self._one_by_one(results, error)
            self.retries += 1
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    async def _one_by_one(self, results: list[StepResult], error: HeadraceError) -> list[Verdict]:
        """One result that the engine cannot take must not hold up its neighbours."""
        if len(results) == 1:
            log.error("result_refused", task=results[0].task_id, reason=error.reason)
            return [Verdict(False, error.reason)]
        return [verdict for result in results for verdict in await self._finish([result])]
