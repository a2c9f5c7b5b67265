"""Workers of the stream plane as one node sees them: what they serve, and what they declined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.store.keys import encode


class NameKind(StrEnum):
    """What an unsupported name is the name of."""

    STEP = "s"
    RPC = "r"


@dataclass(frozen=True, slots=True)
class FlowSkill:
    """A flow type a worker serves. ``None``: it did not say which names it has."""

    flow_type: str
    step_types: frozenset[str] | None = None
    rpc_names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Skills:
    """Everything one registration declares."""

    flows: tuple[FlowSkill, ...]

    def of(self, flow_type: str) -> FlowSkill | None:
        for skill in self.flows:
            if skill.flow_type == flow_type:
                return skill
        return None


def item(kind: NameKind, flow_type: str, name: str) -> str:
    """How the memory of declines writes a name."""
    return f"{kind}:{encode(flow_type)}:{encode(name)}"


@dataclass(slots=True, eq=False)
class StreamWorker:
    """One worker id on this node. ``streams`` and ``shared`` count its open slots here, all and those for
    steps by what they were registered with.

    ``declined`` are items of the shared memory; ``held_back`` ones that were evicted from it and are
    offered again only after the worker completed a step (R45).
    """

    namespace: str
    worker_id: str
    streams: int = 0
    shared: Counter[Skills] = field(default_factory=Counter)
    declined: set[str] = field(default_factory=set)
    held_back: set[str] = field(default_factory=set)
    rests_until: float = 0.0
    """It said that it has no capacity for steps; until then (trio time) it gets none."""

    @property
    def key(self) -> str:
        """``<namespace>:<worker>``, encoded."""
        return f"{encode(self.namespace)}:{encode(self.worker_id)}"

    def lacks(self, kind: NameKind, flow_type: str, name: str) -> bool:
        """Whether the worker is known not to support a name."""
        if not self.declined and not self.held_back:
            return False
        wanted = item(kind, flow_type, name)
        return wanted in self.declined or wanted in self.held_back

    def supports(self, skills: Skills, kind: NameKind, flow_type: str, name: str) -> bool:
        """Whether a slot that was registered with ``skills`` can run a name, as far as known."""
        skill = skills.of(flow_type)
        if skill is None or self.lacks(kind, flow_type, name):
            return False
        names = skill.step_types if kind is NameKind.STEP else skill.rpc_names
        return names is None or name in names

    def lacking(self, kind: NameKind, flow_type: str) -> frozenset[str]:
        """Encoded names of a flow type that the worker is known not to support."""
        if not self.declined and not self.held_back:
            return frozenset()
        start = f"{kind}:{encode(flow_type)}:"
        known: Iterable[str] = self.declined | self.held_back
        return frozenset(name.removeprefix(start) for name in known if name.startswith(start))
