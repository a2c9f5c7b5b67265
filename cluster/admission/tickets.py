"""Asks the store for tickets: requests and replies of the admission scripts.

A ticket stands for one lease that may be given out, or was. It is taken before the claim, named in
the task's record by the claim, and dropped by whoever ends the lease; one that no live lease names
is dropped by the audit. A ticket has no clock of its own: it lasts as long as its lease does, so a
heartbeat has nothing to keep in step, and no lease outlives its ticket (D1).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgpack

from cluster.admission.limits import GATE_ORDER, LimitName, QueueLimits
from cluster.ids import TaskKind
from cluster.store.keys import encode
from cluster.store.store import Store

CLOCK_SKEW_MS: Final = 1_000
"""How far the clocks of two primaries of a Redis Cluster may be apart."""
DISCHARGE_AT_ONCE: Final = 100
AUDIT_AFTER_MS: Final = 10_000
"""Age of a ticket that no claim can use any more: a claim must come within 5 s."""


class Closed(Enum):
    """Why nothing was checked: read the limits again, or begin to count the leases."""

    STALE = b"STALE"
    UNCOUNTED = b"CLOSED"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a queue stands against its limits. ``counts`` are in gate order; times are Redis'."""

    now_ms: int
    counts: tuple[int, ...]
    refused: LimitName | None
    """The first limit that is used up."""
    minute_left_ms: int

    def count(self, name: LimitName) -> int:
        return self.counts[GATE_ORDER.index(name)]


@dataclass(frozen=True, slots=True)
class Granted:
    """``number`` tasks may be claimed until ``claim_by_ms``. No ``tickets``: leases are not counted."""

    number: int
    tickets: tuple[str, ...]
    claim_by_ms: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket to give back. ``record`` non-empty: only if it still is that one."""

    kind: TaskKind
    name: str
    refund: bool = False
    record: str = ""


@dataclass(frozen=True, slots=True)
class Dispatches:
    """Dispatches that were counted without tickets and did not take place."""

    kind: TaskKind
    queue: str
    minute: int
    by_namespace: bool
    group: str
    number: int


Discharge = Ticket | Dispatches


def new_tickets(number: int) -> tuple[str, ...]:
    """Fresh names. Each admission has its own, because a poll that is sent again keeps its token."""
    stem = secrets.token_hex(8)
    return tuple(f"{stem}.{index}" for index in range(number))


async def admit(
    store: Store,
    namespace: str,
    queue: str,
    limits: QueueLimits,
    *,
    version: int,
    node: str,
    wanted: int,
    tickets: Sequence[str] = (),
    needed: bool = False,
) -> Granted | Closed:
    """Check all limits and take what they allow, at most ``wanted``; 0 only looks.

    With ``tickets`` (as many as wanted) leases are counted; ``needed`` says that a limit asks for it.
    Not repeatable: after OutcomeUnknown discharge the tickets. Raises StoreError.
    """
    reply = await store.run(
        "admit",
        [store.keys.terms(namespace)],
        [
            store.keys.admission(namespace),
            limits.kind.value,
            encode(queue),
            version,
            node,
            "" if limits.group is None else encode(limits.group),
            CLOCK_SKEW_MS if store.clustered else 0,
            *limits.numbers,
            wanted,
            int(needed),
            *tickets,
        ],
        idempotent=wanted == 0,
    )
    if isinstance(reply, bytes):
        return Closed(reply)
    now, granted, claim_by, refused, left, counts = reply
    standing = Standing(
        now_ms=int(now),
        counts=tuple(counts),
        refused=GATE_ORDER[refused - 1] if refused else None,
        minute_left_ms=int(left),
    )
    return Granted(granted, tuple(tickets[:granted]), int(claim_by), standing)


async def discharge(store: Store, namespace: str, items: Sequence[Discharge]) -> int:
    """Give back up to DISCHARGE_AT_ONCE things; returns how many tickets there were.

    Nodes that wait for the room are told. May be repeated unless it holds Dispatches. Raises StoreError.
    """
    rows: list[list[Any]] = []
    for item in items:
        if isinstance(item, Ticket):
            rows.append([item.kind.value, item.name, int(item.refund), item.record])
        else:
            by_namespace = "n" if item.by_namespace else "-"
            rows.append(
                [
                    item.kind.value,
                    "",
                    str(item.minute),
                    encode(item.queue),
                    by_namespace,
                    encode(item.group),
                    item.number,
                ]
            )
    dropped: int = await store.run(
        "discharge",
        [store.keys.terms(namespace)],
        [
            store.keys.admission(namespace),
            store.keys.prefix,
            encode(namespace),
            msgpack.packb(rows, use_bin_type=False),
        ],
        idempotent=all(isinstance(item, Ticket) for item in items),
    )
    return dropped


async def adopt(store: Store, namespace: str, kind: TaskKind, rows: Sequence[bytes]) -> int:
    """Give tickets to leases that exist: (ticket, encoded queue) pairs, flat. Returns how many are new."""
    added: int = await store.run(
        "adopt",
        [store.keys.terms(namespace)],
        [store.keys.admission(namespace), kind.value, *rows],
        idempotent=True,
    )
    return added


@dataclass(frozen=True, slots=True)
class OldTicket:
    granted_ms: int
    name: str
    record: str


async def old_tickets(
    store: Store, namespace: str, kind: TaskKind, after: OldTicket | None, limit: int
) -> list[OldTicket]:
    """Tickets older than AUDIT_AFTER_MS, oldest first, beginning behind ``after``."""
    place = ("-inf", "") if after is None else (str(after.granted_ms), after.name)
    flat = await store.run(
        "tickets",
        [store.keys.terms(namespace)],
        [store.keys.admission(namespace), kind.value, AUDIT_AFTER_MS, *place, limit],
        idempotent=True,
    )
    return [
        OldTicket(int(flat[i]), flat[i + 1].decode(), flat[i + 2].decode()) for i in range(0, len(flat), 3)
    ]


async def named_by_leases(store: Store, partition: int, tickets: Sequence[str]) -> list[bool]:
    """Which of ``tickets`` a live lease of the partition names."""
    reply = await store.run(
        "named", [store.keys.touch(partition)], [store.keys.base(partition), *tickets], idempotent=True
    )
    return [bool(named) for named in reply]
