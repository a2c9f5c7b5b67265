"""Brings the free slots of a node's workers and ready steps together: rules W3 to W7 for streams.

All free ``step_and_rpc`` slots of a node are served by one claim at a time: it names what each group
of equal slots may take, and the store hands out whatever is oldest over partitions, flow types and
the lists of steps that wait for a worker of this node. A slot that vanished while its task was on the
way costs nothing: the task goes back, same attempt, next delivery.

A slot that becomes free is offered to waiting RPCs first (R63).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final, Protocol

import structlog
import trio

from cluster.clock import Clock
from cluster.errors import OutcomeUnknown, StoreError
from cluster.ids import TaskKind
from cluster.queues import claims
from cluster.queues.heads import Mark
from cluster.queues.rpc_run import RpcRun
from cluster.queues.slot_claims import SlotGroup, StepClaim, StepClaims, Want, claim_steps
from cluster.queues.slot_kind import SlotKind
from cluster.queues.stream_workers import NameKind, Skills, StreamWorker
from cluster.queues.watches import Watch
from cluster.store.keys import QueueName, encode
from cluster.store.store import Store

log = structlog.get_logger(__name__)

STICKY: Final = "t"
"""Kind of the lists of steps that wait for one worker."""
MOST_TASKS: Final = 64
MOST_GROUPS: Final = 16
MOST_WANTS: Final = 128
"""Bounds of one claim."""
PEEK_SECONDS: Final = 1.0
PEEK_QUEUES: Final = 64
KEEP_WATCH_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.25
BLOCKED_SECONDS: Final = 1.0
"""How long a worker is not asked again about a type whose tasks leave it out (R92)."""


class Given(StrEnum):
    """What became of a task that was given to a slot."""

    TAKEN = "taken"
    GONE = "gone"
    """The slot cannot take anything any more."""
    UNFIT = "unfit"
    """The slot stays free: its worker has no such step type or RPC."""


@dataclass(slots=True, eq=False)
class Slot:
    """One registered slot stream, and how to start a step or an RPC on it."""

    worker: StreamWorker
    skills: Skills
    kind: SlotKind
    give: Callable[[StepClaim], Given]
    give_rpc: Callable[[RpcRun], Given]
    registered: bool = False


class WaitingRpc(Protocol):
    """An RPC that looks for a slot. ``offer`` says whether it took the slot."""

    def offer(self, slot: Slot) -> bool: ...


@dataclass(frozen=True, slots=True)
class _GroupKey:
    worker: StreamWorker
    skills: Skills


@dataclass(slots=True)
class _Group:
    """Equal slots: the free ones by kind, and how many are registered in all."""

    key: _GroupKey
    size: int = 0
    shared: dict[Slot, None] = field(default_factory=dict)
    rpc_only: dict[Slot, None] = field(default_factory=dict)

    def free(self, kind: SlotKind) -> dict[Slot, None]:
        return self.shared if kind is SlotKind.STEP_AND_RPC else self.rpc_only


@dataclass(frozen=True, slots=True)
class _Plan:
    groups: list[_Group]
    asked: list[SlotGroup]
    partitions: list[int]


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


class SlotMatcher:
    """One per node. ``run`` must be running before slots are added.

    ``session`` names the node's present session, ``may_act`` says whether it may hand out (E3),
    ``give_back(claim, worker id)`` returns a claim that reached nobody, ``unsure`` is told that a
    claim's reply was lost.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        session: Callable[[], str],
        may_act: Callable[[], bool],
        give_back: Callable[[StepClaim, str], None],
        unsure: Callable[[], None],
        random: Random,
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
        self._sync_ms = int(sync_seconds * 1000)
        self._peek_seconds = peek_seconds
        self._groups: dict[_GroupKey, _Group] = {}
        self._watches: dict[QueueName, Watch] = {}
        self._rpcs: dict[WaitingRpc, None] = {}
        self._blocked: dict[tuple[str, int, QueueName], dict[str, float]] = {}
        self._nursery: trio.Nursery | None = None
        self._serving = False
        self._closed = False
        self.asking = trio.Lock()
        """Held while a claim is under way: what the store says handed out is known here outside it."""
        self._claims = self._tasks = self._returned = self._wakes = self._given_up = 0

    # -- life -------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        for kind in (TaskKind.STEP, STICKY):
            self._store.on_message(f"{self._store.keys.prefix}:wake:{kind}:", self._on_wake)
        self._store.on_reconnect(self._on_reconnect)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(self._peek_seconds * self._random.uniform(0.8, 1.2))
                    await self._peek()
                    await self._drop_idle_watches()
                    self.kick()
            finally:
                self._nursery = None

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True

    def statistics(self) -> SlotStatistics:
        groups = self._groups.values()
        return SlotStatistics(
            registered=sum(group.size for group in groups),
            free=sum(len(group.shared) + len(group.rpc_only) for group in groups),
            claims=self._claims,
            tasks=self._tasks,
            given_back=self._returned,
            wakes=self._wakes,
            given_up_searches=self._given_up,
            waiting_rpcs=len(self._rpcs),
        )

    # -- slots ------------------------------------------------------------------------------

    def add(self, slot: Slot) -> None:
        """A slot was registered and is free."""
        key = _GroupKey(slot.worker, slot.skills)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
            for queue in _queues(key):
                self._watch(queue).users += 1
        group.size += 1
        slot.registered = True
        self.free(slot)

    def remove(self, slot: Slot) -> None:
        """A slot is over."""
        slot.registered = False
        key = _GroupKey(slot.worker, slot.skills)
        group = self._groups[key]
        group.free(slot.kind).pop(slot, None)
        group.size -= 1
        if not group.size:
            del self._groups[key]
            for queue in _queues(key):
                watch = self._watches[queue]
                watch.users -= 1
                watch.idle_since = trio.current_time()

    def free(self, slot: Slot) -> None:
        """A slot has nothing to do: waiting RPCs first, then steps (R63). No-op for one that is over."""
        if not slot.registered:
            return
        for rpc in list(self._rpcs):
            if rpc.offer(slot):
                self._rpcs.pop(rpc, None)
                return
        self._groups[_GroupKey(slot.worker, slot.skills)].free(slot.kind)[slot] = None
        self.kick()

    def take_for_rpc(self, rpc: WaitingRpc) -> bool:
        """Offer every free slot to an RPC, reserved ones first; True when it took one."""
        for kind in (SlotKind.RPC_ONLY, SlotKind.STEP_AND_RPC):
            for group in self._groups.values():
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
        return [(key.worker, key.skills) for key in self._groups]

    # -- what is known ----------------------------------------------------------------------

    def behind(self, queue: QueueName, type_part: str) -> bool:
        """Whether work of a type older than ``matching.syncMatchWait`` is known anywhere (R32)."""
        watch = self._watches.get(queue)
        return watch is not None and watch.has_older(type_part, self._clock.now_ms() - self._sync_ms)

    def _watch(self, queue: QueueName) -> Watch:
        watch = self._watches.get(queue)
        if watch is None:
            watch = self._watches[queue] = Watch(queue, self._store.keys.partitions)
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
        if any(group.shared for group in self._groups.values()):
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
                    async with self.asking:
                        await self._claim(plan)
                except StoreError as error:
                    log.debug("steps could not be claimed", reason=error.reason)
                    if isinstance(error, OutcomeUnknown):
                        self._unsure()
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._serving = False

    def _choose(self) -> _Plan | None:
        """Groups with free slots that may be served, and the partitions to look into (W7)."""
        now = trio.current_time()
        found: list[tuple[int, _Group, tuple[Want, ...]]] = []
        scores: dict[int, int] = {}
        for group in self._groups.values():
            if not group.shared or group.key.worker.rests_until > now:
                continue
            best, wants = self._possible(group.key, scores, now)
            if wants:
                found.append((best, group, wants))
        if not found:
            return None
        self._random.shuffle(found)
        found.sort(key=lambda row: row[0])
        plan = _Plan([], [], self._partitions(scores))
        room, wanted = MOST_TASKS, 0
        for _, group, wants in found[:MOST_GROUPS]:
            if room <= 0 or (plan.groups and wanted + len(wants) > MOST_WANTS):
                break
            slots = min(len(group.shared), room)
            room, wanted = room - slots, wanted + len(wants)
            plan.groups.append(group)
            plan.asked.append(SlotGroup(group.key.worker.worker_id, slots, wants))
        return plan

    def _possible(self, key: _GroupKey, scores: dict[int, int], now: float) -> tuple[int, tuple[Want, ...]]:
        best: int | None = None
        wants: list[Want] = []
        for want in _wants(key):
            useful = False
            watch = self._watches[want.queue]
            for partition, ready_ms in watch.oldest(want.only, want.never):
                blocked = self._blocked_types(key.worker, partition, want.queue, now)
                if blocked and not any(
                    p == partition for p, _ in watch.oldest(want.only, want.never | blocked)
                ):
                    continue
                useful = True
                best = ready_ms if best is None else min(best, ready_ms)
                scores[partition] = min(ready_ms, scores.get(partition, ready_ms))
            if useful:
                wants.append(want)
        return best or 0, tuple(wants)

    def _blocked_types(
        self, worker: StreamWorker, partition: int, queue: QueueName, now: float
    ) -> frozenset[str]:
        types = self._blocked.get((worker.key, partition, queue)) if self._blocked else None
        if not types:
            return frozenset()
        return frozenset(name for name, until in types.items() if until > now)

    def _partitions(self, scores: dict[int, int]) -> list[int]:
        partitions = list(scores)
        self._random.shuffle(partitions)
        partitions.sort(key=lambda partition: scores[partition])
        return partitions[:1] if self._store.clustered else partitions

    async def _claim(self, plan: _Plan) -> None:
        queues = {want.queue for asked in plan.asked for want in asked.wants}
        marks = {
            (partition, queue): self._watches[queue].memories[partition].mark()
            for queue in queues
            for partition in self._watches[queue].live.intersection(plan.partitions)
        }
        most = sum(asked.slots for asked in plan.asked)
        self._claims += 1
        reply = await claim_steps(
            self._store, self._session(), plan.partitions, plan.asked, most, lambda *place: place in marks
        )
        self._learn(reply, marks)
        self._given_up += reply.given_up
        until = trio.current_time() + BLOCKED_SECONDS
        for row in reply.blocked:
            place = (plan.groups[row.group].key.worker.key, row.partition, row.queue)
            self._blocked.setdefault(place, {})[row.type_part] = until
        for claim in reply.claims:
            self._hand_out(claim, plan.groups[claim.group])

    def _learn(self, reply: StepClaims, marks: dict[tuple[int, QueueName], Mark]) -> None:
        for heads in reply.heads:
            watch = self._watches.get(heads.queue)
            if watch is not None:
                mark = marks[heads.partition, heads.queue]
                watch.memories[heads.partition].learn(mark, heads.ready_ms, complete=heads.complete)
                watch.learnt(heads.partition)

    def _hand_out(self, claim: StepClaim, group: _Group) -> None:
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
        self._give_back(claim, group.key.worker.worker_id)

    # -- the safety net ---------------------------------------------------------------------

    async def _peek(self) -> None:
        now = trio.current_time()
        self._blocked = {
            place: kept
            for place, types in self._blocked.items()
            if (kept := {name: until for name, until in types.items() if until > now})
        }
        queues = [watch.queue for watch in self._watches.values() if watch.users]
        every = list(range(self._store.keys.partitions))
        parts = [[partition] for partition in every] if self._store.clustered else [every]
        try:
            for start in range(0, len(queues), PEEK_QUEUES):
                for partitions in parts:
                    await self._peek_at(queues[start : start + PEEK_QUEUES], partitions)
        except StoreError as error:
            log.debug("peek failed", reason=error.reason)

    async def _peek_at(self, queues: list[QueueName], partitions: list[int]) -> None:
        marks = {
            (partition, queue): self._watches[queue].memories[partition].mark()
            for queue in queues
            if queue in self._watches
            for partition in partitions
        }
        reply = await claims.peek(self._store, partitions, queues)
        for heads in reply.heads:
            watch, mark = self._watches.get(heads.queue), marks.get((heads.partition, heads.queue))
            if watch is not None and mark is not None:
                watch.memories[heads.partition].learn(mark, heads.ready_ms, complete=heads.complete)
                watch.learnt(heads.partition)


def _sticky_queue(worker: StreamWorker) -> QueueName:
    return QueueName(STICKY, worker.namespace, worker.worker_id)


def _queues(key: _GroupKey) -> list[QueueName]:
    """All heads a group is interested in: its flow types' and the list of its worker."""
    namespace = key.worker.namespace
    own = [QueueName(TaskKind.STEP, namespace, skill.flow_type) for skill in key.skills.flows]
    return [_sticky_queue(key.worker), *own]


def _wants(key: _GroupKey) -> list[Want]:
    worker = key.worker
    wants = [Want(_sticky_queue(worker))]
    for skill in key.skills.flows:
        never = worker.lacking(NameKind.STEP, skill.flow_type)
        only = None
        if skill.step_types is not None:
            only = frozenset(encode(name) for name in skill.step_types) - never
            never = frozenset()
            if not only:
                continue
        wants.append(Want(QueueName(TaskKind.STEP, worker.namespace, skill.flow_type), only, never))
    return wants
