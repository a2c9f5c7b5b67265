"""Brings the free slots of a node's workers and ready steps together: rules W3 to W7 for streams.

All free ``step_and_rpc`` slots of a node are served by one claim at a time: it names what each group
of equal slots may take, and the store hands out whatever is oldest over partitions, flow types and
the lists of steps that wait for a worker of this node. A slot that vanished while its task was on the
way costs nothing: the task goes back, same attempt, next delivery.

A slot that becomes free is offered to waiting RPCs first (R63).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import structlog
import trio

from cluster.admission.gate import Gate
from cluster.clock import Clock
from cluster.errors import OutcomeUnknown, Paused, StoreError
from cluster.ids import TaskKind
from cluster.queues.hand_outs import HandedOut, UnderWay
from cluster.queues.heads import Counts
from cluster.queues.looks import Looks
from cluster.queues.reservations import Reservation
from cluster.queues.slot_claims import StepClaim, StepClaims, claim_steps
from cluster.queues.slot_groups import STICKY, Given, Group, Slot, SlotGroups, WaitingRpc
from cluster.queues.slot_kind import SlotKind
from cluster.queues.slot_plans import Plan, Planner
from cluster.queues.step_permits import Permits, StepPermits
from cluster.queues.stream_workers import Skills, StreamWorker
from cluster.queues.watches import Watch
from cluster.store.keys import QueueName
from cluster.store.store import Store
from cluster.store.transaction import OpenSlot

log = structlog.get_logger(__name__)

PEEK_SECONDS: Final = 1.0
KEEP_WATCH_SECONDS: Final = 30.0
MOST_DOUBTS: Final = 64
"""Heads that a commit looks at to hand a step over; where more seem to have work there is a backlog."""
RETRY_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """Counters since the start, and what there is now."""

    registered: int
    free: int
    claims: int
    tasks: int
    given_back: int
    wakes: int
    given_up_searches: int
    waiting_rpcs: int
    handed_over: int
    """Steps given to a slot by the commit that made them ready, without a claim."""


class SlotMatcher:
    """One per node. ``run`` must be running before slots are added.

    ``gate`` admits steps, ``session`` names the node's present session, ``may_act`` says whether it
    may hand out (E3),
    ``give_back(claim, worker id)`` returns a claim that reached nobody, ``unsure`` is told that a
    claim's reply was lost, ``unknown`` that a partition does not know its server (E5).
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        gate: Gate,
        session: Callable[[], str],
        may_act: Callable[[], bool],
        give_back: Callable[[HandedOut, str], None],
        unsure: Callable[[], None],
        random: Random,
        unknown: Callable[[], None] = lambda: None,
        sync_seconds: float = 0.2,
        peek_seconds: float = PEEK_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._session = session
        self._may_act = may_act
        self._give_back = give_back
        self._unsure = unsure
        self._random = random
        self._unknown = unknown
        self._sync_ms = int(sync_seconds * 1000)
        self._peek_seconds = peek_seconds
        self._groups = SlotGroups()
        self._counts = Counts()
        self._watches: dict[QueueName, Watch] = {}
        self._looks = Looks(store, self._watches, self._counts, sync_seconds)
        self._rpcs: dict[WaitingRpc, None] = {}
        self._planner = Planner(self._groups, self._watches, random, store.clustered)
        self._permits = StepPermits(gate, self.kick, random)
        self._nursery: trio.Nursery | None = None
        self._serving = False
        self._closed = False
        self.under_way = UnderWay()
        """Claims, and whatever else may bring a step to a slot."""
        self._claims = self._tasks = self._returned = self._wakes = self._given_up = self._handed_over = 0

    # -- life -------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        for kind in (TaskKind.STEP, STICKY):
            self._store.on_message(f"{self._store.keys.prefix}:wake:{kind}:", self._on_wake)
        self._store.on_reconnect(self._on_reconnect)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._permits.run)
            task_status.started()
            try:
                while True:
                    await trio.sleep(self._peek_seconds * self._random.uniform(0.8, 1.2))
                    await self._peek()
                    await self._drop_idle_watches()
                    self._permits.look_again()
                    self.kick()
            finally:
                self._nursery = None

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True

    def statistics(self) -> SlotStatistics:
        groups = list(self._groups)
        return SlotStatistics(
            registered=sum(group.size for group in groups),
            free=sum(len(group.shared) + len(group.rpc_only) for group in groups),
            claims=self._claims,
            tasks=self._tasks,
            given_back=self._returned,
            wakes=self._wakes,
            given_up_searches=self._given_up,
            waiting_rpcs=len(self._rpcs),
            handed_over=self._handed_over,
        )

    # -- slots ------------------------------------------------------------------------------

    def add(self, slot: Slot) -> None:
        """A slot was registered and is free."""
        if self._groups.add(slot) and slot.group is not None:
            slot.group.watches = tuple(map(self._watch, _queues(slot.group)))
            for watch in slot.group.watches:
                watch.users += 1
        self.free(slot)

    def remove(self, slot: Slot) -> None:
        """A slot is over."""
        gone = self._groups.remove(slot)
        for watch in gone.watches if gone is not None else ():
            watch.users -= 1
            watch.idle_since = trio.current_time()

    def free(self, slot: Slot) -> None:
        """A slot has nothing to do: waiting RPCs first, then steps (R63). No-op for one that is over."""
        if slot.group is None:
            return
        for rpc in list(self._rpcs):
            if rpc.offer(slot):
                self._rpcs.pop(rpc, None)
                return
        slot.group.free(slot.kind)[slot] = None
        self.kick()

    def take_for_rpc(self, rpc: WaitingRpc) -> bool:
        """Offer every free slot to an RPC, reserved ones first; True when it took one."""
        for kind in (SlotKind.RPC_ONLY, SlotKind.STEP_AND_RPC):
            for group in self._groups:
                free = group.free(kind)
                for slot in list(free)[:1]:
                    if rpc.offer(slot):
                        free.pop(slot, None)
                        return True
        return False

    def wait_for_rpc(self, rpc: WaitingRpc) -> None:
        """Offer slots to the RPC as they become free, until :meth:`forget_rpc`."""
        self._rpcs[rpc] = None

    def forget_rpc(self, rpc: WaitingRpc) -> None:
        self._rpcs.pop(rpc, None)

    def registered(self) -> Iterable[tuple[StreamWorker, Skills]]:
        """Workers with slots here, and what they serve."""
        return [(group.worker, group.skills) for group in self._groups]

    def serving(self) -> Iterable[tuple[StreamWorker, Skills, int]]:
        """As :meth:`registered`, of the workers that take steps, with how many slots they have for them."""
        return [
            (group.worker, group.skills, group.shared_size) for group in self._groups if group.shared_size
        ]

    # -- what is known ----------------------------------------------------------------------

    def behind(self, queue: QueueName, type_part: str) -> bool:
        """Whether work of a type older than ``matching.syncMatchWait`` is known anywhere (R32)."""
        watch = self._watches.get(queue)
        return watch is not None and watch.has_older(type_part, self._clock.now_ms() - self._sync_ms)

    def _watch(self, queue: QueueName) -> Watch:
        watch = self._watches.get(queue)
        if watch is None:
            watch = self._watches[queue] = Watch(self._store.keys.partitions, queue, counts=self._counts)
            if self._nursery is not None:
                self._nursery.start_soon(self._subscribe, watch)
        return watch

    async def _subscribe(self, watch: Watch) -> None:
        while self._watches.get(watch.queue) is watch:
            try:
                await self._store.subscribe(self._store.keys.wake_channel(watch.queue))
            except StoreError:
                await trio.sleep(RETRY_SECONDS)
                continue
            watch.subscribed = True
            # What was learnt before the subscription stood may be out of date (W5).
            watch.forget()
            self.kick()
            return

    async def _drop_idle_watches(self) -> None:
        deadline = trio.current_time() - KEEP_WATCH_SECONDS
        for watch in list(self._watches.values()):
            if not watch.users and watch.subscribed and watch.idle_since < deadline:
                del self._watches[watch.queue]
                await self._store.unsubscribe(self._store.keys.wake_channel(watch.queue))

    def _on_wake(self, channel: str, message: bytes) -> None:
        queue = QueueName.parse(channel.removeprefix(f"{self._store.keys.prefix}:wake:"))
        watch = self._watches.get(queue)
        if watch is not None:
            partition, type_part, ready = message.decode().split(" ")
            self._wakes += 1
            watch.wake(int(partition), type_part, int(ready))
            self.kick()

    def _on_reconnect(self) -> None:
        for watch in self._watches.values():
            watch.forget()
        self.kick()

    # -- claims -----------------------------------------------------------------------------

    def kick(self) -> None:
        """Look for work if a slot is free and none is looked for yet."""
        if self._serving or self._closed or self._nursery is None:
            return
        if any(group.shared for group in self._groups):
            self._serving = True
            self._nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        try:
            while not self._closed:
                plan = self._choose()
                if plan is None:
                    return
                if not self._may_act():
                    await trio.sleep(RETRY_SECONDS)
                    continue
                try:
                    await self._claim_admitted(plan)
                except StoreError as error:
                    log.debug("steps_not_claimed", reason=error.reason)
                    if isinstance(error, OutcomeUnknown):
                        self._unsure()
                    elif isinstance(error, Paused) and error.unknown:
                        self._unknown()
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._serving = False

    def _choose(self) -> Plan | None:
        return self._planner.choose(trio.current_time(), self._permits.refused)

    async def _claim_admitted(self, plan: Plan) -> None:
        """One claim, within the limits. Where there are any the node looks before it reserves (D4)."""
        permits = await self._permits.terms(plan.step_queues)
        if not all(permit.free for permit in permits.values()):
            if self._planner.is_unsure(plan):
                await self._looks.look(
                    list(dict.fromkeys(want.queue for asked in plan.asked for want in asked.wants))
                )
                looked = self._choose()
                if looked is None:
                    return
                plan = looked
            permits = await self._permits.ask(self._planner.demand(plan))
            admitted = self._choose()
            if admitted is None or not permits:
                self._permits.unused(permits)
                return
            plan = admitted
        try:
            await self.under_way.begin()
            try:
                reply = await self._claim(plan, permits)
            finally:
                self.under_way.end()
        except StoreError as error:
            # What may have been executed keeps its tickets: they have leases, or the audit drops them.
            if not isinstance(error, OutcomeUnknown):
                self._permits.unused(permits)
            raise
        self._permits.settle(permits, reply)

    async def _claim(self, plan: Plan, permits: Permits) -> StepClaims:
        queues = {want.queue for asked in plan.asked for want in asked.wants}
        mark = self._counts.mark()
        places = {
            (partition, queue)
            for queue in queues
            for partition in self._watches[queue].live.intersection(plan.partitions)
        }
        most = sum(asked.slots for asked in plan.asked)
        self._claims += 1
        reply = await claim_steps(
            self._store,
            self._session(),
            plan.partitions,
            plan.asked,
            most,
            permits,
            lambda *place: place in places,
        )
        self._looks.learn(reply, mark)
        self._given_up += reply.given_up
        now = trio.current_time()
        for row in reply.blocked:
            worker = plan.groups[row.group].worker
            self._planner.block(worker, row.partition, row.queue, row.type_part, now)
        for claim in reply.claims:
            self._hand_out(claim, plan.groups[claim.group])
        return reply

    def _hand_out(self, claim: StepClaim, group: Group) -> None:
        # The fence once more: other tasks may have run since the claim was sent (E3).
        while group.shared and self._may_act():
            slot = next(iter(group.shared))
            del group.shared[slot]
            given = slot.give(claim)
            if given is Given.TAKEN:
                self._tasks += 1
                return
            if given is Given.UNFIT:
                group.shared[slot] = None
                break
        self._returned += 1
        self._give_back(claim, group.worker.worker_id)

    # -- steps that follow one that has ended ------------------------------------------------

    def open_slot(self, slot: Slot, queue: QueueName) -> OpenSlot | None:
        """A slot that gets free as one that may be given the next step of its flow without a claim; None: not
        now. It may if nothing waits that comes first: RPCs (R63), and what the slot could take and has waited
        for ``matching.syncMatchWait`` (R32). Other nodes may have taken such work meanwhile, so a few doubts
        are settled by the commit, which on a Redis Cluster cannot look into other partitions. A flow type
        with limits goes through the gate.
        """
        group = slot.group
        ready = group is not None and slot.kind is SlotKind.STEP_AND_RPC and not self._rpcs
        if not ready or group is None or self._closed or not self._may_act():
            return None
        doubts: list[tuple[int, QueueName]] = []
        if any(watch.live for watch in group.watches):
            doubts = self._planner.doubts(group, self._clock.now_ms() - self._sync_ms)
        if doubts and self._nursery is not None:
            self._looks.settle(doubts, self._nursery)
        version = self._permits.version(queue)
        if version is None or len(doubts) > (0 if self._store.clustered else MOST_DOUBTS):
            return None
        heads = tuple([self._store.keys.heads(*place) for place in doubts])
        return OpenSlot(slot.worker.worker_id, self._session(), version, heads)

    def hand_over(self, slot: Slot, step: HandedOut) -> None:
        """Start a step that the store gave to this slot as the one before ended; else the slot is free."""
        if self._may_act() and slot.give(step) is Given.TAKEN:
            self._handed_over += 1
            return
        self._returned += 1
        self._give_back(step, slot.worker.worker_id)
        self.free(slot)

    def reserve(self, queue: QueueName, step_type: str) -> Reservation | None:
        """A free slot for a step that a commit is about to make ready, under the terms of :meth:`open_slot`.

        None: there is none, so the step waits in its queue and finds a slot by a claim.
        """
        slot = self._groups.free_for(queue, step_type, trio.current_time())
        opened = None if slot is None else self.open_slot(slot, queue)
        if slot is None or slot.group is None or opened is None or not self.under_way.begin_now():
            return None
        del slot.group.shared[slot]
        return Reservation(opened, partial(self._reserved, slot))

    def _reserved(self, slot: Slot, step: HandedOut | None, known: bool) -> None:
        """The commit is over for which a slot was reserved."""
        if step is None:
            self.free(slot)
        else:
            self.hand_over(slot, step)
        self.under_way.end()
        if not known:
            self._unsure()

    # -- the safety net ---------------------------------------------------------------------

    async def _peek(self) -> None:
        self._planner.forget_blocked(trio.current_time())
        try:
            await self._looks.look([watch.queue for watch in self._watches.values() if watch.users])
        except StoreError as error:
            log.debug("peek_failed", reason=error.reason)


def _queues(group: Group) -> list[QueueName]:
    """All heads a group is interested in: its flow types' and the list of its worker."""
    return [group.sticky_queue, *group.step_queues]
