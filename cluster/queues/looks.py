"""How a node with slots learns which work there is without taking any (W6), and which there is no more.

A node hears of work that appears, not of work that another node takes. One whose slots are busy claims
nothing, so its memory fills with work that is long gone, and what is remembered to be older than
``matching.syncMatchWait`` keeps steps from following into the slots they free (R32). Left alone until the
next peek, such doubts spread: the steps go to the queue, all nodes hear of them, one takes them, and the
others doubt. So the first commit that meets doubts has them settled for those that come after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from cluster.errors import StoreError
from cluster.queues import claims
from cluster.queues.claims import Heads, PeekReply
from cluster.queues.heads import Counts, Mark
from cluster.queues.slot_claims import StepClaims
from cluster.queues.watches import Watch
from cluster.store.keys import QueueName
from cluster.store.store import Store

log = structlog.get_logger(__name__)

PEEK_QUEUES: Final = 64
"""Most queues of one look."""


@dataclass(slots=True)
class Looks:
    """Looks into the store for what ``watches`` remember; ``pause`` (s) lies between two looks at doubts."""

    store: Store
    watches: Mapping[QueueName, Watch]
    counts: Counts
    pause: float
    _settled_at: float = field(default=float("-inf"))

    def learn(self, reply: StepClaims | PeekReply, mark: Mark) -> None:
        """Take over the heads that a reply names; ``mark`` is from when its request was sent."""
        for heads in reply.heads:
            watch = self.watches.get(heads.queue)
            if watch is not None:
                watch.learn(heads.partition, mark, heads.ready_ms, complete=heads.complete)

    async def look(self, queues: Sequence[QueueName], partitions: Collection[int] | None = None) -> None:
        """Learn what there is of ``queues``, in all partitions unless some are named. Raises StoreError."""
        every = list(range(self.store.keys.partitions) if partitions is None else partitions)
        parts = [[partition] for partition in every] if self.store.clustered else [every]
        for start in range(0, len(queues), PEEK_QUEUES):
            for part in parts:
                await self._look_at(queues[start : start + PEEK_QUEUES], part)

    def settle(self, doubts: Collection[tuple[int, QueueName]], nursery: trio.Nursery) -> None:
        """Begin to look whether there is still work where there may be none any more."""
        now = trio.current_time()
        if now < self._settled_at + self.pause:
            return
        self._settled_at = now
        queues = list(dict.fromkeys(queue for _, queue in doubts))[:PEEK_QUEUES]
        nursery.start_soon(self._settle, queues, {partition for partition, _ in doubts})

    async def _settle(self, queues: Sequence[QueueName], partitions: Collection[int]) -> None:
        try:
            await self.look(queues, partitions)
        except StoreError as error:
            log.debug("doubts_not_settled", reason=error.reason)

    async def _look_at(self, queues: Sequence[QueueName], partitions: list[int]) -> None:
        mark = self.counts.mark()
        reply = await claims.peek(self.store, partitions, queues)
        self.learn(reply, mark)
        found: dict[QueueName, dict[int, Heads]] = {}
        for heads in reply.heads:
            found.setdefault(heads.queue, {})[heads.partition] = heads
        for queue in queues:
            watch = self.watches.get(queue)
            if watch is not None:
                watch.learn_rest(mark, partitions, found.get(queue, {}))
