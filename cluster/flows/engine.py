"""The flow engine of a node: everything that reads or changes flows.

Every decision is made by the pure state machine (``machine``) and stored by one conditional commit;
see ``deciding`` for the loop.
"""

from __future__ import annotations

from random import Random

from cluster.clock import Clock
from cluster.flows.ends import FlowEnds
from cluster.flows.finishing import Finishing, HeartbeatVerdict, ResultKind, StepResult, Verdict
from cluster.flows.limits import FlowLimits
from cluster.flows.planning import Placement
from cluster.flows.rpcs import RpcAnswer, RpcBroker, Rpcs, RpcTask
from cluster.flows.starts import FlowStarted, IdReuse, StartFlow, Starts
from cluster.store.store import Store

__all__ = [
    "FlowEngine",
    "FlowStarted",
    "HeartbeatVerdict",
    "IdReuse",
    "ResultKind",
    "RpcAnswer",
    "RpcBroker",
    "RpcTask",
    "StartFlow",
    "StepResult",
    "Verdict",
]


class FlowEngine(Starts, Finishing, Rpcs):
    """Runs flows over a store. One per node; stateless but for its memory."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Random,
        *,
        limits: FlowLimits | None = None,
        placement: Placement | None = None,
    ) -> None:
        super().__init__(store, clock, random, limits=limits, placement=placement)
        self._ends = FlowEnds(store)

    @property
    def waits(self) -> int:
        """How many clients wait at this node for a flow to end."""
        return self._ends.listeners

    def close(self) -> None:
        """End all waits: this node is leaving."""
        self._ends.close()
