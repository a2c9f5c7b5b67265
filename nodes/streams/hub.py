"""All streams of one node: who is connected, within which limits, and what runs here.

The hub owns the parts of the stream plane. Connections report to it; the matcher finds work for the
slots it registers; results go to the flow engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Protocol

import structlog
import trio

from cluster.admission.gate import Gate
from cluster.clock import Clock
from cluster.errors import StoreError
from cluster.flows.finishing import ResultKind, StepResult, Verdict
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.abilities import abilities
from cluster.queues.barrier import Held
from cluster.queues.declines import Declines
from cluster.queues.hand_outs import HandedOut
from cluster.queues.presence import Presence
from cluster.queues.served import Served, summarise
from cluster.queues.slot_groups import Slot
from cluster.queues.slot_kind import SlotKind
from cluster.queues.slots import SlotMatcher
from cluster.queues.stream_workers import StreamWorker
from cluster.settings.schema import MatchingSettings
from cluster.store.store import Store
from cluster.upkeep.orphans import Orphan, Orphanage
from cluster.upkeep.step_backlog import StepBacklog
from nodes.streams.audit import Audit
from nodes.streams.beats import Beats
from nodes.streams.cancels import Cancels
from nodes.streams.carrying import FLUSH_SECONDS, Carrier, carry, watch
from nodes.streams.connection import Connection
from nodes.streams.frames import CloseReason
from nodes.streams.results import BarrierPort, Results, Settled, StepEngine
from nodes.streams.tasks import RunningStep, orphan_result, running_step
from nodes.tracing import Spans

log = structlog.get_logger(__name__)

STREAM_HOLD_SECONDS: Final = 30.0
"""How long streams are held while the store is away (E2)."""
SUMMARY_SECONDS: Final = 1.0
"""How soon others learn what this node's workers serve."""


class MembershipPort(Protocol):
    """What the streams need to know of this node's membership."""

    @property
    def incarnation(self) -> str: ...

    def may_act(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """What there is now, and counters since the start."""

    connections: int
    streams: int
    workers: int
    running: int
    pending_results: int
    capacity_declines: int
    cancelled: int
    repaired: int


class StreamHub:
    """One per node; ``run`` must be running before connections are served. ``nodes`` are the sessions of all
    live nodes.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        gate: Gate,
        membership: MembershipPort,
        engine: StepEngine,
        matching: MatchingSettings,
        *,
        nodes: Callable[[], Collection[str]],
        barrier: BarrierPort,
        max_message_bytes: int,
        random: Random,
        spans: Spans,
    ) -> None:
        self._store = store
        self._spans = spans
        self._membership = membership
        self._engine = engine
        self.matching = matching
        self._max_message_bytes = max_message_bytes
        self._random = random
        self.declines = Declines(
            store, self.session, matching.unsupported_type_cache_entries, self._tell_abilities
        )
        self.presence = Presence(store, self.session)
        self.orphanage = Orphanage(store, self._fail_orphans)
        self.served = Served(store, self.session, nodes)
        self.backlog = StepBacklog(store, self.served)
        self.matcher = SlotMatcher(
            store,
            clock,
            gate=gate,
            session=self.session,
            may_act=membership.may_act,
            give_back=self.give_back,
            unsure=lambda: self.audit.soon(),
            random=random,
            unknown=barrier.ring,
            sync_seconds=matching.sync_match_wait,
        )
        self.results = Results(engine, self.matcher.under_way, barrier)
        self.audit = Audit(
            store,
            membership.may_act,
            self.session,
            self.matcher.under_way,
            in_use=lambda: bool(self._streams or self._running),
            running=lambda: [step for step, _ in self._running.values()],
            cancel=self._cancel,
            repair=self._repair,
            standing=lambda: barrier.standing,
        )
        self.beats = Beats(engine, self._cancel)
        self._cancels = Cancels(store, self.session, self._cancel, self.audit.look_for_stops)
        self._connections: dict[Connection, trio.CancelScope] = {}
        self._workers: dict[str, StreamWorker] = {}
        self._running: dict[str, tuple[RunningStep, Connection]] = {}
        self._streams = 0
        self._leaving = False
        self._left = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._acted_at = 0.0
        self.capacity_declines = self._cancelled = self._repaired = self._names = 0

    # -- life -------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        self._acted_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.results.run)
            await nursery.start(self.beats.run)
            await nursery.start(self.declines.run)
            await nursery.start(self.matcher.run)
            await nursery.start(self._cancels.run)
            nursery.start_soon(self.presence.run)
            nursery.start_soon(self._watch_connections)
            nursery.start_soon(self.audit.run)
            nursery.start_soon(self._tell_what_is_served)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def housekeep(self, held: HeldPartition) -> None:
        """Keep a partition free of what buried nodes left, and count what waits in it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.orphanage.housekeep, held)
            nursery.start_soon(self.backlog.housekeep, held)

    async def leave(self, seconds: float) -> None:
        """Send everybody elsewhere, wait for what runs, at most so long; then cut what is left."""
        self._leaving = True
        self._left = trio.Event()
        self.matcher.close()
        for connection in list(self._connections):
            connection.leave("node_leaving")
        if self._connections:
            with trio.move_on_after(seconds):
                await self._left.wait()
        for connection, scope in list(self._connections.items()):
            connection.cut_slots(CloseReason.RECONNECT)
            scope.cancel()
        with trio.move_on_after(FLUSH_SECONDS):
            await self.beats.stored()
            await self.results.drained()
            await self.presence.settled()

    def fenced(self, _session: str) -> None:
        """This node's session was buried: others fail what ran here, so nothing here may go on."""
        self._cut_all(CloseReason.FENCED)
        self.presence.renewed()
        self._cancels.renewed()

    def handed_out(self) -> list[Held]:
        """What runs here under the present session."""
        session = self.session()
        return [step.held() for step, _ in self._running.values() if step.session == session]

    def reasserted(self) -> None:
        """The store was restarted or replaced, and knows now what runs here (E5)."""
        self.presence.rewrite()
        self.audit.soon()
        self.matcher.kick()

    def session(self) -> str:
        return self._membership.incarnation

    def statistics(self) -> StreamStatistics:
        return StreamStatistics(
            connections=len(self._connections),
            streams=self._streams,
            workers=len(self._workers),
            running=len(self._running),
            pending_results=self.results.pending,
            capacity_declines=self.capacity_declines,
            cancelled=self._cancelled,
            repaired=self._repaired,
        )

    # -- connections ------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether a new connection may be served."""
        return not self._leaving and self._nursery is not None

    @property
    def leaving(self) -> bool:
        """Whether everybody is sent elsewhere."""
        return self._leaving

    async def serve(self, carrier: Carrier, namespace: str) -> None:
        """Serve one connection to its end. Raises nothing of the carrier's."""
        self._names += 1
        name = f"{self.session()}/{self._names}"
        connection = Connection(self, namespace, name, self._max_message_bytes)
        try:
            with trio.CancelScope() as scope:
                self._connections[connection] = scope
                await carry(connection, carrier, scope)
        finally:
            self._connections.pop(connection, None)
            connection.ended()
            if not self._connections:
                self._left.set()

    async def _watch_connections(self) -> None:
        """Pings, silence, slow readers, missing hellos, and a store that stays away."""
        interval = self.matching.ping_interval
        while True:
            await trio.sleep(min(1.0, interval / 4))
            now = trio.current_time()
            for connection, scope in list(self._connections.items()):
                watch(connection, scope, now, interval, self._random)
            if self._membership.may_act():
                self._acted_at = now
            elif now - self._acted_at > STREAM_HOLD_SECONDS:
                self._cut_all(CloseReason.STORE_LOST)

    def _cut_all(self, reason: CloseReason) -> None:
        for connection in list(self._connections):
            connection.cut_slots(reason)

    # -- workers and slots ------------------------------------------------------------------

    def worker(self, namespace: str, worker_id: str) -> StreamWorker:
        """The worker of that id, the same object for all its connections."""
        worker = StreamWorker(namespace, worker_id)
        return self._workers.get(worker.key, worker)

    def refusal(self, worker: StreamWorker) -> tuple[str, str] | None:
        """Reason and text when one more slot of the worker cannot be registered (R20, R21)."""
        worker = self._workers.get(worker.key, worker)
        cap, most = self.matching.max_concurrent_tasks_cap, self.matching.max_streams
        if self._leaving:
            return "node_leaving", "This node is about to stop."
        if not self._membership.may_act():
            return "node_not_ready", "This node lost touch with its store."
        if worker.streams >= cap:
            return "worker_streams_exhausted", f"A worker may have {cap} streams on a node."
        if self._streams >= most:
            return "node_streams_exhausted", f"A node serves {most} streams."
        return None

    def opened(self, slot: Slot) -> None:
        """A slot was registered and is free."""
        worker = slot.worker = self._workers.setdefault(slot.worker.key, slot.worker)
        self._streams += 1
        worker.streams += 1
        if worker.streams == 1:
            self.declines.arrived(worker)
        if slot.kind is SlotKind.STEP_AND_RPC:
            worker.shared[slot.skills] += 1
            if worker.shared[slot.skills] == 1:
                self._tell_abilities(worker)
        self.matcher.add(slot)

    def closed(self, slot: Slot) -> None:
        """A slot is over."""
        worker = slot.worker
        self.matcher.remove(slot)
        self._streams -= 1
        worker.streams -= 1
        if slot.kind is SlotKind.STEP_AND_RPC:
            worker.shared[slot.skills] -= 1
            if not worker.shared[slot.skills]:
                del worker.shared[slot.skills]
                self._tell_abilities(worker)
        if not worker.streams:
            self._workers.pop(worker.key, None)
            self.declines.left(worker)

    def _tell_abilities(self, worker: StreamWorker) -> None:
        """The slots of a worker that take steps are others now, or it was found to lack a type."""
        if worker.shared:
            self.presence.arrived(worker.key, abilities(worker, worker.shared))
        else:
            self.presence.left(worker.key)

    # -- attempts ---------------------------------------------------------------------------

    def started(self, connection: Connection, step: RunningStep) -> None:
        """An attempt was sent to a worker."""
        self._running[step.attempt_id] = (step, connection)
        self._spans.step_began(step)
        reason = self._cancels.early(step.attempt_id)
        if reason is not None:
            self._cancel(step.attempt_id, reason)

    def settle(self, result: StepResult, step: RunningStep, settled: Settled) -> None:
        """Make the end of an attempt durable, then say so."""

        def done(verdict: Verdict) -> None:
            self._running.pop(step.attempt_id, None)
            self._spans.step_ended(step.attempt_id, result.kind, accepted=verdict.accepted)
            if verdict.unsure:
                self.audit.soon()
            settled(verdict)

        self.beats.before(step.attempt_id, partial(self.results.settle, result, done))

    def _cancel(self, attempt_id: str, reason: str) -> bool:
        """Ask the worker of an attempt to stop; False when it does not run here."""
        step, connection = self._running.get(attempt_id, (None, None))
        if step is None or connection is None:
            return False
        self._cancelled += 1
        connection.cancel(step, reason)
        return True

    def _repair(self, orphan: Orphan) -> None:
        """An attempt was handed out by this node, and its reply never came."""
        self._repaired += 1
        self.results.settle(orphan_result(orphan, ResultKind.RETURNED), _ignore)

    def give_back(self, handed_out: HandedOut, worker_id: str) -> None:
        """A step that was handed out reached nobody."""
        step = running_step(handed_out, worker_id, self.session())
        self.results.settle(step.result(ResultKind.RETURNED), _ignore)

    async def _fail_orphans(self, orphans: Sequence[Orphan]) -> None:
        await self._engine.finish([orphan_result(orphan, ResultKind.LOST) for orphan in orphans])

    async def _tell_what_is_served(self) -> None:
        while True:
            try:
                await self.served.tell(summarise(self.matcher.serving()))
            except StoreError as error:
                log.debug("served_types_not_written", reason=error.reason)
            await trio.sleep(SUMMARY_SECONDS)


def _ignore(_verdict: Verdict) -> None:
    """Nobody here is interested."""
