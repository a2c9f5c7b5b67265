"""What a node remembers of one set of heads in all partitions (W3).

Where nothing waits, which is nearly everywhere nearly always, neither a look nor a reply costs anything
by partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cluster.queues.heads import Counts, HeadMemory, Mark


@dataclass(slots=True, eq=False)
class PartitionHeads:
    """``live`` are the partitions that may have work; for all others the memory says "none"."""

    partitions: int
    counts: Counts = field(default_factory=Counts, kw_only=True)
    live: set[int] = field(init=False)
    memories: dict[int, HeadMemory] = field(init=False)

    def __post_init__(self) -> None:
        self.memories = {partition: HeadMemory(self.counts) for partition in range(self.partitions)}
        # A reply to a question from before this memory may be older than the subscription.
        self.forget()

    def wake(self, partition: int, type_part: str, ready_ms: int) -> None:
        """A head appeared or got older work."""
        self.memories[partition].wake(type_part, ready_ms)
        self.live.add(partition)

    def forget(self) -> None:
        """Anything may have been missed."""
        for memory in self.memories.values():
            memory.forget()
        self.live = set(self.memories)

    def learn(self, partition: int, mark: Mark, heads: Mapping[str, int | None], *, complete: bool) -> None:
        """Take over what a reply says of a partition; see :meth:`HeadMemory.learn`."""
        self.memories[partition].learn(mark, heads, complete=complete)
        if self.memories[partition].oldest(()) is None:
            self.live.discard(partition)
        else:
            self.live.add(partition)

    def learn_rest(self, mark: Mark, looked_at: Iterable[int], found: Mapping[int, object]) -> None:
        """Take over that of the partitions ``looked_at`` all but those ``found`` have no work."""
        if self.live:
            for partition in self.live.intersection(looked_at).difference(found):
                self.learn(partition, mark, {}, complete=True)

    def ready(self, types: tuple[str, ...]) -> Iterator[tuple[int, int]]:
        """(partition, oldest ready time) wherever one of ``types`` (none given: any) may have work."""
        for partition in self.live:
            ready_ms = self.memories[partition].oldest(types)
            if ready_ms is not None:
                yield partition, ready_ms
