"""Pages of a full server: a second at most, and no more memory for more work."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
import trio

from cluster import payloads
from cluster.settings import Settings
from cluster.workflows.engine import StartRequest
from nodes.node import Node, open_node
from tests.bench.figures import say
from tests.cluster_processes import make_cluster
from tests.servers import run_server
from tests.wire import Wire, open_wire

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

WORKFLOWS = 100_000
QUEUES = 1_000
WORKERS = 500
MOST_SECONDS = 1.0
MOST_GROWTH = 64 << 20
ROUNDS = 5
AT_ONCE = 400
_PAGES = (
    "",
    "workflows",
    "workflows?query=w99999",
    "workflows?type=nothing",
    "workflow?id=w500",
    "task-queues",
    "task-queues?query=queue-9",
    "task-queue?name=queue-1",
    "workers",
    "workers?status=stale",
    "worker?id=worker-1",
    "flows",
    "schedules",
    "activities",
    "namespaces",
    "cluster",
)


async def _fill(node: Node) -> None:
    nothing = payloads.encode([])
    numbers = iter(range(WORKFLOWS))

    async def start_some() -> None:
        for number in numbers:
            await node.engine.start(
                StartRequest(
                    namespace="default",
                    workflow_type="order",
                    workflow_id=f"w{number}",
                    task_queue=f"queue-{number % QUEUES}",
                    input=nothing,
                )
            )

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(start_some)


async def _register(wire: Wire) -> None:
    for number in range(WORKERS):
        await wire.register(f"worker-{number}", f"queue-{number}", workflows=["order"], activities=["charge"])


def _memory(pid: int) -> int:
    """Resident memory of a process in bytes."""
    (line,) = (row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


async def _seconds(client: httpx.AsyncClient, address: str) -> float:
    began = time.perf_counter()
    answer = await client.get(f"/console/{address}")
    assert answer.status_code == httpx.codes.OK, answer.text[:500]
    return time.perf_counter() - began


async def test_pages_of_a_full_server(tmp_path: Path) -> None:
    with run_server("valkey", tmp_path) as server, make_cluster(1, server.url, tmp_path) as cluster:
        began = time.perf_counter()
        settings = Settings(redis_url=server.url, auth_driver="none", node_name="filler")
        async with open_node(settings) as node:
            await _fill(node)
        say("console: filled with", f"{WORKFLOWS:,} workflows in {time.perf_counter() - began:.0f} s")
        await cluster.start()
        (process,) = (node.child.process.pid for node in cluster.nodes)
        async with open_wire(cluster.url) as wire:
            await _register(wire)
            for address in _PAGES:
                await _seconds(wire.client, address)
            before = _memory(process)
            for address in _PAGES:
                spent = sorted([await _seconds(wire.client, address) for _ in range(ROUNDS)])
                say(f"  /console/{address}", f"{spent[0] * 1000:.0f} ms, at most {spent[-1] * 1000:.0f} ms")
                assert spent[0] < MOST_SECONDS
            growth = _memory(process) - before
            say("  memory", f"{before >> 20} MiB, {growth / (1 << 20):+.1f} MiB after {ROUNDS} rounds")
            assert growth < MOST_GROWTH
