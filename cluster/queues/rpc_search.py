"""One RPC looking for a slot: what it may take, and where its search stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from cluster.queues.rpc_messages import Refusal
from cluster.queues.rpc_run import RpcEnd, RpcRun
from cluster.queues.slot_groups import Given, Slot
from cluster.queues.stream_workers import NameKind, Skills, StreamWorker


@dataclass(slots=True)
class RpcNeed:
    """Which slots an RPC can use. Until ``prefer_until`` (trio time) only worker ``prefer``'s."""

    namespace: str
    flow_type: str
    name: str
    excluded: set[str] = field(default_factory=set)
    prefer: str = ""
    prefer_until: float = 0.0

    def serves(self, worker: StreamWorker, skills: Skills) -> bool:
        """Whether a worker serves the flow type at all."""
        return worker.namespace == self.namespace and skills.of(self.flow_type) is not None

    def fits(self, worker: StreamWorker, skills: Skills) -> bool:
        """Whether the worker may know the RPC and is not left out."""
        skill = skills.of(self.flow_type) if worker.namespace == self.namespace else None
        if skill is None or worker.worker_id in self.excluded:
            return False
        if skill.rpc_names is not None and self.name not in skill.rpc_names:
            return False
        return not worker.lacks(NameKind.RPC, self.flow_type, self.name)

    def wants(self, slot: Slot) -> bool:
        """Whether a slot may be used at this moment."""
        preferred = slot.worker.worker_id == self.prefer or trio.current_time() >= self.prefer_until
        return preferred and self.fits(slot.worker, slot.skills)


@dataclass(slots=True, eq=False)
class Search:
    """An RPC of this node. It runs on a slot here, or on one that another node granted.

    ``end`` is set when the last run ended; ``changed`` whenever anything happened.
    """

    need: RpcNeed
    rpc_id: str
    body: bytes
    changed: trio.Event = field(default_factory=trio.Event)
    running: bool = False
    worker_id: str = ""
    end: RpcEnd | None = None
    payload: bytes | None = None
    granted_to: str = ""
    outstanding: dict[str, float] = field(default_factory=dict)
    """Nodes asked that have not answered, and when that counts as silence."""
    answers: dict[str, Refusal] = field(default_factory=dict)

    def offer(self, slot: Slot) -> bool:
        """Run on a slot of this node, if that fits."""
        if self.running or self.granted_to or not self.need.wants(slot):
            return False
        run = RpcRun(self.rpc_id, self.need.flow_type, self.need.name, self.body, self.ended)
        self.worker_id = slot.worker.worker_id
        # Before it is given: it may end at once.
        self.running = True
        if slot.give_rpc(run) is not Given.TAKEN:
            self.running = False
            return False
        self.ring()
        return True

    def ended(self, end: RpcEnd, payload: bytes | None) -> None:
        """The run is over."""
        self.running = False
        self.granted_to = ""
        self.end, self.payload = end, payload
        self.ring()

    def ring(self) -> None:
        self.changed.set()


@dataclass(slots=True, eq=False)
class Reservation:
    """A slot of this node for an RPC of another one, or the wish for one."""

    need: RpcNeed
    call: str
    origin: str
    until: float
    taken: Callable[[Reservation], None]
    slot: Slot | None = None

    def offer(self, slot: Slot) -> bool:
        """Keep a slot for the origin, if that fits."""
        if self.slot is not None or trio.current_time() >= self.until or not self.need.wants(slot):
            return False
        self.slot = slot
        self.taken(self)
        return True
