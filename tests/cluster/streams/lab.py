"""The stream plane of several nodes over one store, without HTTP; workers talk through memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from cluster.admission.gate import Gate
from cluster.admission.limit_store import LimitStore
from cluster.clock import Clock
from cluster.errors import StoreError
from cluster.flows.engine import FlowEngine, StartFlow
from cluster.flows.planning import TIMERS as FLOW_TIMERS
from cluster.flows.planning import Placement
from cluster.flows.wire import read_options
from cluster.membership.fence import Fence, boottime
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.barrier import Barrier
from cluster.queues.rpc_broker import NodeRpcBroker
from cluster.queues.sticky import TIMERS as STICKY_TIMERS
from cluster.queues.sticky import StickyTimers
from cluster.settings.schema import MatchingSettings, Settings
from cluster.store.store import Store, open_store
from cluster.upkeep.due import DueWork
from nodes.streams.codec import ProtocolError
from nodes.streams.hub import StreamHub
from nodes.tracing import Spans
from tests.cluster.nodes import NEVER, synchronized_clock
from tests.stream_client import Frame, StreamClient
from tests.waiting import PATIENCE, eventually

NAMESPACE = "ns"
PARTITIONS = 4
LOOK_SECONDS = 0.02
"""How often the lab's housekeeper looks for timers that are due."""


@dataclass
class Member:
    """Membership as the streams see it, in the test's hands."""

    incarnation: str
    acting: bool = True

    def may_act(self) -> bool:
        return self.acting


@dataclass
class StreamNode:
    """One node."""

    store: Store
    clock: Clock
    member: Member
    gate: Gate
    engine: FlowEngine
    hub: StreamHub
    rpc: NodeRpcBroker
    due: DueWork
    clients: trio.Nursery

    @asynccontextmanager
    async def connect(self, namespace: str = NAMESPACE) -> AsyncIterator[StreamClient]:
        """A worker's connection; leaving the block breaks it."""
        pipe = MemoryPipe()
        scope = trio.CancelScope()
        done = trio.Event()

        async def serve() -> None:
            with scope:
                await self.hub.serve(pipe.node, namespace)
            pipe.client.closed = 1000
            await pipe.to_client.aclose()
            done.set()

        self.clients.start_soon(serve)
        client = StreamClient(pipe.client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.read)
            yield client
            nursery.cancel_scope.cancel()
        scope.cancel()
        with trio.CancelScope(shield=True):
            await done.wait()

    @asynccontextmanager
    async def worker(
        self, name: str, *flow_types: str | Frame, slots: int = 1, rpc_slots: int = 0
    ) -> AsyncIterator[StreamClient]:
        """A worker with registered slots, shared ones first; the partitions know it."""
        async with self.connect() as client:
            await client.hello(name, *flow_types)
            if slots:
                await client.open(*range(1, slots + 1))
            if rpc_slots:
                await client.open(*range(slots + 1, slots + rpc_slots + 1), kind="rpc_only")
            with trio.fail_after(PATIENCE):
                await self.hub.presence.settled()
            yield client

    async def start(self, flow_type: str, step: str = "a", **fields: Any) -> str:
        """A new flow; returns its id."""
        if isinstance(fields.get("options"), dict):
            fields["options"] = read_options(fields["options"])
        started = await self.engine.start(
            StartFlow(namespace=NAMESPACE, flow_type=flow_type, start_step=step, **fields)
        )
        return started.info.flow_id

    async def steps(self, flow_id: str) -> list[tuple[str, str, int]]:
        """(step type, state, attempt) of the open steps."""
        view = await self.engine.describe(NAMESPACE, flow_id)
        return [
            (step.step_type, (view.tasks[step.k].state if step.k in view.tasks else ""), step.attempt)
            for step in view.run.steps.values()
        ]


class _NodeEnd:
    def __init__(
        self, incoming: trio.MemoryReceiveChannel[bytes], outgoing: trio.MemorySendChannel[bytes]
    ) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def deliver(self, take: Callable[[bytes | str], bool]) -> None:
        async for message in self._incoming:
            if not take(message):
                break

    async def send(self, message: bytes) -> None:
        await self._outgoing.send(message)

    async def close(self, failure: ProtocolError | None) -> None:
        await self._outgoing.aclose()


class _ClientEnd:
    def __init__(
        self, incoming: trio.MemoryReceiveChannel[bytes], outgoing: trio.MemorySendChannel[bytes]
    ) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.closed: int | None = None

    async def receive(self) -> list[bytes]:
        try:
            return [await self._incoming.receive()]
        except trio.EndOfChannel:
            self.closed = 1000
            return []

    async def send(self, data: bytes) -> None:
        await self._outgoing.send(data)

    async def aclose(self) -> None:
        await self._outgoing.aclose()


class MemoryPipe:
    """Both ends of a carrier."""

    def __init__(self, room: float = 1000) -> None:
        self.to_node, node_in = trio.open_memory_channel[bytes](room)
        self.to_client, client_in = trio.open_memory_channel[bytes](room)
        self.node = _NodeEnd(node_in, self.to_client)
        self.client: Any = _ClientEnd(client_in, self.to_node)


@dataclass
class StreamLab:
    nodes: list[StreamNode] = field(default_factory=list)

    def __getitem__(self, index: int) -> StreamNode:
        return self.nodes[index]


@asynccontextmanager
async def open_stream_lab(
    url: str,
    prefix: str,
    count: int = 2,
    *,
    limits: Mapping[str, Any] | None = None,
    peek_seconds: float = NEVER,
    **matching: Any,
) -> AsyncIterator[StreamLab]:
    """``matching`` are settings of that section, in seconds; ``limits`` the override tree.

    Unless a test wants it otherwise no wait of the matching ends by itself and nobody peeks: what comes
    at all was sent for, however slow the machine is.
    """
    settings = MatchingSettings.model_validate({"sticky_wait": NEVER, "dispatch_wait": NEVER, **matching})
    members = [Member(f"node-{number}~1") for number in range(count)]
    lab = StreamLab()
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        for number in range(count):
            store = await stack.enter_async_context(open_store(url, prefix=prefix, partitions=PARTITIONS))
            admission = LimitStore(store, Settings(task_queue_admission_overrides=json.dumps(limits or {})))
            await admission.watch()
            gate = Gate(store, admission)
            await nursery.start(gate.run)
            clock = await synchronized_clock(store)
            barrier = _barrier(store, members, number)
            node = _node(store, clock, gate, barrier, members, number, settings, nursery)
            node.hub.matcher._peek_seconds = peek_seconds
            await nursery.start(barrier.run)
            await nursery.start(node.hub.run)
            await nursery.start(node.rpc.run)
            nursery.start_soon(_keep_time, node)
            lab.nodes.append(node)
        yield lab
        nursery.cancel_scope.cancel()


def _barrier(store: Store, members: list[Member], number: int) -> Barrier:
    return Barrier(
        store,
        session=lambda: members[number].incarnation,
        live=lambda: [member.incarnation for member in members],
    )


def _node(
    store: Store,
    clock: Clock,
    gate: Gate,
    barrier: Barrier,
    members: list[Member],
    number: int,
    settings: MatchingSettings,
    nursery: trio.Nursery,
) -> StreamNode:
    member, random = members[number], Random(number)
    placement = Placement(
        int(settings.sticky_wait * 1000),
        int(settings.sync_match_wait * 1000),
        lambda queue, type_part: hub.matcher.behind(queue, type_part),
        lambda queue, step_type: hub.matcher.reserve(queue, step_type),
    )
    engine = FlowEngine(store, clock, random, placement=placement)
    hub = StreamHub(
        store,
        clock,
        gate,
        member,
        engine,
        settings,
        nodes=lambda: [m.incarnation for m in members],
        barrier=barrier,
        max_message_bytes=100_000,
        random=random,
        spans=Spans(),
    )
    barrier.add(hub.handed_out)
    barrier.on_said(hub.reasserted)
    rpc = NodeRpcBroker(
        store,
        hub.matcher,
        session=lambda: member.incarnation,
        nodes=lambda: [m.incarnation for m in members],
        dispatch_seconds=settings.dispatch_wait,
        sticky_seconds=settings.sticky_wait,
        random=random,
    )
    owners = {FLOW_TIMERS: engine.timer_due, STICKY_TIMERS: StickyTimers(store).due}
    due = DueWork(store, engine, owners)  # type: ignore[arg-type]  # no workflows here
    return StreamNode(store, clock, member, gate, engine, hub, rpc, due, nursery)


def held(partition: int) -> HeldPartition:
    """A tenure of a partition that is always certain."""
    fences = Fence(3600), Fence(3600)
    for fence in fences:
        fence.renewed(boottime())
    return HeldPartition(partition, "node-1~1", "nonce", 1, *fences)


async def _keep_time(node: StreamNode) -> None:
    """The housekeeping of timers, for every partition."""
    while True:
        for partition in range(PARTITIONS):
            try:
                await node.due.run(partition)
            except StoreError:
                continue
        await trio.sleep(LOOK_SECONDS)


def go_to(step: str) -> Frame:
    """An execute output that leads to one more step."""
    return {"decision": {"next": [{"step_type": step}]}}


COMPLETE: Frame = {"decision": {"complete": None}}


def attempt(task: Frame) -> tuple[int, int]:
    """Attempt and delivery of a ``task`` frame."""
    number, delivery = task["task"]["attempt_id"].rsplit("-", 1)[1].split(".")
    return int(number), int(delivery)


async def next_task(*workers: StreamClient, within: float = PATIENCE) -> tuple[StreamClient, Frame]:
    """The first task that one of the workers gets."""
    found: list[tuple[StreamClient, Frame]] = []

    def look() -> bool:
        for worker in workers:
            for frame in worker.frames:
                if frame["type"] == "task":
                    worker.frames.remove(frame)
                    found.append((worker, frame))
                    return True
        return False

    await eventually(look, within)
    return found[0]
