"""``make bench``: what one node does on this machine. The method stands in ``docs/benchmarks.md``."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path

import pytest
import trio

from cluster.version import VERSION
from nodes.cli.local import HOST, free_ports, running_nodes, running_store
from tests.bench.load import Load, connected
from tests.cluster_processes import environment

RUNS = 5
WORKFLOWS = int(os.environ.get("BENCH_WORKFLOWS", "500"))
HANDOUTS = int(os.environ.get("BENCH_HANDOUTS", "300"))

pytestmark = pytest.mark.bench


def report(name: str, values: list[float], unit: str) -> None:
    median, low, high = statistics.median(values), min(values), max(values)
    print(f"{name:<40} {median:9.2f} {unit}  (from {low:.2f} to {high:.2f}, {len(values)} values)")


async def test_one_node(tmp_path: Path) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    print(f"\nHeadrace {VERSION}, Python {platform.python_version()}, {machine}")
    print("one node, embedded Valkey, durability memory; load, node and Valkey share the cores")
    (port,) = free_ports(1)
    environ = environment()
    async with (
        running_store(tmp_path / "valkey", tmp_path, environ) as url,
        running_nodes([port], url, tmp_path, environ),
    ):
        load = Load(HOST, port)
        await load.register()
        await load.run(WORKFLOWS // 2)
        seconds = [await load.run(WORKFLOWS) for _ in range(RUNS)]
        report("workflows of one activity", [WORKFLOWS / value for value in seconds], "a second")

        waits = sorted([await _hand_out(load) for _ in range(HANDOUTS)])
        report("start to hand-out, median", waits[len(waits) // 2 : len(waits) // 2 + 1], "ms")
        report("start to hand-out, 99 %", waits[int(len(waits) * 0.99) :][:1], "ms")


async def _hand_out(load: Load) -> float:
    """Milliseconds from sending a start to the answer of a poll that is parked already."""
    handed_out = 0.0

    async def poll() -> None:
        nonlocal handed_out
        async with connected(load.host, load.port) as connection:
            answer = await load.poll(connection, "workflow")
            handed_out = trio.current_time()
            assert b'"leased"' in answer

    async with connected(load.host, load.port) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(0.02)  # the poll is parked by then; nothing tells us when
        begin = trio.current_time()
        await load.start(connection)
    return (handed_out - begin) * 1000
