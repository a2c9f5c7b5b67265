"""Keeps a held partition: what is due at once, heads and dead entries now and then.

The keeper sleeps until the earliest timer or lease it knows of. Commits that set an earlier timer
say so on the due channel; leases and everything that was missed come with the next peek.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import structlog
import trio

from cluster.clock import Clock
from cluster.errors import Fenced, StoreError
from cluster.membership.housekeeping import HeldPartition, Housekeep
from cluster.queues.claims import NO_DUE, PeekReply
from cluster.store.store import Store
from cluster.upkeep.due import DueWork

log = structlog.get_logger(__name__)

LONGEST_NAP_SECONDS: Final = 30.0
"""A keeper looks for itself at least this often."""
PAUSE_SECONDS: Final = 0.2
"""Pause while this node may not act or the store is away."""
WORK_REST: Final = 4.0
"""Chunks of work rest for so many times as long as one took, over all partitions kept here."""
LONGEST_WORK_REST_SECONDS: Final = 0.1
OVERDUE_MS: Final = 1_000
"""Work this late is done by whoever notices (B4)."""
FAR_MS: Final = 1 << 60
CHUNK: Final = 50
"""Queues looked at per script (H6)."""
PENDING_CHECKED: Final = 100


@dataclass(frozen=True, slots=True)
class KeeperTimes:
    """Intervals in seconds. ``resync`` is ``matching.headsResyncInterval``."""

    resync: float = 300.0
    compact: float = 30.0
    idle_queue: float = 60.0


@dataclass(slots=True)
class _Nap:
    """When a keeper means to look again, and how to wake it earlier while it sleeps."""

    until_ms: int = FAR_MS
    scope: trio.CancelScope | None = None


@dataclass(frozen=True, slots=True)
class QueueCount:
    undelivered: int
    leased: int


@dataclass(slots=True)
class UpkeepCounters:
    """Totals of this node since it started."""

    heads_restored: int = 0
    heads_incomplete: int = 0
    heads_removed: int = 0
    dead_entries: int = 0
    queues_removed: int = 0
    leases_mended: int = 0
    overdue: int = 0
    counts: dict[int, dict[str, QueueCount]] = field(default_factory=dict)


class Keeper:
    """Housekeeping of one node: ``housekeep`` per held partition, ``on_peek`` for the others.

    ``chores`` are further things to be done for as long as a partition is held.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        due: DueWork,
        random: Random,
        times: KeeperTimes | None = None,
        chores: Sequence[Housekeep] = (),
    ) -> None:
        self._store = store
        self._clock = clock
        self._due = due
        self._random = random
        self._times = times or KeeperTimes()
        self._chores = chores
        self._naps: dict[int, _Nap] = {}
        self._helping: set[int] = set()
        self._seen_work: set[int] = set()
        self._nursery: trio.Nursery | None = None
        self.counters = UpkeepCounters()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the background work for overdue partitions, until cancelled."""
        channel = self._store.keys.due_channel()
        self._store.on_message(channel, self._on_due)
        await self._store.subscribe(channel)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # -- held partitions --------------------------------------------------------------------

    async def housekeep(self, held: HeldPartition) -> None:
        """Keep one partition until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._resync_forever, held)
                nursery.start_soon(self._compact_forever, held)
                for chore in self._chores:
                    nursery.start_soon(chore, held)
                await self._do_due_work(held)
        finally:
            self._naps.pop(held.partition, None)
            self.counters.counts.pop(held.partition, None)

    async def _do_due_work(self, held: HeldPartition) -> None:
        nap = self._naps[held.partition] = _Nap()
        while True:
            if not held.may_act():
                await trio.sleep(PAUSE_SECONDS)
                continue
            nap.until_ms = FAR_MS  # from here on a nudge counts, also one that comes during the work
            began = trio.current_time()
            try:
                report = await self._due.run(held.partition)
            except StoreError as error:
                log.debug("due_work_postponed", partition=held.partition, reason=error.reason)
                await trio.sleep(PAUSE_SECONDS)
                continue
            now_ms = self._clock.now_ms()
            # What could not be done is still due: give it, and others, time.
            longest = PAUSE_SECONDS if report.failed else LONGEST_NAP_SECONDS
            due_ms = FAR_MS if report.next_due_ms is None else report.next_due_ms
            if report.worked:
                # Chunks can wait, and whoever wants something of the store now must not wait for them.
                rest = WORK_REST * (trio.current_time() - began) * len(self._naps)
                due_ms = max(due_ms, now_ms + int(min(rest, LONGEST_WORK_REST_SECONDS) * 1000))
            nap.until_ms = min(nap.until_ms, due_ms, now_ms + int(longest * 1000))
            with trio.move_on_after(max(0.0, (nap.until_ms - now_ms) / 1000)) as nap.scope:
                await trio.sleep_forever()
            nap.scope = None

    def nudge(self, partition: int, due_ms: int) -> None:
        """Wake the keeper of ``partition`` in time for ``due_ms``, if it is kept here."""
        nap = self._naps.get(partition)
        if nap is None or due_ms >= nap.until_ms:
            return
        nap.until_ms = due_ms
        if nap.scope is not None:
            nap.scope.deadline = trio.current_time() + max(0.0, (due_ms - self._clock.now_ms()) / 1000)

    def _on_due(self, _channel: str, message: bytes) -> None:
        partition, due_ms = message.split(b" ")
        self.nudge(int(partition), int(due_ms))

    # -- anybody's partitions ---------------------------------------------------------------

    def on_peek(self, reply: PeekReply) -> None:
        """Nudge the keepers here, and help where the keeper elsewhere is late."""
        working = {partition for partition, due in reply.due.items() if due.work}
        for partition, due in reply.due.items():
            waiting = [ms for ms in (due.timer_ms, due.lease_ms) if ms != NO_DUE]
            if partition in self._naps:
                for due_ms in waiting + ([reply.now_ms] if due.work else []):
                    self.nudge(partition, due_ms)
                continue
            late = any(due_ms < reply.now_ms - OVERDUE_MS for due_ms in waiting)
            if late or (partition in working and partition in self._seen_work):
                self._help(partition)
        self._seen_work = (self._seen_work - set(reply.due)) | working

    def _help(self, partition: int) -> None:
        if partition not in self._helping and self._nursery is not None:
            self._helping.add(partition)
            self._nursery.start_soon(self._help_once, partition)

    async def _help_once(self, partition: int) -> None:
        try:
            report = await self._due.run(partition)
            self.counters.overdue += report.done
        except StoreError as error:
            log.debug("overdue_work_postponed", partition=partition, reason=error.reason)
        finally:
            self._helping.discard(partition)

    # -- now and then -----------------------------------------------------------------------

    async def _resync_forever(self, held: HeldPartition) -> None:
        while True:
            await trio.sleep(self._times.resync * self._random.uniform(0.8, 1.2))
            await self._tolerating_store_errors(self.resync, held)

    async def _compact_forever(self, held: HeldPartition) -> None:
        while True:
            await trio.sleep(self._times.compact * self._random.uniform(0.8, 1.2))
            await self._tolerating_store_errors(self.compact, held)

    @staticmethod
    async def _tolerating_store_errors(
        job: Callable[[HeldPartition], Awaitable[int]], held: HeldPartition
    ) -> None:
        try:
            await job(held)
        except Fenced:
            log.info("upkeep_ended", partition=held.partition)
        except StoreError as error:
            log.debug("upkeep_postponed", partition=held.partition, reason=error.reason)

    async def resync(self, held: HeldPartition) -> int:
        """Compare all heads of a partition with its queues; returns how many had to be restored."""
        cursor, restored = "0", 0
        self.counters.heads_incomplete += 1  # until it finishes
        while held.may_act():
            reply = await self._scan("resync", held, cursor)
            cursor = reply[0].decode()
            restored += reply[1]
            self.counters.heads_restored += reply[1]
            self.counters.heads_removed += reply[2]
            if cursor == "0":
                self.counters.heads_incomplete -= 1
                break
        if restored:
            log.warning("heads_restored", partition=held.partition, restored=restored)
        return restored

    async def compact(self, held: HeldPartition) -> int:
        """Drop dead entries and idle empty queues; refresh the counts. Returns queues removed.

        Sees to it, too, that every lease that is over is known to whoever ends leases.
        """
        cursor, removed, mended = "0", 0, 0
        counts: dict[str, QueueCount] = {}
        while held.may_act():
            idle_ms = int(self._times.idle_queue * 1000)
            reply = await self._scan("compact", held, cursor, idle_ms, PENDING_CHECKED)
            cursor = reply[0].decode()
            self.counters.dead_entries += reply[1]
            self.counters.queues_removed += reply[2]
            removed += reply[2]
            mended += reply[4]
            self.counters.leases_mended += reply[4]
            rows = reply[3]
            for i in range(0, len(rows), 3):
                counts[rows[i].decode()] = QueueCount(rows[i + 1], rows[i + 2])
            if cursor == "0":
                break
        self.counters.counts[held.partition] = counts
        if mended:
            log.warning("leases_mended", partition=held.partition, mended=mended)
        return removed

    async def _scan(self, script: str, held: HeldPartition, cursor: str, *more: int) -> list[Any]:
        keys = self._store.keys
        reply = await self._store.run(
            script,
            [keys.touch(held.partition)],
            [keys.base(held.partition), keys.prefix, held.owner, held.nonce, cursor, CHUNK, *more],
            idempotent=True,
        )
        if reply == b"FENCED":
            raise Fenced(f"partition {held.partition} is held by somebody else")
        rows: list[Any] = reply
        return rows
