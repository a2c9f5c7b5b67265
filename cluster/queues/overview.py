"""What task queues hold: ready and leased tasks, rates, and what is late (server-behaviour 6.5).

One read-only script per partition and CHUNK queues. CHUNKS_AT_ONCE chunks travel together, one such
group after the other: thousands of queues then take many round trips, but never hold up what others ask of
the store, nor time out behind themselves. It is a snapshot per partition and chunk, and takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import msgpack

from cluster.ids import TaskKind
from cluster.store.keys import decode, encode
from cluster.store.store import Store
from cluster.store.together import together

CHUNK: Final = 50
CHUNKS_AT_ONCE: Final = 2
"""The store works on one chunk while what it said of another is taken in; more would keep it from others."""
MOST_LEASES: Final = 50
REDISPATCH_AFTER_SECONDS: Final = 3
"""A task that is ready for so long is called overdue; a busy queue normally has some."""
HTTP_KINDS: Final = (TaskKind.WORKFLOW, TaskKind.ACTIVITY)
EVERY_KIND: Final = (*HTTP_KINDS, TaskKind.STEP)
"""Of steps, too; the queue of a step is called by its flow type."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    task_id: str
    owner: str
    attempt: int
    delivery: int
    expires_at_ms: int
    workflow_id: str


@dataclass(frozen=True, slots=True)
class ReadyTask:
    task_id: str
    workflow_id: str
    ready_at_ms: int


@dataclass(slots=True)
class QueueContent:
    """One kind of tasks of one queue, over all partitions."""

    ready: int = 0
    oldest: ReadyTask | None = None
    leased: int = 0
    expired: int = 0
    oldest_expiry_ms: int | None = None
    overdue: int = 0
    added: int = 0
    handed_out: int = 0
    leases: list[LeaseRow] = field(default_factory=list)

    @property
    def live(self) -> int:
        """Leases that have not run out."""
        return self.leased - self.expired


@dataclass(slots=True)
class Overview:
    """``queues`` by name and kind; ``live`` are the namespace's leases that have not run out."""

    now_ms: int = 0
    queues: dict[tuple[str, TaskKind], QueueContent] = field(default_factory=dict)
    live: dict[TaskKind, int] = field(default_factory=dict)

    def of(self, queue: str, kind: TaskKind) -> QueueContent:
        return self.queues.setdefault((queue, kind), QueueContent())


async def queue_names(store: Store, namespace: str, kinds: Sequence[TaskKind] = HTTP_KINDS) -> set[str]:
    """Queues of a namespace that have, or lately had, tasks of these kinds."""
    names: set[str] = set()

    async def look(partition: int) -> None:
        key = f"{store.keys.base(partition)}:nq:{encode(namespace)}"
        for member in await store.call("SMEMBERS", key, idempotent=True):
            kind, _, name = member.decode().partition(":")
            if kind in kinds:
                names.add(decode(name))

    await together(look, range(store.keys.partitions))
    return names


async def look_at(
    store: Store,
    namespace: str,
    queues: Iterable[str],
    *,
    kinds: Sequence[TaskKind] = HTTP_KINDS,
    with_leases: bool = False,
) -> Overview:
    """The content of ``queues``, of these kinds. Raises StoreError.

    ``with_leases`` names up to MOST_LEASES leases of each, those that ran out first.
    """
    overview = Overview(live=dict.fromkeys(kinds, 0))
    names = list(queues)
    chunks = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)] or [[]]

    async def look(place: tuple[int, int]) -> None:
        number, partition = place
        chunk = chunks[number]
        reply = await store.run(
            "overview",
            [store.keys.touch(partition)],
            [
                store.keys.base(partition),
                encode(namespace),
                msgpack.packb([encode(name) for name in chunk], use_bin_type=False),
                "".join(kinds),
                MOST_LEASES if with_leases else 0,
                REDISPATCH_AFTER_SECONDS * 1000,
                "all" if number == 0 else "",
            ],
            idempotent=True,
        )
        now, live, rows = reply
        overview.now_ms = max(overview.now_ms, int(now))
        for kind, leases in zip(kinds, live, strict=True):
            overview.live[kind] += leases
        for row in rows:
            _merge(overview.of(chunk[row[1]], TaskKind(row[0].decode())), row)

    for first in range(0, len(chunks), CHUNKS_AT_ONCE):
        numbers = range(first, min(first + CHUNKS_AT_ONCE, len(chunks)))
        await together(look, product(numbers, range(store.keys.partitions)))
    for content in overview.queues.values():
        expired = overview.now_ms
        content.leases.sort(key=lambda lease: (lease.expires_at_ms > expired, lease.task_id))
        del content.leases[MOST_LEASES:]
    return overview


def _merge(content: QueueContent, row: Sequence[Any]) -> None:
    _, _, ready, oldest, task, workflow, leased, expired, expiry, overdue, added, handed_out, leases = row
    content.ready += ready
    content.leased += leased
    content.expired += expired
    content.overdue += overdue
    content.added += added
    content.handed_out += handed_out
    if oldest and (content.oldest is None or int(oldest) < content.oldest.ready_at_ms):
        content.oldest = ReadyTask(task.decode(), workflow.decode(), int(oldest))
    if expiry:
        first = int(float(expiry))
        content.oldest_expiry_ms = min(first, content.oldest_expiry_ms or first)
    for i in range(0, len(leases), 6):
        task_id, owner, attempt, delivery, expires, workflow_id = leases[i : i + 6]
        content.leases.append(
            LeaseRow(
                task_id=task_id.decode(),
                owner=owner.decode(),
                attempt=int(attempt),
                delivery=int(delivery),
                expires_at_ms=int(expires),
                workflow_id=workflow_id.decode(),
            )
        )
