"""This node among the others: its session, who else is there, and the partitions it keeps.

Fencing, in one place. A node acts (hands out work, runs housekeeping) only while
:meth:`Membership.may_act` is true: until one margin before its session could expire, counted from
when the last good renewal was *sent*. While Redis is away the node merely stops acting and stays
who it is. Told that it was buried, it drops everything it held and joins under a new name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
import trio

from cluster.clock import Clock
from cluster.errors import StoreError
from cluster.membership.bell import Bell
from cluster.membership.burials import Burials
from cluster.membership.fence import Fence, boottime
from cluster.membership.housekeeping import HeldPartition, Housekeep
from cluster.membership.namesakes import Namesakes
from cluster.membership.partitions import PartitionKeeper, Tenure, fair_share
from cluster.membership.sessions import (
    Buried,
    NodeInfo,
    NodeLoad,
    Roll,
    Session,
    SessionStore,
    new_incarnation,
)
from cluster.membership.timing import Timing

if TYPE_CHECKING:
    from cluster.store.store import Store

SOONEST: Final = 0.005
"""How long after a verdict is due the next renewal comes (s)."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MembershipStatistics:
    """A look at the service; counters since its start."""

    incarnation: str
    acting: bool
    live: int
    held: tuple[int, ...]
    renewals: int
    failed_renewals: int
    fenced: int
    burials_known: int
    partitions_acquired: int
    partitions_lost: int
    partitions_released: int
    lease_renewals_failed: int
    housekeeping_failures: int


class Membership:
    """Joins the cluster, stays in it, keeps a fair share of partitions, leaves in good order.

    ``housekeep`` runs for each held partition until it is cancelled. ``clock`` learns Redis time
    from the renewals. ``load`` says what this node has to do; everybody may read it. ``now`` is a
    clock in seconds that runs through suspends.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        info: NodeInfo,
        housekeep: Housekeep,
        *,
        load: Callable[[], NodeLoad] = NodeLoad,
        timing: Timing | None = None,
        now: Callable[[], float] = boottime,
    ) -> None:
        self._store = store
        self._clock = clock
        self._info = info
        self._load = load
        self._timing = timing or Timing()
        self._now = now
        self._sessions = SessionStore(store, self._timing)
        self._tenure = self._new_tenure()
        self._joined = trio.Event()
        self._stopped = trio.Event()
        self._running = self._leaving = self._yielding = self._has_told = False
        self._sharing: frozenset[str] = frozenset()
        self._namesakes = Namesakes(info.name, self._timing.session_ttl)
        self._bell = Bell()
        self._fenced_hooks: list[Callable[[str], None]] = []
        self._renewals = self._failed = self._fenced = 0
        self._keeper = PartitionKeeper(
            store,
            self._timing,
            housekeep,
            tenure=lambda: self._tenure,
            share=self._share,
            clock=now,
        )
        self._burials = Burials(store, self._timing, self._keeper)
        self.live: tuple[Session, ...] = ()

    @property
    def incarnation(self) -> str:
        """The session this node goes by at the moment."""
        return self._tenure.incarnation

    @property
    def held(self) -> Mapping[int, HeldPartition]:
        """The partitions this node keeps; a live view."""
        return self._keeper.held

    def may_act(self) -> bool:
        """Whether nobody can think yet that this node is gone.

        To be asked directly before each hand-out and each housekeeping script (E3).
        """
        return not self._leaving and self._tenure.fence.is_open()

    def on_fenced(self, hook: Callable[[str], None]) -> None:
        """Call ``hook(old incarnation)`` when this node learns that its session was buried."""
        self._fenced_hooks.append(hook)

    def on_buried(self, hook: Callable[[str], None]) -> None:
        """Call ``hook(incarnation)`` once per buried session of the last day, also old ones.

        By then the partitions held here refuse what that session may still send.
        """
        self._burials.on_buried(hook)

    def rewrite_burials(self) -> None:
        """The store may have lost which sessions its partitions refuse: write them again."""
        self._burials.rewrite()

    async def wait_joined(self) -> None:
        """Wait until this node is a member and may act."""
        await self._joined.wait()

    def statistics(self) -> MembershipStatistics:
        counts = self._keeper.counts
        return MembershipStatistics(
            incarnation=self.incarnation,
            acting=self.may_act(),
            live=len(self.live),
            held=tuple(sorted(self.held)),
            renewals=self._renewals,
            failed_renewals=self._failed,
            fenced=self._fenced,
            burials_known=self._burials.known,
            partitions_acquired=counts.acquired,
            partitions_lost=counts.lost,
            partitions_released=counts.released,
            lease_renewals_failed=counts.failed_renewals,
            housekeeping_failures=self._keeper.housekeeping_failures,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a member until :meth:`leave`; started once joined. Cancelled, it goes without a word."""
        channel = self._store.keys.changed_channel()
        self._store.on_message(channel, self._heard)
        self._store.on_reconnect(self._look_around)
        self._running = True
        try:
            await self._store.subscribe(channel)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._burials.run)
                nursery.start_soon(self._keep_session, task_status)
                await self._keeper.run()
                nursery.cancel_scope.cancel()
            await self._end_session()
        finally:
            self._running = False
            self._stopped.set()

    def yield_partitions(self) -> None:
        """Let others keep the partitions from now on, if there are others; the session goes on.

        To be followed by :meth:`leave`. The node's load must say that it drains.
        """
        self._yielding = True
        self._bell.ring()
        self._keeper.look()

    def _share(self) -> int:
        """How many partitions this node should keep."""
        others = self._sharing - {self.incarnation}
        if self._yielding and others:
            return 0
        return fair_share(self._store.keys.partitions, len(others) + 1)

    async def leave(self) -> None:
        """Stop acting, end all housekeeping, release partitions and session: others take over at once.

        Returns when :meth:`run` is done. What Redis could not be told runs out by itself.
        """
        self._leaving = True
        self._keeper.close()
        if self._running:
            await self._stopped.wait()

    # -- the session ------------------------------------------------------------------------

    def _new_tenure(self) -> Tenure:
        span = self._timing.session_ttl - self._timing.session_margin
        return Tenure(new_incarnation(self._info.name), Fence(span, self._now))

    async def _keep_session(self, task_status: trio.TaskStatus[None]) -> None:
        while True:
            pause = await self._renew()
            if self._tenure.fence.is_open() and not self._joined.is_set():
                self._joined.set()
                task_status.started()
            await self._bell.wait(pause)

    async def _renew(self) -> float:
        """Renew the session once; returns the pause (s) until the next time."""
        tenure, sent, sent_local = self._tenure, self._now(), self._clock.local()
        aloud = self._yielding and not self._has_told
        try:
            with trio.fail_after(self._timing.session_ttl / 2):
                info = msgspec.structs.replace(self._info, load=self._load())
                answer = await self._sessions.renew(tenure.incarnation, info, aloud=aloud)
        except (StoreError, trio.TooSlowError) as error:
            self._failed += 1
            _log.warning("session_not_renewed", error=str(error) or "no answer in time")
            return self._timing.retry_every
        self._clock.observe(answer.now_us / 1000, sent_local, self._clock.local())
        if isinstance(answer, Buried):
            self._start_over(tenure)
            return 0
        self._renewals += 1
        self._has_told = self._has_told or aloud
        if not tenure.fence.is_open():
            self._keeper.look()
        tenure.fence.renewed(sent)
        self._take_in(answer)
        if answer.next_verdict_in is None:
            return self._timing.renew_every
        return min(self._timing.renew_every, answer.next_verdict_in + SOONEST)

    def _start_over(self, tenure: Tenure) -> None:
        """This session was buried: drop everything, be somebody else."""
        _log.warning("fenced", incarnation=tenure.incarnation)
        self._fenced += 1
        tenure.fence.drop()
        self._keeper.drop_all()
        self._tenure = self._new_tenure()
        for hook in self._fenced_hooks:
            hook(tenure.incarnation)

    def _take_in(self, roll: Roll) -> None:
        self.live = roll.live
        sharing = frozenset(
            session.incarnation
            for session in roll.live
            if session.expires_in > self._timing.session_ttl - self._timing.quiet
        )
        renewed = [session for session in roll.live if session.incarnation in sharing]
        sharing -= {session.incarnation for session in renewed if session.info.load.draining}
        for session in self._namesakes.look(renewed, self.incarnation, self._now()):
            _log.warning("node_name_taken", name=self._info.name, address=session.info.address)
        if sharing != self._sharing:
            _log.info("members_changed", members=sorted(sharing))
            self._sharing = sharing
            self._keeper.look()
        self._burials.learn(roll.burials, roll.now_us // 1000)

    async def _end_session(self) -> None:
        try:
            with trio.fail_after(self._timing.lease_ttl):
                await self._sessions.leave(self._tenure.incarnation)
        except (StoreError, trio.TooSlowError) as error:
            _log.warning("session_not_ended", error=str(error) or "no answer in time")

    # -- what others say --------------------------------------------------------------------

    def _heard(self, channel: str, message: bytes) -> None:
        if message == b"nodes":
            self._bell.ring()
        elif message == b"partitions":
            self._keeper.look()

    def _look_around(self) -> None:
        self._bell.ring()
        self._keeper.look()
