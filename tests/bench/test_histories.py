"""What long histories cost: bytes a workflow task with and without a sticky cache, and one more event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from tests.bench.figures import say
from tests.bench.measuring import cpu_seconds
from tests.bench.raw import Connection, connect
from tests.bench.replaying import AGAIN, NOTE, Replayer
from tests.cluster_processes import Cluster
from tests.servers import Server

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("durability", ["memory"], indirect=True),
]

EVENTS = 1_000
TASKS = 100
LENGTHS = (1_000, 5_000, 20_000)
SIGNALS = (1_000, 5_000)
SENDERS = 4


@dataclass(frozen=True)
class Cost:
    """What one piece cost, on average."""

    requests: float
    bytes: float
    node_ms: float
    store_ms: float

    def __str__(self) -> str:
        return (
            f"{self.requests:.2f} requests, {self.bytes / 1000:.1f} kB received,"
            f" {self.node_ms:.2f} ms of node CPU, {self.store_ms:.2f} ms of Redis CPU"
        )


class Meter:
    """Measures what a job costs the node and its store."""

    def __init__(self, cluster: Cluster, server: Server, *connections: Connection) -> None:
        self._pid = cluster.nodes[0].child.process.pid
        self._server = server
        self._connections = connections

    async def cost(self, pieces: int, job: Callable[[], Awaitable[object]]) -> Cost:
        before = self._read()
        await job()
        after = self._read()
        requests, received, node, store = ((b - a) / pieces for a, b in zip(before, after, strict=True))
        return Cost(requests, received, node * 1000, store * 1000)

    def _read(self) -> tuple[float, float, float, float]:
        with self._server.client() as client:
            cpu = client.info("cpu")
        store = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        requests = sum(connection.requests for connection in self._connections)
        received = sum(connection.received for connection in self._connections)
        return requests, received, cpu_seconds(self._pid), store


async def _tasks(worker: Replayer) -> None:
    for _ in range(TASKS):
        await worker.answer(await worker.task(), NOTE, AGAIN)


async def test_a_workflow_task_with_and_without_a_cache(one_node: Cluster, server: Server) -> None:
    costs: dict[bool, Cost] = {}
    for keeps in (False, True):
        name = "sticky" if keeps else "cold"
        async with connect(one_node.url) as connection:
            await connection.register(name, name)
            await connection.start(name, name)
            worker = Replayer(connection, name, name, keeps)
            await worker.grow(EVENTS)
            costs[keeps] = await Meter(one_node, server, connection).cost(TASKS, partial(_tasks, worker))
        say(f"workflow task at {EVENTS:,} events, {name}", str(costs[keeps]))
    assert costs[True].bytes < costs[False].bytes / 4


async def test_one_more_event(one_node: Cluster, server: Server) -> None:
    """What a workflow task costs that adds three events, at growing lengths of the history."""
    async with connect(one_node.url) as connection:
        await connection.register("w", "q")
        await connection.start("long", "q")
        worker = Replayer(connection, "w", "q", keeps=True)
        costs = []
        for length in LENGTHS:
            await worker.grow(length)
            costs.append(await Meter(one_node, server, connection).cost(TASKS, partial(_tasks, worker)))
            say(f"workflow task at {length:,} events", str(costs[-1]))
    assert costs[-1].bytes < costs[0].bytes * 2
    assert costs[-1].requests < costs[0].requests + 0.5


async def test_one_more_signal(one_node: Cluster, server: Server) -> None:
    """What a signal costs a run that has many which no workflow task has seen."""
    async with connect(one_node.url) as worker:
        await worker.register("w", "q")
        await worker.start("signalled", "q")

        async def send(count: int) -> None:
            async with connect(one_node.url) as connection:
                for _ in range(count):
                    await connection.signal("signalled", "go")

        async def send_all(count: int) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(SENDERS):
                    nursery.start_soon(send, count // SENDERS)

        sent = 0
        meter = Meter(one_node, server)
        for number in SIGNALS:
            await send_all(number - sent - TASKS)
            cost = await meter.cost(TASKS, partial(send_all, TASKS))
            sent = number
            text = f"{cost.node_ms:.2f} ms of node CPU, {cost.store_ms:.2f} ms of Redis CPU"
            say(f"signal number {number:,}", text)
        replayer = Replayer(worker, "w", "q", keeps=True)
        await replayer.answer(await replayer.task(), AGAIN)
        assert len(replayer.events) == 2 + SIGNALS[-1]
