"""Keeps this node's fair share of the partitions: renews, takes, lets go, and runs what keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
import trio

from cluster.errors import StoreError
from cluster.membership.bell import Bell
from cluster.membership.fence import Fence, boottime
from cluster.membership.housekeeping import HeldPartition, Housekeep, Housekeeping
from cluster.membership.leases import LeaseStore, LeaseView, Standing
from cluster.membership.timing import Timing

if TYPE_CHECKING:
    from cluster.store.store import Store

SHORTEST_PAUSE: Final = 0.005
"""Added to the end of somebody's lease, so that the next look does not come just too early (s)."""

NO_ANSWER: Final = "no answer in time"

_log = structlog.get_logger(__name__)


def fair_share(partitions: int, nodes: int) -> int:
    """How many partitions one of ``nodes`` may keep."""
    return -(-partitions // max(1, nodes))


@dataclass(frozen=True, slots=True)
class Tenure:
    """One life of this node's session."""

    incarnation: str
    fence: Fence


@dataclass(slots=True)
class LeaseCounts:
    """Counters since the start of the node."""

    acquired: int = 0
    lost: int = 0
    released: int = 0
    failed_renewals: int = 0


class PartitionKeeper:
    """Holds partitions for the session that ``tenure`` names, while its fence is open.

    ``share`` says how many this node should keep.
    """

    def __init__(
        self,
        store: Store,
        timing: Timing,
        housekeep: Housekeep,
        *,
        tenure: Callable[[], Tenure],
        share: Callable[[], int],
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._store = store
        self._timing = timing
        self._housekeep = housekeep
        self._tenure = tenure
        self._share = share
        self._taken_hooks: list[Callable[[], None]] = []
        self._clock = clock
        self._leases = LeaseStore(store, timing)
        self._held: dict[int, HeldPartition] = {}
        self._closing: set[int] = set()
        self._bell = Bell()
        self._turns = trio.CancelScope()
        self._housekeeping: Housekeeping | None = None
        self.held: Mapping[int, HeldPartition] = MappingProxyType(self._held)
        self.counts = LeaseCounts()

    @property
    def housekeeping_failures(self) -> int:
        """How often a housekeeper ended with an error."""
        return self._housekeeping.failures if self._housekeeping else 0

    def on_taken(self, hook: Callable[[], None]) -> None:
        """Call ``hook()`` whenever partitions were taken."""
        self._taken_hooks.append(hook)

    def look(self) -> None:
        """Something changed that may matter here: look at the leases at once."""
        self._bell.ring()

    def close(self) -> None:
        """Make :meth:`run` stop all housekeeping, release everything and return."""
        self._turns.cancel()

    def drop_all(self) -> None:
        """The session that held the partitions was buried: nothing is held any more."""
        for partition in list(self._held):
            self._lose(partition)

    async def run(self) -> None:
        """Keep partitions until :meth:`close`. When cancelled, the leases are left to run out."""
        async with trio.open_nursery() as nursery:
            housekeeping = self._housekeeping = Housekeeping(self._housekeep, nursery, self.look)
            with self._turns:
                while True:
                    await self._bell.wait(await self._turn(housekeeping))
            await housekeeping.stop_all()
            await self._release(list(self._held))

    async def _turn(self, housekeeping: Housekeeping) -> float:
        """Release what is closed, renew, take, and start to close one too many. Returns a pause (s)."""
        await self._release([p for p in self._closing if not housekeeping.is_running(p)])
        tenure = self._tenure()
        if not tenure.fence.is_open():
            return self._timing.renew_every
        share = self._share()
        want = max(0, share - len(self._held))
        nonces = {partition: held.nonce for partition, held in self._held.items()}
        sent = self._clock()
        try:
            with trio.fail_after(self._timing.lease_ttl):
                view = await self._leases.exchange(tenure.incarnation, nonces, want)
        except (StoreError, trio.TooSlowError) as error:
            self.counts.failed_renewals += 1
            _log.warning("partitions_not_renewed", error=str(error) or NO_ANSWER)
            return self._timing.retry_every
        if tenure is not self._tenure():
            return 0
        self._apply(view, tenure, sent, housekeeping)
        if share == 0:
            self._close_all(housekeeping)
        elif len(self._held) > share:
            self._close_one(housekeeping)
        return self._pause(view, tenure, hungry=len(self._held) < share)

    def _apply(self, view: LeaseView, tenure: Tenure, sent: float, housekeeping: Housekeeping) -> None:
        taken = 0
        for lease in view.leases:
            held = self._held.get(lease.partition)
            if held is not None and lease.standing is Standing.KEPT:
                held.lease.renewed(sent)
                continue
            if held is not None:
                self._lose(lease.partition)
            if lease.standing is Standing.TAKEN:
                taken += 1
                fence = Fence(self._timing.lease_ttl - self._timing.lease_margin, self._clock)
                fence.renewed(sent)
                held = HeldPartition(
                    lease.partition, tenure.incarnation, view.nonce, lease.epoch, tenure.fence, fence
                )
                self._held[lease.partition] = held
                housekeeping.start(held)
        if taken:
            self.counts.acquired += taken
            _log.info("partitions_taken", taken=taken, held=len(self._held))
            for hook in self._taken_hooks:
                hook()

    def _lose(self, partition: int) -> None:
        held = self._held.pop(partition)
        held.lease.drop()
        self._closing.discard(partition)
        self.counts.lost += 1
        _log.warning("partition_lost", partition=partition)
        if self._housekeeping is not None:
            self._housekeeping.stop(partition)

    def _close_one(self, housekeeping: Housekeeping) -> None:
        """Begin to let go what was taken last.

        The end of its housekeeper rings the bell; the next turn releases it and closes another.
        """
        if not self._closing:
            partition = next(reversed(self._held))
            self._closing.add(partition)
            housekeeping.stop(partition)

    def _close_all(self, housekeeping: Housekeeping) -> None:
        """Begin to let go everything: this node is to keep nothing, so nothing is gained by taking turns."""
        for partition in self._held.keys() - self._closing:
            self._closing.add(partition)
            housekeeping.stop(partition)

    async def _release(self, partitions: list[int]) -> None:
        if not partitions:
            return
        owner = self._held[partitions[0]].owner
        nonces = {}
        for partition in partitions:
            held = self._held.pop(partition)
            held.lease.drop()
            nonces[partition] = held.nonce
            self._closing.discard(partition)
        self.counts.released += len(nonces)
        try:
            with trio.fail_after(self._timing.lease_ttl):
                await self._leases.release(owner, nonces)
        except (StoreError, trio.TooSlowError) as error:
            _log.warning("partitions_not_released", error=str(error) or NO_ANSWER)

    def _pause(self, view: LeaseView, tenure: Tenure, *, hungry: bool) -> float:
        pause = self._timing.renew_every
        if hungry:
            for lease in view.leases:
                if lease.owner and lease.owner != tenure.incarnation:
                    pause = min(pause, lease.ends_in + SHORTEST_PAUSE)
        return pause
