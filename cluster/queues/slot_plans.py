"""Chooses what one claim asks for: groups with free slots, and the partitions with the oldest work (W7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from cluster.queues.slot_claims import SlotGroup, Want
from cluster.queues.slot_groups import Group, SlotGroups
from cluster.queues.stream_workers import StreamWorker
from cluster.queues.watches import Watch
from cluster.store.keys import QueueName, encode

MOST_TASKS: Final = 64
MOST_GROUPS: Final = 16
MOST_WANTS: Final = 128
"""Bounds of one claim."""
BLOCKED_SECONDS: Final = 1.0
"""How long a worker is not asked again about a type whose tasks leave it out (R92)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``asked[i]`` is of ``groups[i]``; ``partitions`` are those to look into, oldest work first."""

    groups: list[Group]
    asked: list[SlotGroup]
    partitions: list[int]

    @property
    def step_queues(self) -> list[QueueName]:
        """The flow types that may be taken from."""
        return [queue for group in self.groups for queue in group.step_queues]


@dataclass(slots=True)
class Planner:
    """Plans from what the node remembers of heads (``watches``)."""

    groups: SlotGroups
    watches: Mapping[QueueName, Watch]
    random: Random
    clustered: bool
    """One script may look into one partition only."""
    _blocked: dict[tuple[str, int, QueueName], dict[str, float]] = field(default_factory=dict)

    def choose(self, now: float, refused: frozenset[QueueName]) -> Plan | None:
        """The next claim at ``now`` (trio's clock), if anybody may be served; nothing ``refused``."""
        found: list[tuple[int, Group, tuple[Want, ...]]] = []
        scores: dict[int, int] = {}
        for group in self.groups:
            if not group.shared or group.worker.rests_until > now:
                continue
            best, wants = self._possible(group, refused, scores, now)
            if wants:
                found.append((best, group, wants))
        if not found:
            return None
        self.random.shuffle(found)
        found.sort(key=lambda row: row[0])
        plan = Plan([], [], self._partitions(scores))
        room, wanted = MOST_TASKS, 0
        for _, group, wants in found[:MOST_GROUPS]:
            if room <= 0 or (plan.groups and wanted + len(wants) > MOST_WANTS):
                break
            slots = min(len(group.shared), room)
            room, wanted = room - slots, wanted + len(wants)
            plan.groups.append(group)
            plan.asked.append(SlotGroup(group.worker.worker_id, slots, wants))
        return plan

    def demand(self, plan: Plan) -> dict[QueueName, int]:
        """For how many free slots each flow type may have work."""
        wanted: dict[QueueName, int] = {}
        for group, asked in zip(plan.groups, plan.asked, strict=True):
            by_queue = {want.queue: want for want in asked.wants}
            sticky = self.watches[group.sticky_queue]
            for queue in group.step_queues:
                want = by_queue.get(queue)
                useful = want is not None and any(self.watches[queue].oldest(want.only, want.never))
                if useful or any(sticky.oldest({encode(queue.queue)}, frozenset())):
                    wanted[queue] = wanted.get(queue, 0) + asked.slots
        return wanted

    def is_unsure(self, plan: Plan) -> bool:
        """Whether it is not known if there is work for some of the plan's slots."""
        return any(
            ready_ms == 0
            for asked in plan.asked
            for want in asked.wants
            for _, ready_ms in self.watches[want.queue].oldest(want.only, want.never)
        )

    def doubts(self, group: Group, since_ms: int) -> list[tuple[int, QueueName]]:
        """Where something that a slot of the group could take may have waited since then, or is gone."""
        return [
            (partition, want.queue)
            for want in group.wants()
            for partition, ready_ms in self.watches[want.queue].oldest(want.only, want.never)
            if ready_ms <= since_ms
        ]

    def block(
        self, worker: StreamWorker, partition: int, queue: QueueName, type_part: str, now: float
    ) -> None:
        """A search found only tasks that leave the worker out: do not ask again at once."""
        place = (worker.key, partition, queue)
        self._blocked.setdefault(place, {})[type_part] = now + BLOCKED_SECONDS

    def forget_blocked(self, now: float) -> None:
        """Drop what is over."""
        self._blocked = {
            place: kept
            for place, types in self._blocked.items()
            if (kept := {name: until for name, until in types.items() if until > now})
        }

    def _possible(
        self, group: Group, refused: frozenset[QueueName], scores: dict[int, int], now: float
    ) -> tuple[int, tuple[Want, ...]]:
        best: int | None = None
        wants: list[Want] = []
        for want in group.wants(refused):
            useful = False
            watch = self.watches[want.queue]
            for partition, ready_ms in watch.oldest(want.only, want.never):
                blocked = self._blocked_types(group.worker, partition, want.queue, now)
                if blocked and not any(
                    p == partition for p, _ in watch.oldest(want.only, want.never | blocked)
                ):
                    continue
                useful = True
                best = ready_ms if best is None else min(best, ready_ms)
                scores[partition] = min(ready_ms, scores.get(partition, ready_ms))
            if useful:
                wants.append(want)
        return best or 0, tuple(wants)

    def _blocked_types(
        self, worker: StreamWorker, partition: int, queue: QueueName, now: float
    ) -> frozenset[str]:
        types = self._blocked.get((worker.key, partition, queue)) if self._blocked else None
        if not types:
            return frozenset()
        return frozenset(name for name, until in types.items() if until > now)

    def _partitions(self, scores: dict[int, int]) -> list[int]:
        partitions = list(scores)
        self.random.shuffle(partitions)
        partitions.sort(key=lambda partition: scores[partition])
        return partitions[:1] if self.clustered else partitions
