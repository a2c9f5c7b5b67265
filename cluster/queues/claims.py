"""Asks the store for tasks: the requests and replies of ``claim.lua`` and ``peek.lua``."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgpack

from cluster.errors import Fenced, Paused
from cluster.store.connection import GENERATION
from cluster.store.keys import QueueName, encode
from cluster.store.store import Store
from cluster.store.transaction import Transaction

NO_DUE: Final = -1
NEWEST: Final = 2**53 - 1
"""A version of the limits that no partition finds outdated."""


@dataclass(frozen=True, slots=True)
class ClaimWaiter:
    """Who waits for a task: ``token`` becomes the lease token, ``types`` are plain names.

    ``markers`` are the builds whose tasks it may take. With ``held_only`` it gets nothing but the
    task that its token already holds (G1, H1).
    """

    owner: str
    token: str
    types: frozenset[str]
    markers: tuple[str, ...] = ("",)
    held_only: bool = False
    ticket: str = ""
    """Admission ticket to hold the task under, where leases are counted."""
    registration: str = ""
    """Tells the worker's process from earlier ones of the same id."""
    note_ms: int = 0
    """For how long to note under its token that its poll was sent; 0: nothing is to be noted, as always on
    a Redis Cluster. If it was noted before, it gets nothing, and see :attr:`ClaimReply.sent_before`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One task handed out by the store, still without meaning."""

    waiter: int
    partition: int
    task_id: str
    attempt: int
    delivery: int
    leased_at_ms: int
    expires_at_ms: int
    repeated: bool
    call: str
    """The claim call that handed it out last; a later one under the same token takes it over."""
    extra: list[Any]


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads left in one (partition, queue) after a claim or at a peek; None: no work of the type.

    ``complete`` says that types not named have no work either.
    """

    partition: int
    queue: QueueName
    complete: bool
    ready_ms: dict[str, int | None]


class Refusal(StrEnum):
    """Why a partition let less be claimed than it has (D3, E5)."""

    NONE = ""
    STALE = "STALE"
    """The limits have changed since the caller read them."""
    COUNTED = "COUNTED"
    """Leases are counted, and the claim named no ticket."""
    PAUSED = "PAUSED"
    """The store was restarted or replaced, and the nodes have not said yet what they run (E5)."""
    UNKNOWN = "UNKNOWN"
    """The same, and no node has begun to."""


PAUSES: Final = frozenset({Refusal.PAUSED, Refusal.UNKNOWN})


@dataclass(frozen=True, slots=True)
class ClaimReply:
    now_ms: int
    claims: list[Claim]
    heads: list[Heads]
    lease_due_ms: dict[int, int]
    refusal: Refusal = Refusal.NONE
    sent_before: tuple[int, ...] = ()
    """Waiters whose tokens may hold a task in any partition, because their polls were sent before (H1)."""


@dataclass(frozen=True, slots=True)
class PartitionDue:
    """How far the housekeeping of a partition is behind; NO_DUE where nothing waits."""

    timer_ms: int
    lease_ms: int
    work: int


@dataclass(frozen=True, slots=True)
class PeekReply:
    """``heads`` are those that have work: everything else that was looked at has none."""

    now_ms: int
    due: dict[int, PartitionDue]
    heads: list[Heads]


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


def ready_map(flat: Sequence[bytes]) -> dict[str, int | None]:
    """Types and ready times ("": no work) as they stand in replies."""
    return {
        flat[i].decode(): int(float(flat[i + 1])) if flat[i + 1] else None for i in range(0, len(flat), 2)
    }


async def claim(
    store: Store,
    session: str,
    partitions: Sequence[int],
    queues: Sequence[QueueName],
    waiters: Sequence[ClaimWaiter],
    *,
    page_size: int,
    version: int = NEWEST,
    claim_by_ms: int = NO_DUE,
) -> ClaimReply:
    """Hand out the oldest fitting tasks, at most one per waiter.

    ``version`` is of the limits under which this may be done, ``claim_by_ms`` until when.

    ``queues`` are one queue under several markers.
    ``partitions`` has one member on a Redis Cluster. Raises Fenced when the session is buried,
    Paused after a restart of the store, StoreFull when Redis takes no writes for want of memory,
    StoreError otherwise.
    """
    keys = store.keys
    type_sets: dict[frozenset[str], int] = {}
    rows = []
    for waiter in waiters:
        index = type_sets.setdefault(waiter.types, len(type_sets) + 1) if waiter.types else 0
        heads = [number for number, queue in enumerate(queues, 1) if queue.marker in waiter.markers]
        held_only, note_ms = int(waiter.held_only), waiter.note_ms
        rows.append(
            [waiter.owner, waiter.token, index, heads, held_only, waiter.ticket, waiter.registration, note_ms]
        )
    request = [
        [keys.base(p) for p in partitions],
        [queue.encode() for queue in queues],
        [[encode(name) for name in types] for types in type_sets],
        rows,
        page_size,
        call := secrets.token_hex(4),
        version,
        claim_by_ms,
    ]
    reply = await store.run(
        "claim",
        [keys.touch(partitions[0])],
        [keys.prefix, session, GENERATION, _pack(request)],
        stamped=True,
    )
    if reply == b"FENCED":
        raise Fenced(f"session {session} was buried")
    now, claims, left, due, refusal, sent_before = reply
    why = Refusal(refusal.decode())
    if why in PAUSES:
        if not claims and not sent_before:
            raise Paused(unknown=why is Refusal.UNKNOWN)
        why = Refusal.NONE
    return ClaimReply(
        now_ms=int(now),
        claims=[_claim(row, partitions, call) for row in claims],
        heads=[Heads(partitions[row[0]], queues[row[1]], bool(row[2]), ready_map(row[3:])) for row in left],
        lease_due_ms={p: int(float(ms)) for p, ms in zip(partitions, due, strict=True)},
        refusal=why,
        sent_before=tuple(sent_before),
    )


def _claim(row: list[Any], partitions: Sequence[int], call: str) -> Claim:
    waiter, base, task_id, attempt, delivery, leased_at, expires_at, repeated, *extra = row
    return Claim(
        waiter=waiter,
        partition=partitions[base],
        task_id=task_id.decode(),
        attempt=int(attempt),
        delivery=int(delivery),
        leased_at_ms=int(leased_at),
        expires_at_ms=int(expires_at),
        repeated=bool(repeated),
        call=call,
        extra=extra,
    )


async def note_poll(store: Store, session: str, token: str, note_ms: int) -> bool:
    """Note for ``note_ms`` that the poll of ``token`` was sent, as claims do for polls they are sent for.

    Returns whether that was noted before; then the other nodes hear that it was sent again, to the node of
    ``session``. Raises StoreError.
    """
    key = store.keys.poll(token)
    if await store.call("SET", key, "1", "NX", "PX", note_ms, idempotent=True) is not None:
        return False
    message = f"poll {token} {session}"
    await store.call("PUBLISH", store.keys.changed_channel(), message, idempotent=True)
    return True


async def peek(store: Store, partitions: Sequence[int], queues: Sequence[QueueName]) -> PeekReply:
    """Heads of ``queues`` and overdue housekeeping of ``partitions`` (one on a cluster)."""
    keys = store.keys
    request = [[keys.base(p) for p in partitions], [queue.encode() for queue in queues]]
    now, rows = await store.run("peek", [keys.touch(partitions[0])], [_pack(request)], idempotent=True)
    due: dict[int, PartitionDue] = {}
    heads: list[Heads] = []
    for partition, (timer, lease, work, found) in zip(partitions, rows, strict=True):
        due[partition] = PartitionDue(int(float(timer)), int(float(lease)), int(work))
        heads += [Heads(partition, queues[row[0]], bool(row[1]), ready_map(row[2:])) for row in found]
    return PeekReply(int(now), due, heads)


async def give_back(store: Store, taken: Claim, owner: str) -> None:
    """Return a task that reached no worker: same attempt, next delivery, old place in the queue.

    Raises ConditionFailed when the lease is no longer this one, or was given to the same poll
    again by another claim; then there is nothing to return.
    """
    tx = Transaction(taken.partition, frees=True)
    tx.expect_task(taken.task_id, "l", taken.attempt, taken.delivery, owner)
    tx.expect_equal(store.keys.task(taken.partition, taken.task_id), "c", taken.call)
    tx.requeue(taken.task_id, taken.attempt, taken.delivery + 1)
    await store.commit(tx)
