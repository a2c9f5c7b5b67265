"""Three nodes behind HAProxy, worker processes, clients, and everything that befalls them, recorded.

The same seed gives the same faults at the same times; what the processes make of them differs.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import trio

from nodes.cli.processes import Child
from tests.chaos.streams_checker import Ended, Findings
from tests.chaos.streams_events import EventLog, read_events
from tests.chaos.streams_worker import COUNTER_STEP, RETRY, WAITS
from tests.cluster_processes import Cluster, environment, kill, worker_ready

WORKERS: Final = 4
FLOW_TYPE: Final = "recorded"
STEPS_OF_A_FLOW: Final = 4
STOPPED: Final = 0.1
"""Share of the flows that a client stops."""
CALL_EVERY: Final = 0.3
HEADERS: Final = {"x-durable-workflow-control-plane-version": "2"}


@dataclass(frozen=True)
class Fault:
    """Something that happens ``after`` seconds, counted from the beginning of the fault before it."""

    after: float
    kind: str
    target: int
    seconds: float = 0.0


SHORT: Final = (
    Fault(0.3, "kill_worker", 0),
    Fault(0.3, "kill_node", 0),
    Fault(0.5, "freeze_worker", 1, 3.0),
    Fault(0.5, "freeze_node", 1, 2.0),
    Fault(1.5, "kill_worker", 2),
)


def endless(random: Random) -> Fault:
    """The next fault of a long run."""
    kinds = {"kill_worker": 5, "freeze_worker": 3, "kill_node": 1, "freeze_node": 2, "freeze_node_long": 1}
    (kind,) = random.choices(list(kinds), list(kinds.values()))
    seconds = {"freeze_worker": random.uniform(0.1, 6), "freeze_node": random.uniform(0.1, 4)}
    target = random.randrange(WORKERS if kind.endswith("worker") else 3)
    after = random.uniform(0.5, 3)
    if kind == "freeze_node_long":
        return Fault(after, "freeze_node", target, random.uniform(8, 14))
    return Fault(after, kind, target, seconds.get(kind, 0.0))


@dataclass
class Stage:
    """``cluster`` has three nodes and a balancer, and has started."""

    cluster: Cluster
    seed: int
    workers: dict[int, Child] = field(default_factory=dict)
    lives: int = 0
    flows: dict[str, str] = field(default_factory=dict)
    """Acknowledged flows: flow id to run id."""
    events: list[Path] = field(default_factory=list)
    answered: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.log = EventLog(self._events("test"), "test")

    def _events(self, who: str) -> Path:
        path = self.cluster.directory / f"{who}.events"
        self.events.append(path)
        return path

    # -- workers ----------------------------------------------------------------------------

    async def start_worker(self, number: int) -> None:
        self.lives += 1
        name = f"worker-{number}-{self.lives}"
        arguments = [str(os.getpid()), self.cluster.url, FLOW_TYPE, name, str(self.random.random())[2:]]
        self.workers[number] = Child.start(
            name,
            "tests.chaos.streams_worker",
            [*arguments, str(self._events(name))],
            environ=environment(),
            log=self.cluster.directory / f"{name}.log",
            pipe=True,
        )
        await worker_ready(self.workers[number])

    # -- clients ----------------------------------------------------------------------------

    async def ask(self, request: Callable[[], Awaitable[httpx.Response]], within: float = 90.0) -> Any:
        """The answer of a server, however often it has to be asked."""
        with trio.fail_after(within):
            while True:
                try:
                    answer = await request()
                    # 408: the node stood still for so long that the body seemed slow.
                    if answer.status_code < 500 and answer.status_code != 408:
                        return answer
                except httpx.TransportError:
                    pass
                await trio.sleep(0.05)

    async def start_counter(self, http: httpx.AsyncClient) -> None:
        """Start the flow that RPCs count in."""
        await self._start(http, "counter", start_step=COUNTER_STEP, step_options=WAITS)

    async def start_flow(self, http: httpx.AsyncClient, flow_id: str) -> None:
        """Start a flow, and perhaps stop it."""
        await self._start(http, flow_id, start_step="a", step_options=RETRY)
        if self.random.random() < STOPPED:
            await trio.sleep(self.random.uniform(0, 0.5))
            kind = self.random.choice(["terminate", "cancel", "fail"])
            self.log.write("stopping", flow_id=flow_id, kind=kind)
            answer = await self.ask(lambda: http.post(f"/api/flows/{flow_id}/stop", json={"type": kind}))
            assert answer.status_code in (200, 202, 409), answer.text
            self.log.write("stopped", flow_id=flow_id)

    async def _start(self, http: httpx.AsyncClient, flow_id: str, **fields: Any) -> None:
        body = {
            "flow_type": FLOW_TYPE,
            "flow_id": flow_id,
            "request_id": flow_id,
            "ignore_already_started": True,
            **fields,
        }
        self.log.write("starting", flow_id=flow_id)
        answer = await self.ask(lambda: http.post("/api/flows", json=body))
        assert answer.status_code in (200, 201), answer.text
        self.flows[flow_id] = answer.json()["run_id"]
        self.log.write("started", flow_id=flow_id)

    async def start_flows(self, http: httpx.AsyncClient, number: int, rate: float) -> None:
        """Start flows, about so many a second."""
        limit = trio.CapacityLimiter(16)

        async def one(flow_id: str) -> None:
            async with limit:
                await self.start_flow(http, flow_id)

        async with trio.open_nursery() as nursery:
            for k in range(number):
                nursery.start_soon(one, f"f{k}")
                await trio.sleep(1 / rate)

    async def call_forever(self, http: httpx.AsyncClient) -> None:
        """Count by RPC, every request twice, until cancelled."""
        number = 0
        while True:
            number += 1
            request_id = f"call-{number}"
            body = {"request_id": request_id, "lock_attributes": ["n"], "timeout_seconds": 5}
            self.log.write("calling", request_id=request_id)
            seen = 0
            for _ in range(20):
                try:
                    answer = await http.post("/api/flows/counter/rpc/count", json=body)
                except httpx.TransportError:
                    continue
                if answer.status_code == 200:
                    result = answer.json()["result"]
                    self.log.write("answered", request_id=request_id, result=result)
                    self.answered += 1
                    seen += 1
                    if seen == 2:
                        break
                await trio.sleep(CALL_EVERY)

    # -- faults -----------------------------------------------------------------------------

    async def befall(self, fault: Fault) -> None:
        """Let it happen, and be over."""
        node = self.cluster.nodes[fault.target % len(self.cluster.nodes)]
        target = node.name if fault.kind.endswith("node") else f"worker-{fault.target}"
        self.log.write("fault", kind=fault.kind, target=target, seconds=fault.seconds)
        match fault.kind:
            case "kill_worker":
                kill(self.workers[fault.target])
                await self.start_worker(fault.target)
            case "freeze_worker":
                await self._freeze(self.workers[fault.target].signal, fault.seconds)
            case "kill_node":
                await node.restart()
            case "freeze_node":
                await self._freeze(node.signal, fault.seconds)

    async def _freeze(self, send: Callable[[signal.Signals], None], seconds: float) -> None:
        send(signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            send(signal.SIGCONT)

    async def befall_forever(self) -> None:
        """One after the other, until cancelled."""
        while True:
            fault = endless(self.random)
            await trio.sleep(fault.after)
            await self.befall(fault)

    # -- the end ----------------------------------------------------------------------------

    async def findings(self, http: httpx.AsyncClient, within: float) -> Findings:
        """End the flow that RPCs count in, wait for all others to end, and look."""
        await self.ask(lambda: http.post("/api/flows/counter/stop", json={"type": "terminate"}))
        found: dict[str, Ended] = {}
        limit = trio.CapacityLimiter(8)

        async def look(flow_id: str) -> None:
            async with limit:
                found[flow_id] = await self._ended(http, flow_id, within)

        async with trio.open_nursery() as nursery:
            for flow_id in self.flows:
                nursery.start_soon(look, flow_id)
        counter = (await self.ask(lambda: http.get("/api/flows/counter"))).json()["attributes"].get("n", 0)
        entries = restored = 0.0
        with trio.move_on_after(20):
            while True:
                entries, restored = await self._metrics()
                if not entries:
                    break
                await trio.sleep(0.5)
        return Findings(read_events(self.events), found, entries, restored, counter)

    async def _ended(self, http: httpx.AsyncClient, flow_id: str, within: float) -> Ended:
        body: dict[str, Any] = {}
        with trio.move_on_after(within):
            while not body.get("is_terminal"):
                answer = await self.ask(
                    lambda: http.get(f"/api/flows/{flow_id}/wait", params={"timeout_seconds": 10})
                )
                body = answer.json()
        steps: list[Any] = []
        query = {"page_size": 1000}
        page = (await self.ask(lambda: http.get(f"/api/flows/{flow_id}/steps", params=query))).json()
        steps += page["steps"]
        return Ended(body.get("status", "lost"), body.get("closed_at"), steps)

    async def _metrics(self) -> tuple[float, float]:
        """Queued steps and restored heads, over all nodes."""
        entries = restored = 0.0
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            for node in self.cluster.nodes:
                text = (await self.ask(partial(http.get, f"{node.url}/metrics"))).text
                entries += _metric(text, "headrace_step_task_queue_entries")
                restored += _metric(text, "headrace_matching_heads_restored_refs_total")
        return entries, restored


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.MULTILINE)
    assert found is not None, f"there is no metric {name}"
    return float(found[1])
