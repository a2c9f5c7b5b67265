"""The heads that a node's free slots may be served from, and what it remembers of each (W3, W5)."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from cluster.queues.partition_heads import PartitionHeads
from cluster.store.keys import QueueName


@dataclass(slots=True, eq=False)
class Watch(PartitionHeads):
    """One set of heads over all partitions.

    ``users`` counts the slot groups that want it; it stays subscribed for a while after the last one.
    """

    queue: QueueName
    users: int = 0
    idle_since: float = 0.0
    subscribed: bool = False

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
