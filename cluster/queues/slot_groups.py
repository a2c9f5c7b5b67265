"""The slots of a node, in groups that may take the same: which are free, and what they could be served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol

from cluster.ids import TaskKind
from cluster.queues.hand_outs import HandedOut
from cluster.queues.rpc_run import RpcRun
from cluster.queues.slot_claims import Want
from cluster.queues.slot_kind import SlotKind
from cluster.queues.stream_workers import NameKind, Skills, StreamWorker
from cluster.queues.watches import Watch
from cluster.store.keys import QueueName, encode

STICKY: Final = "t"
"""Kind of the lists of steps that wait for one worker; the types in them are flow types."""
MOST_ASKED: Final = 16
"""Groups that are asked for a free slot for one step; where so many are busy it may as well be queued."""


class Given(StrEnum):
    """What became of a task that was given to a slot."""

    TAKEN = "taken"
    GONE = "gone"
    """The slot cannot take anything any more."""
    UNFIT = "unfit"
    """The slot stays free: its worker has no such step type or RPC."""


@dataclass(slots=True, eq=False)
class Slot:
    """One registered slot stream, and how to start a step or an RPC on it."""

    worker: StreamWorker
    skills: Skills
    kind: SlotKind
    give: Callable[[HandedOut], Given]
    give_rpc: Callable[[RpcRun], Given]
    group: Group | None = None
    """None: not registered, or over."""


class WaitingRpc(Protocol):
    """An RPC that looks for a slot. ``offer`` says whether it took the slot."""

    def offer(self, slot: Slot) -> bool: ...


class Group:
    """Equal slots of one worker: the free ones by kind, and how many are registered: ``size`` in all,
    ``shared_size`` for steps.
    """

    def __init__(self, worker: StreamWorker, skills: Skills) -> None:
        self.worker = worker
        self.skills = skills
        self.size = self.shared_size = 0
        self.shared: dict[Slot, None] = {}
        self.rpc_only: dict[Slot, None] = {}
        own = [QueueName(TaskKind.STEP, worker.namespace, skill.flow_type) for skill in skills.flows]
        self.step_queues = tuple(own)
        """A flow type is a queue; these are the ones the slots serve."""
        self.sticky_queue = QueueName(STICKY, worker.namespace, worker.worker_id)
        self.watches: tuple[Watch, ...] = ()
        """What the node knows of these queues, while the group has slots."""
        self._everything = self._wants(frozenset())

    def free(self, kind: SlotKind) -> dict[Slot, None]:
        return self.shared if kind is SlotKind.STEP_AND_RPC else self.rpc_only

    def wants(self, refused: frozenset[QueueName] = frozenset()) -> tuple[Want, ...]:
        """What a slot may take, but for flow types that are ``refused``."""
        if refused or self.worker.declined or self.worker.held_back:
            return self._wants(refused)
        return self._everything

    def _wants(self, refused: frozenset[QueueName]) -> tuple[Want, ...]:
        open_queues = [queue for queue in self.step_queues if queue not in refused]
        if not open_queues:
            return ()
        wants = [Want(self.sticky_queue, frozenset(encode(queue.queue) for queue in open_queues))]
        for queue, skill in zip(self.step_queues, self.skills.flows, strict=True):
            if queue in refused:
                continue
            never = self.worker.lacking(NameKind.STEP, skill.flow_type)
            only = None
            if skill.step_types is not None:
                only = frozenset(encode(name) for name in skill.step_types) - never
                never = frozenset()
                if not only:
                    continue
            wants.append(Want(queue, only, never))
        return tuple(wants)


@dataclass(slots=True)
class SlotGroups:
    """All groups of a node."""

    _groups: dict[tuple[StreamWorker, Skills], Group] = field(default_factory=dict)
    _serving: dict[QueueName, dict[Group, None]] = field(default_factory=dict)
    """Those that serve a flow type, whoever was asked last at the end."""

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, slot: Slot) -> bool:
        """Take in a slot, which is not free yet; whether its group is new."""
        key = (slot.worker, slot.skills)
        group = self._groups.get(key)
        new = group is None
        if group is None:
            group = self._groups[key] = Group(*key)
            for queue in group.step_queues:
                self._serving.setdefault(queue, {})[group] = None
        group.size += 1
        group.shared_size += slot.kind is SlotKind.STEP_AND_RPC
        slot.group = group
        return new

    def remove(self, slot: Slot) -> Group | None:
        """A slot is over; its group if that is over, too."""
        group, slot.group = slot.group, None
        if group is None:
            return None
        group.free(slot.kind).pop(slot, None)
        group.size -= 1
        group.shared_size -= slot.kind is SlotKind.STEP_AND_RPC
        if group.size:
            return None
        del self._groups[group.worker, group.skills]
        for queue in group.step_queues:
            del self._serving[queue][group]
            if not self._serving[queue]:
                del self._serving[queue]
        return group

    def free_for(self, queue: QueueName, step_type: str, now: float) -> Slot | None:
        """A free slot that can run a step of the flow type, at ``now`` (trio's clock); groups take turns."""
        serving = self._serving.get(queue, {})
        for group in list(islice(serving, MOST_ASKED)):
            del serving[group]
            serving[group] = None
            if not group.shared or group.worker.rests_until > now:
                continue
            if group.worker.supports(group.skills, NameKind.STEP, queue.queue, step_type):
                return next(iter(group.shared))
        return None
