"""The gate of one node: asks for tickets before a claim, gives back what was not used or is over.

Nothing here knows how tasks are carried: polls of the workflow plane and streams ask alike.

* A queue for which nothing is counted passes without a command (:attr:`Permit.free`).
* A refused caller waits: it is told through ``on_room`` when a ticket was dropped or the limits
  changed; for the minute's end it sets its own alarm (:attr:`Permit.retry_after`).
* Whatever ends a lease, on whichever way, reports its ticket here (``Store.on_lease_end``); drops
  travel in batches behind the commit. What a dying node could not drop, the audit does (D2).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import structlog
import trio

from cluster.admission import tickets
from cluster.admission.counting import Counting
from cluster.admission.limit_store import LimitStore
from cluster.admission.limits import DISPATCH_LIMITS, LimitBook, LimitName, QueueLimits
from cluster.admission.tickets import Closed, Discharge, Dispatches, Granted, Standing, Ticket
from cluster.errors import OutcomeUnknown, StoreError, StoreUnavailable
from cluster.ids import TaskKind
from cluster.store.keys import QueueName, decode
from cluster.store.store import Store

log = structlog.get_logger(__name__)

TRIES: Final = 5
AT_ONCE: Final = 16
"""Most tickets one request takes, so that one node does not starve the others (D4)."""
LOOK_AGAIN_SECONDS: Final = 0.25
DISCHARGE_TRIES: Final = 25
DISCHARGE_PAUSE: Final = 0.2
LAST_DISCHARGE_SECONDS: Final = 1.0
MINUTE_MS: Final = 60_000

RoomHandler = Callable[[str | None, TaskKind | None, str | None], None]
"""Gets namespace, kind and queue for which there may be room again; None: all of them."""


@dataclass(frozen=True, slots=True)
class Permit:
    """What may be claimed now.

    ``number`` tasks until ``claim_by_ms`` (Redis time), each under one of ``tickets`` where leases are
    counted. A ``free`` permit has no bounds. ``version`` is of the limits it was given under.
    """

    namespace: str
    kind: TaskKind
    queue: str
    version: int
    free: bool
    number: int = 0
    tickets: tuple[str, ...] = ()
    claim_by_ms: int = 0
    limits: QueueLimits | None = None
    standing: Standing | None = None

    @property
    def refused(self) -> LimitName | None:
        """The limit that is used up, if one is."""
        return None if self.standing is None else self.standing.refused

    @property
    def retry_after(self) -> float | None:
        """Seconds until the minute's end when that alone brings room, else None."""
        if self.standing is None or self.standing.refused not in DISPATCH_LIMITS:
            return None
        return self.standing.minute_left_ms / 1000


@lru_cache(maxsize=4096)
def _scope(heads: str) -> tuple[str, TaskKind]:
    """Namespace and kind of encoded heads."""
    name = QueueName.parse(heads)
    return name.namespace, TaskKind(name.kind)


class Gate:
    """One per node. ``run`` must be running for tickets to be given back."""

    def __init__(self, store: Store, limits: LimitStore) -> None:
        self._store = store
        self._limits = limits
        self._counting = Counting(store)
        self._node = secrets.token_hex(6)
        self._counted: set[tuple[str, TaskKind]] = set()
        self._doubted: set[tuple[str, TaskKind]] = set()
        self._outdated: dict[str, int] = {}
        self._pending: dict[str, list[Discharge]] = {}
        self._flushing: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._room: list[RoomHandler] = []

    # -- life -------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hear of room and give tickets back, until cancelled."""
        self._store.on_message(self._store.keys.room_channel(self._node), self._on_room)
        self._store.on_lease_end(self._on_lease_end)
        self._limits.on_change(lambda namespace: self._tell(namespace, None, None))
        await self._store.subscribe(self._store.keys.room_channel(self._node))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
                with trio.CancelScope(shield=True), trio.move_on_after(LAST_DISCHARGE_SECONDS):
                    for namespace in list(self._pending):
                        await self._flush(namespace)

    def on_room(self, handler: RoomHandler) -> None:
        """Call ``handler`` when there may be room for whoever was refused."""
        self._room.append(handler)

    # -- asking -----------------------------------------------------------------------------

    async def terms(self, namespace: str, kind: TaskKind, queue: str) -> Permit:
        """The permit of a queue for which nothing is counted, else one for nothing. Raises StoreError."""
        book = await self._limits.book(namespace)
        refused_under = self._outdated.pop(namespace, None)
        if refused_under is not None and book.version <= refused_under:
            book = await self._limits.catch_up(namespace)
        free = not self._is_counted(namespace, kind, queue)
        return Permit(namespace, kind, queue, book.version, free=free)

    def _is_counted(self, namespace: str, kind: TaskKind, queue: str) -> bool:
        if (namespace, kind) in self._counted:
            return True
        book = self._limits.remembered(namespace)
        return book is not None and not book.is_free(kind, queue)

    def free_version(self, namespace: str, kind: TaskKind, queue: str) -> int | None:
        """The version of the limits under which nothing is counted for a queue, if that is all this node
        knows. A claim under it is checked by the partition all the same.
        """
        book = self._limits.remembered(namespace)
        if book is None or not book.is_free(kind, queue):
            return None
        doubted = (namespace, kind) in self._counted or namespace in self._outdated
        return None if doubted else book.version

    def limited(self, namespace: str, kind: TaskKind, queue: str) -> bool:
        """Whether, as far as this node knows, a limit may hold tasks of the queue back."""
        book = self._limits.remembered(namespace)
        return book is not None and book.of(kind, queue).limited

    async def ask(self, namespace: str, kind: TaskKind, queue: str, wanted: int) -> Permit:
        """Permission to claim up to ``wanted`` tasks; 0 only looks how the queue stands.

        Raises StoreError when Redis could not decide.
        """
        for _ in range(TRIES):
            book = await self._limits.book(namespace)
            limits, needed = book.of(kind, queue), book.counts_leases(kind)
            counted = needed or limits.counts_leases or (namespace, kind) in self._counted
            if not counted and not limits.counts_dispatches:
                return Permit(namespace, kind, queue, book.version, free=True, limits=limits)
            answer = await self._admit(namespace, queue, limits, book.version, wanted, counted, needed)
            if isinstance(answer, Granted):
                self._doubted.discard((namespace, kind))
                return Permit(
                    namespace,
                    kind,
                    queue,
                    book.version,
                    free=False,
                    number=answer.number,
                    tickets=answer.tickets,
                    claim_by_ms=answer.claim_by_ms,
                    limits=limits,
                    standing=answer.standing,
                )
            if answer is Closed.STALE:
                self._limits.forget(namespace)
            elif not await self._count(namespace, kind, needed or limits.counts_leases):
                return Permit(namespace, kind, queue, book.version, free=False, limits=limits)
        raise StoreUnavailable(f"the limits of {namespace} change faster than this node can follow")

    async def _admit(
        self,
        namespace: str,
        queue: str,
        limits: QueueLimits,
        version: int,
        wanted: int,
        counted: bool,
        needed: bool,
    ) -> Granted | Closed:
        wanted = min(wanted, AT_ONCE)
        names = tickets.new_tickets(wanted) if counted else ()
        try:
            return await tickets.admit(
                self._store,
                namespace,
                queue,
                limits,
                version=version,
                node=self._node,
                wanted=wanted,
                tickets=names,
                needed=needed,
            )
        except OutcomeUnknown:
            # No claim will use them.
            self._discharge_soon(namespace, [Ticket(limits.kind, name, refund=True) for name in names])
            raise

    async def _count(self, namespace: str, kind: TaskKind, needed: bool) -> bool:
        """Begin to count leases, unless only a memory says that they are counted, and it is doubted first."""
        if needed or (namespace, kind) in self._doubted:
            return await self._counting.begin(namespace, kind)
        self._doubted.add((namespace, kind))
        self._counted.discard((namespace, kind))
        return True

    async def change_limits(
        self, namespace: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> LimitBook:
        """Set ``change(present run-time tree)`` as the limits set at run time; returns what holds now.

        Returns once it holds on every node: older terms are refused and every lease is counted where
        that is needed (D3). Raises StoreError; then it may hold already, and can be done again.
        """
        book = await self._limits.replace(namespace, change)
        for kind in TaskKind:
            if book.counts_leases(kind):
                await self._begin_counting(namespace, kind)
        self._tell(namespace, None, None)
        return book

    async def _begin_counting(self, namespace: str, kind: TaskKind) -> None:
        while True:
            if await self._counting.begin(namespace, kind):
                return
            await trio.sleep(LOOK_AGAIN_SECONDS)

    def contradicted(self, permit: Permit, *, counted: bool) -> None:
        """A partition refused a claim under ``permit``: its limits are old, or leases are ``counted``."""
        self._limits.forget(permit.namespace)
        if counted:
            self._counted.add((permit.namespace, permit.kind))
        else:
            self._outdated[permit.namespace] = permit.version

    # -- giving back ------------------------------------------------------------------------

    def unused(self, permit: Permit, used: Sequence[str], number: int) -> None:
        """Of ``permit`` only the tickets in ``used`` led to leases, ``number`` in all."""
        if permit.free or permit.number <= number:
            return
        if permit.tickets:
            left = [name for name in permit.tickets if name not in used]
            self._discharge_soon(permit.namespace, [Ticket(permit.kind, name, refund=True) for name in left])
        elif permit.limits is not None and permit.standing is not None:
            limits = permit.limits
            group = limits.group if limits[LimitName.GROUP_DISPATCHES] is not None else None
            self._discharge_soon(
                permit.namespace,
                [
                    Dispatches(
                        kind=permit.kind,
                        queue=permit.queue,
                        minute=permit.standing.now_ms // MINUTE_MS,
                        by_namespace=limits[LimitName.NAMESPACE_DISPATCHES] is not None,
                        group=group or "",
                        number=permit.number - number,
                    )
                ],
            )

    def _on_lease_end(self, heads: str, ticket: str) -> None:
        namespace, kind = _scope(heads)
        self._discharge_soon(namespace, [Ticket(kind, ticket)])

    def _discharge_soon(self, namespace: str, items: Sequence[Discharge]) -> None:
        if not items:
            return
        self._pending.setdefault(namespace, []).extend(items)
        if namespace not in self._flushing and self._nursery is not None:
            self._flushing.add(namespace)
            self._nursery.start_soon(self._keep_flushing, namespace)

    async def _keep_flushing(self, namespace: str) -> None:
        try:
            for _ in range(DISCHARGE_TRIES):
                if await self._flush(namespace):
                    return
                await trio.sleep(DISCHARGE_PAUSE)
            # By now the audit is faster.
            log.warning("tickets_left_to_audit", namespace=namespace)
            self._pending.pop(namespace, None)
        finally:
            self._flushing.discard(namespace)

    async def _flush(self, namespace: str) -> bool:
        """Give back everything that waits; False when Redis is away."""
        while waiting := self._pending.get(namespace):
            batch = waiting[: tickets.DISCHARGE_AT_ONCE]
            del waiting[: len(batch)]
            try:
                await tickets.discharge(self._store, namespace, batch)
            except StoreError as error:
                log.debug("tickets_postponed", namespace=namespace, reason=error.reason)
                # Dispatches may have been given back already, and twice would be once too often.
                waiting[:0] = [item for item in batch if isinstance(item, Ticket)]
                return False
        self._pending.pop(namespace, None)
        return True

    # -- room -------------------------------------------------------------------------------

    def _on_room(self, _channel: str, message: bytes) -> None:
        kind, namespace, queue = message.decode().split(" ")
        self._tell(decode(namespace), TaskKind(kind), decode(queue))

    def _tell(self, namespace: str | None, kind: TaskKind | None, queue: str | None) -> None:
        for handler in self._room:
            handler(namespace, kind, queue)
