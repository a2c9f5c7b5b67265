"""Flows without nodes: one store, used by engines as nodes use it, and workers made by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson
from msgspec import Raw

from cluster.admission.gate import Permit
from cluster.clock import Clock
from cluster.flows.engine import FlowEngine, FlowStarted, ResultKind, StartFlow, StepResult, Verdict
from cluster.flows.limits import FlowLimits
from cluster.flows.wire import Publication, read_options
from cluster.ids import TaskKind
from cluster.queues.claims import NEWEST
from cluster.queues.slot_claims import SlotGroup, StepClaim, Want, claim_steps
from cluster.store.keys import QueueName
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from tests.store_time import store_ms

NAMESPACE = "ns"
FLOW_TYPE = "shop"
SESSION = "node~1"

DEAD_END: dict[str, Any] = {"decision": {"dead_end": True}}


def go_to(*steps: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """An execute output that leads to ``steps``."""
    following = [{"step_type": step} if isinstance(step, str) else step for step in steps]
    return {"decision": {"next": following}, **more}


def complete(value: Any = None) -> dict[str, Any]:
    return {"decision": {"complete": value}}


def wait_for(mode: str = "all", *items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"conditions": {"mode": mode, "items": list(items)}, **more}


@dataclass
class HandOut:
    """A step in a worker's hands."""

    claim: StepClaim
    worker: str
    body: dict[str, Any]

    @property
    def step(self) -> str:
        name: str = self.body["step_execution_id"]
        return name

    def result(self, kind: ResultKind = ResultKind.COMPLETED, **fields: Any) -> StepResult:
        """How the worker's node reports its end."""
        return StepResult(
            **{
                "task_id": self.claim.task_id,
                "attempt": self.claim.attempt,
                "delivery": self.claim.delivery,
                "method": self.body["method"],
                "worker_id": self.worker,
                "session": SESSION,
                "kind": kind,
                **fields,
            }
        )


@dataclass
class Lab:
    """Engines of several nodes over one store."""

    store: Store
    random: Random = field(default_factory=lambda: Random(1))
    limits: FlowLimits = field(default_factory=FlowLimits)
    namespace: str = NAMESPACE

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.engine = self.new_engine()

    def new_engine(self) -> FlowEngine:
        """The engine of another node, which remembers nothing."""
        return FlowEngine(self.store, self.clock, self.random, limits=self.limits)

    async def start(self, step: str = "first", flow_id: str = "f1", **fields: Any) -> FlowStarted:
        if isinstance(fields.get("options"), dict):
            fields["options"] = read_options(fields["options"])
        return await self.engine.start(
            StartFlow(
                namespace=self.namespace, flow_type=FLOW_TYPE, start_step=step, flow_id=flow_id, **fields
            )
        )

    async def take(self, *types: str, worker: str = "w1", most: int = 1) -> list[HandOut]:
        """Hand out ready steps to a worker, of any of the types."""
        queue = QueueName(TaskKind.STEP, self.namespace, FLOW_TYPE)
        sticky = QueueName("t", self.namespace, worker)
        only = frozenset(types) or None
        group = SlotGroup(worker, most, (Want(queue, only), Want(sticky)))
        permit = Permit(self.namespace, TaskKind.STEP, FLOW_TYPE, NEWEST, free=True)
        everywhere = list(range(self.store.keys.partitions))
        taken: list[HandOut] = []
        for partitions in [[p] for p in everywhere] if self.store.clustered else [everywhere]:
            reply = await claim_steps(
                self.store, SESSION, partitions, [group], most - len(taken), {queue: permit}
            )
            taken += [HandOut(claim, worker, orjson.loads(claim.body)) for claim in reply.claims]
        return taken

    async def take_one(self, *types: str, worker: str = "w1") -> HandOut:
        (taken,) = await self.take(*types, worker=worker)
        return taken

    async def finish(self, hand_out: HandOut, output: Any = None, **fields: Any) -> Verdict:
        (verdict,) = await self.engine.finish([hand_out.result(output=output, **fields)])
        return verdict

    async def fail(self, hand_out: HandOut, message: str = "no", **failure: Any) -> Verdict:
        return await self.finish(
            hand_out, kind=ResultKind.FAILED, failure={"message": message, "type": "Sorry", **failure}
        )

    async def do(self, output: Any, *types: str, worker: str = "w1") -> HandOut:
        """Hand out one step and end it with ``output``."""
        taken = await self.take_one(*types, worker=worker)
        verdict = await self.finish(taken, output)
        assert verdict.accepted, verdict
        return taken

    async def publish(self, channel: str, value: Any, flow_id: str = "f1", **fields: Any) -> bool:
        message = Publication(channel, Raw(orjson.dumps(value)))
        return await self.engine.publish(self.namespace, flow_id, message, **fields)

    async def status(self, flow_id: str = "f1") -> str:
        return (await self.engine.read(self.namespace, flow_id)).state.status.value

    async def timers(self) -> dict[str, int]:
        """All timers by name."""
        found: dict[str, int] = {}
        for partition in range(self.store.keys.partitions):
            flat = await self.store.call("ZRANGE", self.store.keys.timers(partition), 0, -1, "WITHSCORES")
            found |= {flat[i].decode(): int(float(flat[i + 1])) for i in range(0, len(flat), 2)}
        return found

    async def skip_to(self, name: str, *, engine: FlowEngine | None = None) -> None:
        """Let the timer ``name`` of a flow come due now, as if its time had passed, and fire it.

        What is due by the stored state is judged by the engine's clock, which is set forward.
        """
        (timer,) = [timer for timer in await self.timers() if timer.split(" ")[2] == name]
        due_ms = (await self.timers())[timer]
        partition = await self._partition_of(timer)
        now_ms = await store_ms(self.store)
        await self.store.call("ZADD", self.store.keys.timers(partition), min(due_ms, now_ms), timer)
        await self._at(due_ms, lambda: (engine or self.engine).timer_due(timer, min(due_ms, now_ms)))

    async def _at(self, now_ms: int, act: Callable[[], Awaitable[None]]) -> None:
        real = self.clock.now_ms
        self.clock.now_ms = lambda: max(now_ms, real())  # type: ignore[method-assign]
        try:
            await act()
        finally:
            del self.clock.now_ms

    async def _partition_of(self, timer: str) -> int:
        for partition in range(self.store.keys.partitions):
            if await self.store.call("ZSCORE", self.store.keys.timers(partition), timer) is not None:
                return partition
        raise AssertionError(timer)

    async def work_off(self) -> None:
        """Do the chunked work of all partitions."""
        keys = self.store.keys
        for partition in range(keys.partitions):
            while (item := await self.store.call("LPOP", keys.work(partition))) is not None:
                tx = Transaction(partition, frees=True)
                for task_id in orjson.loads(item)["drop"]:
                    tx.drop(task_id)
                await self.store.commit(tx)

    async def remains(self) -> set[str]:
        """Families of the keys that are left."""
        keys = self.store.keys
        found = await self.store.call("KEYS", f"{keys.prefix}:*")
        return {keys.parse(key.decode())[1] for key in found}
