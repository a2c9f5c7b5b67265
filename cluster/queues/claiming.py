"""The claims of a node: sent for waiters, delivered, given back; and looks that take nothing.

A claim that finds its waiter gone is given back: same attempt, next delivery. So every claim is
sent by a task of the matcher, which hears the reply whatever becomes of the poll.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

import structlog
import trio

from cluster.admission.gate import Gate, Permit
from cluster.errors import ConditionFailed, OutcomeUnknown, Paused, StoreError
from cluster.ids import TaskKind
from cluster.queues import claims
from cluster.queues.barrier import Held, RecentLeases
from cluster.queues.claims import Claim, ClaimWaiter, Heads, PeekReply, Refusal
from cluster.queues.heads import Counts, Mark
from cluster.queues.partition_heads import PartitionHeads
from cluster.queues.waiters import QueueId, Waiter, WaitingQueue
from cluster.store.store import Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a claim saw besides tasks: partitions with lapsed leases, and why it was refused some."""

    lapsed: list[int]
    refusal: Refusal


class Claiming:
    """What the matcher asks the store with, and what it remembers of the replies.

    ``gate`` admits tasks, ``session`` names the node's present session, ``may_act`` says whether it may
    hand out (E3), ``recover`` ends lapsed leases of a partition, ``on_peek`` sees every peek's reply,
    ``unknown`` hears that a partition does not know its server (E5).
    """

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
    ) -> None:
        self._store = store
        self._gate = gate
        self._session = session
        self._may_act = may_act
        self._recover = recover
        self._on_peek = on_peek
        self._random = random
        self._unknown = unknown
        self.recent = RecentLeases()
        self._queues: dict[QueueId, WaitingQueue] = {}
        self._nursery: trio.Nursery | None = None
        self._recovering: set[int] = set()
        self._denied: set[tuple[QueueId, int, str, str]] = set()
        self._counts = Counts()
        self._claims = self._tasks = self._returned = 0

    def start_soon(self, job: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run ``job`` in the background, for as long as this node serves."""
        if self._nursery is not None:
            self._nursery.start_soon(job, *args)

    def _heads(self, queue: WaitingQueue, marker: str) -> PartitionHeads:
        heads = queue.heads.get(marker)
        if heads is None:
            heads = queue.heads[marker] = PartitionHeads(self._store.keys.partitions, counts=self._counts)
        return heads

    def _groups(self) -> list[list[int]]:
        """All partitions, as sets that one script may look into."""
        everywhere = list(range(self._store.keys.partitions))
        return [[partition] for partition in everywhere] if self._store.clustered else [everywhere]

    async def _find_held(self, queue: WaitingQueue, waiters: list[Waiter]) -> None:
        """Hand out once more what the tokens of these waiters hold already (G1, H1).

        A claim that takes new work comes only when this found nothing anywhere: on a cluster one
        script sees one partition, and the token may hold a task in another.
        """
        for group in self._groups():
            open_waiters = [waiter for waiter in waiters if not waiter.done.is_set()]
            if open_waiters:
                await self._claim_for(queue, open_waiters, group, None)
        for waiter in waiters:
            waiter.repeated = False

    async def _claim_for(
        self, queue: WaitingQueue, waiters: list[Waiter], partitions: list[int], permit: Permit | None
    ) -> Looked:
        """One claim, delivered. Without a permit only what the waiters' tokens hold is found."""
        name = waiters[0].queue
        markers = sorted({marker for waiter in waiters for marker in waiter.markers})
        known = {marker: self._heads(queue, marker) for marker in markers}
        mark = self._counts.mark()
        tickets = permit.tickets if permit is not None and permit.tickets else ("",) * len(waiters)
        self._claims += 1
        try:
            reply = await self._ask_for(name, markers, waiters, partitions, permit, tickets)
        except StoreError as error:
            if isinstance(error, Paused):
                # The script ran, and nobody had been sent before.
                self._noted(queue, waiters, permit)
                if error.unknown:
                    self._unknown()
            # What may have been executed keeps its tickets: they have leases, or the audit drops them.
            if permit is not None and not isinstance(error, OutcomeUnknown):
                self._gate.unused(permit, (), 0)
            raise
        for heads in reply.heads:
            known[heads.queue.marker].learn(heads.partition, mark, heads.ready_ms, complete=heads.complete)
        self._noted(queue, waiters, permit)
        for index in reply.sent_before:
            waiters[index].repeated = True
        for claim in reply.claims:
            self._deliver(queue, waiters[claim.waiter], claim, tickets[claim.waiter])
        if permit is not None:
            used = [tickets[claim.waiter] for claim in reply.claims]
            self._gate.unused(permit, used, len(used))
            if reply.refusal:
                self._gate.contradicted(permit, counted=reply.refusal is Refusal.COUNTED)
        lapsed = [p for p, due in reply.lease_due_ms.items() if claims.NO_DUE < due <= reply.now_ms]
        return Looked(lapsed, reply.refusal)

    async def _ask_for(
        self,
        name: QueueId,
        markers: Sequence[str],
        waiters: Sequence[Waiter],
        partitions: list[int],
        permit: Permit | None,
        tickets: Sequence[str],
    ) -> claims.ClaimReply:
        return await claims.claim(
            self._store,
            self._session(),
            partitions,
            [name.marked(marker) for marker in markers],
            [
                ClaimWaiter(
                    owner=w.owner,
                    token=w.token,
                    types=w.types,
                    markers=w.markers,
                    held_only=permit is None,
                    ticket=ticket,
                    registration=w.registration,
                    note_ms=0 if permit is None else w.note_ms,
                )
                for w, ticket in zip(waiters, tickets, strict=False)
            ],
            page_size=max(waiter.page_size for waiter in waiters),
            version=claims.NEWEST if permit is None else permit.version,
            claim_by_ms=claims.NO_DUE if permit is None or permit.free else permit.claim_by_ms,
        )

    def _noted(self, queue: WaitingQueue, waiters: Iterable[Waiter], permit: Permit | None) -> None:
        """A claim was executed; with a permit it noted that the polls it was for were sent."""
        if permit is not None:
            for waiter in waiters:
                waiter.note_ms = 0
            queue.unnoted.difference_update(waiters)

    def _deliver(self, queue: WaitingQueue, waiter: Waiter, claim: Claim, ticket: str) -> None:
        if waiter.done.is_set() or waiter not in queue.waiters:
            self._give_back_soon(claim, waiter.owner)
            return
        self._tasks += 1
        self.recent.add(_held(waiter, claim, ticket))
        waiter.claim = claim
        waiter.done.set()

    def _give_back_soon(self, claim: Claim, owner: str) -> None:
        self.start_soon(self.give_back, claim, owner)

    async def give_back(self, claim: Claim, owner: str) -> None:
        """Return an undelivered task; if that fails the lease runs out by itself."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            self.recent.drop(claim.task_id)
            try:
                await claims.give_back(self._store, claim, owner)
                self._returned += 1
            except ConditionFailed:
                log.debug("nothing_given_back", task_id=claim.task_id)
            except StoreError as error:
                log.warning("task_not_given_back", task_id=claim.task_id, reason=error.reason)

    def _recover_soon(self, partitions: list[int]) -> None:
        for partition in partitions:
            if partition not in self._recovering:
                self._recovering.add(partition)
                self.start_soon(self._recover_one, partition)

    async def _recover_one(self, partition: int) -> None:
        try:
            await self._recover(partition)
        except StoreError as error:
            log.warning("leases_not_recovered", partition=partition, reason=error.reason)
        finally:
            self._recovering.discard(partition)

    async def _recover_all(self, partitions: list[int]) -> bool:
        for partition in partitions:
            await self._recover(partition)
        return bool(partitions)

    async def _look(self, name: QueueId, markers: Iterable[str]) -> list[int]:
        """Learn which work the queue has, without taking any; returns partitions with lapsed leases."""
        lapsed: list[int] = []
        for group in self._groups():
            reply = await self._peek_at([(name, marker) for marker in sorted(markers)], group)
            lapsed += [p for p, due in reply.due.items() if claims.NO_DUE < due.lease_ms <= reply.now_ms]
        return lapsed

    async def _peek_at(self, watched: list[tuple[QueueId, str]], group: list[int]) -> PeekReply:
        # Before the question is marked: heads that are new then take no answer to an earlier one.
        known = [
            (name, marker, queue, self._heads(queue, marker))
            for name, marker in watched
            if (queue := self._queues.get(name)) is not None
        ]
        mark = self._counts.mark()
        reply = await claims.peek(self._store, group, [name.marked(marker) for name, marker in watched])
        found: dict[tuple[QueueId, str], dict[int, Heads]] = {}
        for heads in reply.heads:
            name = QueueId(TaskKind(heads.queue.kind), heads.queue.namespace, heads.queue.queue)
            found.setdefault((name, heads.queue.marker), {})[heads.partition] = heads
        for name, marker, queue, memory in known:
            rows = found.get((name, marker), {})
            for heads in rows.values():
                if marker in queue.subscribed:
                    self._note_denied(name, marker, memory, heads, mark)
                memory.learn(heads.partition, mark, heads.ready_ms, complete=heads.complete)
            memory.learn_rest(mark, group, rows)
        return reply

    def _note_denied(
        self, name: QueueId, marker: str, known: PartitionHeads, heads: Heads, mark: Mark
    ) -> None:
        """The wake of what is found may be on its way: it was missed if it is not here by the next peek."""
        memory = known.memories[heads.partition]
        for type_part in heads.ready_ms:
            if memory.denied_since(mark, type_part):
                self._denied.add((name, heads.partition, marker, type_part))


def _held(waiter: Waiter, claim: Claim, ticket: str) -> Held:
    """What the store should say of a lease that was delivered."""
    of_workflow = waiter.queue.kind is TaskKind.WORKFLOW
    return Held(
        claim.partition,
        claim.task_id,
        claim.attempt,
        claim.delivery,
        waiter.owner,
        ticket=ticket,
        token=waiter.token,
        expires_at_ms=claim.expires_at_ms,
        call=claim.call,
        registration=waiter.registration if of_workflow else None,
        version=int(claim.extra[0]) if of_workflow else 0,
    )
