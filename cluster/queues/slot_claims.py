"""Asks the store for steps: the requests and replies of ``claim_steps.lua``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgpack

from cluster.admission.gate import Permit
from cluster.errors import Fenced, Paused
from cluster.flows.bodies import stored_step_body
from cluster.queues.claims import NO_DUE, Heads, Refusal, ready_map
from cluster.queues.hand_outs import HandedOut
from cluster.store.connection import GENERATION
from cluster.store.keys import QueueName, encode
from cluster.store.store import Store


@dataclass(frozen=True, slots=True)
class Want:
    """Heads that slots may take from: types (encoded) they are limited to, and ones they must not take."""

    queue: QueueName
    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Free slots of one worker that may take the same."""

    worker_id: str
    slots: int
    wants: tuple[Want, ...]


class StepClaim(HandedOut, frozen=True):
    """A step that a claim got for ``group``.

    ``queue`` is that of its flow type, ``ticket`` what it was admitted with ("": nothing is counted).
    """

    group: int
    queue: QueueName
    ticket: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """A group found only tasks that leave its worker out, or too many dead entries."""

    group: int
    partition: int
    queue: QueueName
    type_part: str


@dataclass(frozen=True, slots=True)
class StepClaims:
    now_ms: int
    claims: list[StepClaim]
    heads: list[Heads]
    blocked: list[Blocked]
    given_up: int
    refusals: list[tuple[QueueName, Refusal]]
    """Flow types of which a partition let less be claimed than it has (D3)."""


async def claim_steps(
    store: Store,
    session: str,
    partitions: Sequence[int],
    groups: Sequence[SlotGroup],
    most: int,
    permits: Mapping[QueueName, Permit],
    live: Callable[[int, QueueName], bool] = lambda partition, queue: True,
) -> StepClaims:
    """Hand out the oldest fitting steps, at most ``most``, of flow types that have a permit.

    ``partitions`` has one member on a Redis Cluster. Only heads that are ``live`` in a partition are
    looked at there. Raises Fenced when the session is buried, Paused after a restart of the store,
    StoreFull when Redis takes no writes for want of memory, StoreError otherwise.
    """
    keys = store.keys
    queues: dict[QueueName, int] = {}
    type_sets: dict[frozenset[str], int] = {}
    rows = []
    for group in groups:
        wants = []
        for want in group.wants:
            if want.only is not None and not want.only:
                continue
            wants.append(
                [
                    queues.setdefault(want.queue, len(queues) + 1),
                    type_sets.setdefault(want.only, len(type_sets) + 1) if want.only else 0,
                    type_sets.setdefault(want.never, len(type_sets) + 1) if want.never else 0,
                ]
            )
        rows.append([group.worker_id, encode(group.worker_id), group.slots, wants])
    names = list(queues)
    request = msgpack.packb(
        [
            [[keys.base(p), *(i for i, q in enumerate(names, 1) if live(p, q))] for p in partitions],
            [queue.encode() for queue in names],
            [list(types) for types in type_sets],
            rows,
            most,
            [_permit(queue, permit) for queue, permit in permits.items()],
        ],
        use_bin_type=False,
    )
    reply = await store.run(
        "claim_steps",
        [keys.touch(partitions[0])],
        [keys.prefix, session, GENERATION, request],
        stamped=True,
    )
    if reply == b"FENCED":
        raise Fenced(f"session {session} was buried")
    if reply in (b"PAUSED", b"UNKNOWN"):
        raise Paused(unknown=reply == b"UNKNOWN")
    now, claims, left, blocked, given_up, refusals = reply
    admitted = list(permits)
    return StepClaims(
        now_ms=int(now),
        claims=[
            StepClaim(
                partitions[b],
                task.decode(),
                int(n),
                int(d),
                int(at),
                stored_step_body(info, step),
                g,
                admitted[q],
                ticket.decode(),
            )
            for g, b, task, n, d, at, info, step, q, ticket in claims
        ],
        heads=[Heads(partitions[row[0]], names[row[1]], bool(row[2]), ready_map(row[3:])) for row in left],
        blocked=[Blocked(g, partitions[b], names[h], name.decode()) for g, b, h, name in blocked],
        given_up=int(given_up),
        refusals=[(admitted[q], Refusal(reason.decode())) for q, reason in refusals],
    )


def _permit(queue: QueueName, permit: Permit) -> list[object]:
    """The row of ``claim_steps.lua`` for one flow type."""
    number, claim_by_ms = (NO_DUE, NO_DUE) if permit.free else (permit.number, permit.claim_by_ms)
    scope = f"{encode(queue.namespace)}:{encode(queue.queue)}"
    return [scope, permit.version, number, claim_by_ms, list(permit.tickets)]
