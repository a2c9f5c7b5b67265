"""Brings parked polls and ready tasks together: rules W3 to W7.

Per (kind, namespace, task queue) the matcher keeps the waiters in order of arrival and a
:class:`HeadMemory` for each (partition, marker). While a waiter could use something the memory
holds possible, exactly one claim is in flight for that queue, asking for as many tasks as there
are such waiters; it repeats until nothing is possible any more. A parked poll costs no command
beyond the shared peek, one a second for all queues of the node.

Where limits hold, tickets are taken before a claim, and only when there is work: the matcher looks
first (D4). A queue that was refused sleeps until there is room, the minute ends, or the next peek.

While Redis is away parked polls stay parked. When the time of one is up that could not be asked
for, the StoreError of the last try is raised; one that had nothing to ask for ends without a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import structlog
import trio

from cluster.admission.gate import LOOK_AGAIN_SECONDS, Gate, Permit
from cluster.errors import OutcomeUnknown, Paused, StoreError, StoreUnavailable
from cluster.ids import TaskKind
from cluster.queues.claims import Claim, PeekReply
from cluster.queues.noting import RETRY_SECONDS, Noting
from cluster.queues.waiters import QueueId, Waiter, WaitingQueue
from cluster.store.keys import QueueName
from cluster.store.store import Store
from cluster.worker_sessions import is_session_marker, with_sessions

log = structlog.get_logger(__name__)

PEEK_SECONDS: Final = 1.0
"""Interval of the safety net, drawn anew within +-20 % each time (W6)."""
PEEK_QUEUES: Final = 64
"""Most queues in one peek; the first of them also looks at how far housekeeping is behind."""
KEEP_QUEUE_SECONDS: Final = 30.0
"""How long a queue stays subscribed after its last waiter (W5)."""
CLAIM_LIMIT: Final = {TaskKind.WORKFLOW: 16, TaskKind.ACTIVITY: 64}
"""Most tasks asked for in one claim; bounds the script and its reply."""
MINUTE_JITTER_SECONDS: Final = 0.2
"""Nodes that wait for the next minute come within this time after it began (D5)."""
ENDED_AT_ONCE: Final = 20
"""Parked polls that a closing node ends in one turn of the loop: their answers take it some 10 ms."""
PROBES: Final = 3
"""How often a poll that looks once may look again because the first look changed something."""


@dataclass(frozen=True, slots=True)
class MatcherStatistics:
    parked: int
    queues: int
    claims: int
    tasks: int
    returned: int
    wakes: int
    wakes_missed: int


class Matcher(Noting):
    """One per node. ``run`` must be running before ``wait`` is called."""

    def __init__(
        self,
        store: Store,
        *,
        gate: Gate,
        session: Callable[[], str],
        may_act: Callable[[], bool],
        recover: Callable[[int], Awaitable[object]],
        on_peek: Callable[[PeekReply], None],
        random: Random,
        unknown: Callable[[], None] = lambda: None,
        peek_seconds: float = PEEK_SECONDS,
    ) -> None:
        super().__init__(
            store,
            gate=gate,
            session=session,
            may_act=may_act,
            recover=recover,
            on_peek=on_peek,
            random=random,
            unknown=unknown,
        )
        self._peek_seconds = peek_seconds
        self._wakes = self._missed = 0

    # -- life -------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        for kind in (TaskKind.WORKFLOW, TaskKind.ACTIVITY):
            self._store.on_message(f"{self._store.keys.prefix}:wake:{kind}:", self._on_wake)
        self._store.on_reconnect(self._on_reconnect)
        self._gate.on_room(self._on_room)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(self._peek_seconds * self._random.uniform(0.8, 1.2))
                    await self._peek()
                    await self._unsubscribe_idle()
                    await self._forget_sessions()
            finally:
                self._nursery = None

    def close(self) -> None:
        """End every parked poll without a task, within a few turns of the loop, and take no more."""
        self._closed = True
        if self._nursery is not None:
            self._nursery.start_soon(self._end_parked)

    async def _end_parked(self) -> None:
        """Some at a time: what answers thousands would keep the node from renewing its session meanwhile."""
        parked = [waiter for queue in self._queues.values() for waiter in queue.waiters]
        for start in range(0, len(parked), ENDED_AT_ONCE):
            for waiter in parked[start : start + ENDED_AT_ONCE]:
                waiter.done.set()
            await trio.lowlevel.checkpoint()

    def parked_polls(self, namespace: str, worker_id: str) -> list[Waiter]:
        """The polls of a worker, for tasks of any kind, that are parked here."""
        return [
            waiter
            for name, queue in self._queues.items()
            if name.namespace == namespace
            for waiter in queue.waiters
            if waiter.owner == worker_id
        ]

    @property
    def closed(self) -> bool:
        """Whether this node takes no more polls."""
        return self._closed

    def statistics(self) -> MatcherStatistics:
        return MatcherStatistics(
            parked=sum(len(queue.waiters) for queue in self._queues.values()),
            queues=len(self._queues),
            claims=self._claims,
            tasks=self._tasks,
            returned=self._returned,
            wakes=self._wakes,
            wakes_missed=self._missed,
        )

    # -- waiting ----------------------------------------------------------------------------------

    async def wait(self, waiter: Waiter, seconds: float) -> Claim | None:
        """The next task for ``waiter``, or None after so many ``seconds`` (0: look once).

        Raises StoreError when the time is up and Redis could not be asked for it last.
        """
        if self._closed or self._nursery is None:
            return None
        queue = self._queues.setdefault(waiter.queue, WaitingQueue())
        queue.waiters[waiter] = None
        waiter.apart = seconds <= 0
        try:
            if seconds <= 0:
                self._nursery.start_soon(self._probe, queue, waiter)
                await waiter.done.wait()
            else:
                with trio.move_on_after(seconds):
                    await self._park(queue, waiter)
        except trio.Cancelled:
            if waiter.claim is not None:
                self._give_back_soon(waiter.claim, waiter.owner)
            raise
        except StoreError as error:
            waiter.trouble = error
        finally:
            queue.waiters.pop(waiter, None)
            queue.unnoted.discard(waiter)
            queue.idle_since = trio.current_time()
        if waiter.claim is None and waiter.trouble is not None:
            raise waiter.trouble
        return waiter.claim

    async def _park(self, queue: WaitingQueue, waiter: Waiter) -> None:
        if waiter.note_ms and self._store.clustered:
            self._set_apart(queue, waiter)
        elif waiter.note_ms:
            queue.unnoted.add(waiter)
        await self._subscribe(queue, waiter)
        self._kick(waiter.queue, queue)
        if not queue.serving:
            self._note_all_but(queue, ())
        await waiter.done.wait()

    async def _subscribe(self, queue: WaitingQueue, waiter: Waiter) -> None:
        if queue.subscribed.issuperset(waiter.markers):
            return
        async with queue.subscribing:
            new = [marker for marker in waiter.markers if marker not in queue.subscribed]
            channels = [self._store.keys.wake_channel(waiter.queue.marked(marker)) for marker in new]
            await self._store.subscribe(*channels)
            # What was learnt before the subscription stood may be out of date (W5).
            for marker in new:
                self._heads(queue, marker).forget()
            queue.subscribed.update(new)

    def waits(self, namespace: str, worker_id: str) -> bool:
        """Whether polls of a worker for activities are parked here."""
        return any(self._waiting(namespace, worker_id))

    async def look_behind(self, namespace: str, worker_id: str, session_ids: tuple[str, ...]) -> None:
        """The parked polls of a worker also look for tasks of its sessions from now on."""
        for queue, waiter in list(self._waiting(namespace, worker_id)):
            waiter.markers = with_sessions(waiter.markers, session_ids)
            await self._subscribe(queue, waiter)
            self._kick(waiter.queue, queue)

    def _waiting(self, namespace: str, worker_id: str) -> Iterator[tuple[WaitingQueue, Waiter]]:
        for name, queue in self._queues.items():
            if name.kind is TaskKind.ACTIVITY and name.namespace == namespace:
                yield from ((queue, waiter) for waiter in queue.waiters if waiter.owner == worker_id)

    async def _forget_sessions(self) -> None:
        """Look no more behind markers of sessions that no poll on this node asks for."""
        for name, queue in list(self._queues.items()):
            if not any(map(is_session_marker, queue.subscribed)):
                continue
            async with queue.subscribing:
                wanted = {marker for waiter in queue.waiters for marker in waiter.markers}
                gone = {m for m in queue.subscribed if is_session_marker(m) and m not in wanted}
                if gone and not queue.serving:
                    queue.subscribed -= gone
                    for marker in gone:
                        queue.heads.pop(marker, None)
                    await self._store.unsubscribe(
                        *(self._store.keys.wake_channel(name.marked(marker)) for marker in gone)
                    )

    async def _unsubscribe_idle(self) -> None:
        deadline = trio.current_time() - KEEP_QUEUE_SECONDS
        idle = [
            n for n, q in self._queues.items() if not q.waiters and not q.serving and q.idle_since < deadline
        ]
        channels = [
            self._store.keys.wake_channel(name.marked(marker))
            for name in idle
            for marker in self._queues.pop(name).subscribed
        ]
        if channels:
            await self._store.unsubscribe(*channels)

    # -- wakes ------------------------------------------------------------------------------------

    def _on_wake(self, channel: str, message: bytes) -> None:
        name = QueueName.parse(channel.removeprefix(f"{self._store.keys.prefix}:wake:"))
        partition, type_part, ready = message.decode().split(" ")
        self._wakes += 1
        queue_id = QueueId(TaskKind(name.kind), name.namespace, name.queue)
        queue = self._queues.get(queue_id)
        if queue is None:
            return
        self._denied.discard((queue_id, int(partition), name.marker, type_part))
        self._heads(queue, name.marker).wake(int(partition), type_part, int(ready))
        self._kick(queue_id, queue)

    def _on_reconnect(self) -> None:
        for name, queue in self._queues.items():
            for heads in queue.heads.values():
                heads.forget()
            self._kick(name, queue)

    # -- serving ----------------------------------------------------------------------------------

    def _kick(self, name: QueueId, queue: WaitingQueue) -> None:
        if queue.serving or queue.refused or not queue.waiters or self._nursery is None:
            return
        if self._choose(name, queue)[0]:
            queue.serving = True
            self._nursery.start_soon(self._serve, name, queue)

    def _choose(self, name: QueueId, queue: WaitingQueue) -> tuple[list[Waiter], list[int]]:
        """Waiters that may be served, and the partitions to look into, oldest work first (W7)."""
        chosen: list[Waiter] = []
        scores: dict[int, int] = {}
        seen: dict[tuple[frozenset[str], tuple[str, ...]], bool] = {}
        for waiter in queue.waiters:
            if waiter.apart or waiter.done.is_set():
                continue
            group = (waiter.types, waiter.markers)
            if group not in seen:
                seen[group] = self._possible(queue, waiter, scores)
            if seen[group]:
                chosen.append(waiter)
                if len(chosen) == CLAIM_LIMIT[name.kind]:
                    break
        partitions = list(scores)
        self._random.shuffle(partitions)
        partitions.sort(key=lambda partition: scores.get(partition, 0))
        return chosen, partitions[:1] if self._store.clustered else partitions

    def _possible(self, queue: WaitingQueue, waiter: Waiter, scores: dict[int, int]) -> bool:
        possible = False
        for marker in waiter.markers:
            for partition, ready_ms in self._heads(queue, marker).ready(waiter.parts):
                possible = True
                scores[partition] = min(ready_ms, scores.get(partition, ready_ms))
        return possible

    async def _serve(self, name: QueueId, queue: WaitingQueue) -> None:
        unsure: list[Waiter] = []
        try:
            while not self._closed:
                if not self._may_act():
                    self._note_all_but(queue, unsure)
                    await trio.sleep(RETRY_SECONDS)
                    continue
                waiters, partitions = (unsure, []) if unsure else self._choose(name, queue)
                self._note_all_but(queue, waiters)
                if not waiters or (queue.refused and not unsure):
                    return
                try:
                    if unsure:
                        await self._find_held(queue, unsure)
                    else:
                        await self._claim_admitted(name, queue, waiters, partitions)
                except Paused:
                    await trio.sleep(RETRY_SECONDS)
                except StoreError as error:
                    for waiter in waiters:
                        waiter.trouble = error
                    if isinstance(error, OutcomeUnknown) and not unsure:
                        unsure = waiters
                    else:
                        self._note_all_but(queue, unsure)
                        await trio.sleep(RETRY_SECONDS)
                else:
                    unsure = []
                    for waiter in waiters:
                        waiter.trouble = None
        finally:
            queue.serving = False
            self._note_all_but(queue, ())

    async def _claim_admitted(
        self, name: QueueId, queue: WaitingQueue, waiters: list[Waiter], partitions: list[int]
    ) -> None:
        permit = await self._gate.terms(name.namespace, name.kind, name.queue)
        if not permit.free:
            alike = {(waiter.types, waiter.markers): waiter for waiter in waiters}
            if any(self._unsure_about(queue, waiter) for waiter in alike.values()):
                markers = {marker for waiter in waiters for marker in waiter.markers}
                self._recover_soon(await self._look(name, markers))
                waiters, partitions = self._choose(name, queue)
                if not waiters:
                    return
            rooms = queue.rooms
            permit = await self._gate.ask(name.namespace, name.kind, name.queue, len(waiters))
            if not permit.free and permit.number == 0:
                if queue.rooms == rooms:
                    self._refuse(name, queue, permit)
                return
            waiters = waiters if permit.free else waiters[: permit.number]
            self._note_all_but(queue, waiters)
        self._recover_soon((await self._claim_for(queue, waiters, partitions, permit)).lapsed)
        for waiter in waiters:
            if waiter.repeated:
                self._set_apart(queue, waiter)

    def _unsure_about(self, queue: WaitingQueue, waiter: Waiter) -> bool:
        """Whether it is not known if there is work for ``waiter`` somewhere."""
        return any(
            ready_ms == 0
            for marker in waiter.markers
            for _, ready_ms in self._heads(queue, marker).ready(waiter.parts)
        )

    # -- limits -----------------------------------------------------------------------------------

    def _refuse(self, name: QueueId, queue: WaitingQueue, permit: Permit) -> None:
        """Let a queue sleep; a lease limit's end is announced, the minute's is not."""
        queue.refused = True
        seconds = LOOK_AGAIN_SECONDS if permit.standing is None else permit.retry_after
        if seconds is not None and not queue.alarm:
            queue.alarm = True
            jitter = self._random.uniform(0, MINUTE_JITTER_SECONDS)
            self.start_soon(self._room_after, name, queue, seconds + jitter)

    async def _room_after(self, name: QueueId, queue: WaitingQueue, seconds: float) -> None:
        await trio.sleep(seconds)
        queue.alarm = False
        self._make_room(name, queue)

    def _on_room(self, namespace: str | None, kind: TaskKind | None, queue_name: str | None) -> None:
        if namespace is not None and kind is not None and queue_name is not None:
            name = QueueId(kind, namespace, queue_name)
            queue = self._queues.get(name)
            if queue is not None:
                self._make_room(name, queue)
            return
        for name, queue in self._queues.items():
            if namespace in (None, name.namespace):
                self._make_room(name, queue)

    def _make_room(self, name: QueueId, queue: WaitingQueue) -> None:
        queue.rooms += 1
        queue.refused = False
        self._kick(name, queue)

    # -- single looks -----------------------------------------------------------------------------

    async def _probe(self, queue: WaitingQueue, waiter: Waiter) -> None:
        """Look once into every partition, whatever the memory says; lapsed leases count (H2)."""
        try:
            if not self._may_act():
                raise StoreUnavailable("this node lost touch with Redis; try again or ask another node")
            if self._store.clustered and await self._found_again(queue, waiter):
                return
            for _ in range(PROBES):
                if waiter.done.is_set() or self._closed or not await self._probe_once(queue, waiter):
                    break
        except StoreError as error:
            waiter.trouble = error
        finally:
            waiter.done.set()

    async def _probe_once(self, queue: WaitingQueue, waiter: Waiter) -> bool:
        """Look for a task; returns whether another look may find more."""
        name = waiter.queue
        permit = await self._gate.terms(name.namespace, name.kind, name.queue)
        groups = self._groups()
        if not permit.free:
            if await self._found_again(queue, waiter):
                return False
            lapsed = await self._look(name, waiter.markers)
            scores: dict[int, int] = {}
            if self._possible(queue, waiter, scores):
                permit = await self._gate.ask(name.namespace, name.kind, name.queue, 1)
            if not permit.free and permit.number == 0:
                return await self._recover_all(lapsed)
            if not permit.free:
                groups = [group for group in groups if not scores.keys().isdisjoint(group)][:1]
        lapsed = []
        for group in groups:
            try:
                looked = await self._claim_for(queue, [waiter], group, permit)
            except OutcomeUnknown:
                await self._find_held(queue, [waiter])
                return False
            lapsed += looked.lapsed
            if waiter.repeated:
                return not await self._found_again(queue, waiter)
            if waiter.done.is_set():
                self._recover_soon(lapsed)
                return False
            if looked.refusal:
                return True
        return await self._recover_all(lapsed)

    # -- the safety net ---------------------------------------------------------------------------

    async def _peek(self) -> None:
        for place in self._denied:
            self._missed += 1
            log.warning("wake_missed", queue=place[0].queue, partition=place[1])
        self._denied.clear()
        watched = [
            (name, marker)
            for name, queue in self._queues.items()
            if queue.waiters
            for marker in sorted(queue.subscribed)
        ]
        try:
            for start in range(0, max(len(watched), 1), PEEK_QUEUES):
                for group in self._groups():
                    reply = await self._peek_at(watched[start : start + PEEK_QUEUES], group)
                    if start == 0:
                        self._on_peek(reply)
        except StoreError as error:
            log.debug("peek_failed", reason=error.reason)
        for name in {name for name, _ in watched}:
            queue = self._queues.get(name)
            if queue is not None:
                self._make_room(name, queue)
