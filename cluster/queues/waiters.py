"""Parked polls, and what a node knows of the queue they wait on."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from cluster.errors import StoreError
from cluster.ids import TaskKind
from cluster.queues.claims import Claim
from cluster.queues.partition_heads import PartitionHeads
from cluster.store.keys import QueueName, encode


@dataclass(frozen=True, slots=True)
class QueueId:
    """What a poll waits on; its markers are separate queues below."""

    kind: TaskKind
    namespace: str
    queue: str

    def marked(self, marker: str) -> QueueName:
        return QueueName(self.kind, self.namespace, self.queue, marker)


@dataclass(slots=True, eq=False)
class Waiter:
    """One parked poll.

    ``note_ms`` is for how long it must still be noted that it was sent (0: that is done, or nobody can send
    it again). ``repeated`` says that it was sent before, so its token may hold a task already, for which
    nobody has looked yet. While it is ``apart`` it is asked for on its own. ``trouble`` is why it could
    not be asked for last.
    """

    queue: QueueId
    owner: str
    token: str
    types: frozenset[str]
    markers: tuple[str, ...]
    page_size: int
    registration: str = ""
    note_ms: int = 0
    repeated: bool = False
    apart: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    claim: Claim | None = None
    trouble: StoreError | None = None
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.parts = tuple(encode(name) for name in self.types)


@dataclass(slots=True)
class WaitingQueue:
    """What a node knows of one queue while polls wait on it."""

    waiters: dict[Waiter, None] = field(default_factory=dict)
    unnoted: set[Waiter] = field(default_factory=set)
    """Those that the next claim notes as sent, if it is for them."""
    heads: dict[str, PartitionHeads] = field(default_factory=dict)
    """What is known behind each marker."""
    subscribed: set[str] = field(default_factory=set)
    subscribing: trio.Lock = field(default_factory=trio.Lock)
    serving: bool = False
    refused: bool = False
    """Its limits are used up: it sleeps until there may be room."""
    alarm: bool = False
    """A task waits for the end of the minute."""
    rooms: int = 0
    """How often there was word of room; a refusal asked for earlier than the last is void."""
    idle_since: float = 0.0


def poll_markers(build_id: str) -> tuple[str, ...]:
    """Markers a worker of ``build_id`` ("" for unversioned) may take tasks of (4.3)."""
    return ("", build_id) if build_id else ("",)
