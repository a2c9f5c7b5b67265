"""The heads that a node's free slots may be served from, and what it remembers of each (W3, W5)."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from cluster.queues.heads import HeadMemory
from cluster.store.keys import QueueName


@dataclass(slots=True, eq=False)
class Watch:
    """One set of heads over all partitions.

    ``live`` are the partitions that may have work; for all others the memory says "none". ``users``
    counts the slot groups that want it; it stays subscribed for a while after the last one.
    """

    queue: QueueName
    partitions: int
    users: int = 0
    idle_since: float = 0.0
    subscribed: bool = False
    live: set[int] = field(default_factory=set)
    memories: dict[int, HeadMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memories = {partition: HeadMemory() for partition in range(self.partitions)}
        self.live = set(self.memories)

    def wake(self, partition: int, type_part: str, ready_ms: int) -> None:
        """A head appeared or got older work."""
        self.memories[partition].wake(type_part, ready_ms)
        self.live.add(partition)

    def forget(self) -> None:
        """Anything may have been missed."""
        for memory in self.memories.values():
            memory.forget()
        self.live = set(self.memories)

    def learnt(self, partition: int) -> None:
        """The partition's memory took in a reply."""
        if self.memories[partition].oldest(()) is None:
            self.live.discard(partition)
        else:
            self.live.add(partition)

    def oldest(self, only: Set[str] | None, never: Set[str]) -> Iterator[tuple[int, int]]:
        """(partition, oldest ready time) wherever a type that is allowed may have work."""
        for partition in self.live:
            memory = self.memories[partition]
            if only is None:
                ready_ms = memory.oldest_but(never)
            else:
                allowed = only - never
                ready_ms = memory.oldest(allowed) if allowed else None
            if ready_ms is not None:
                yield partition, ready_ms

    def has_older(self, type_part: str, than_ms: int) -> bool:
        """Whether work of a type is known that is older than a time, in any partition."""
        for partition in self.live:
            ready_ms = self.memories[partition].known.get(type_part)
            if ready_ms is not None and ready_ms <= than_ms:
                return True
        return False
