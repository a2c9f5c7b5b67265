"""What limits cost: the same work on a free queue and on one with every kind of limit."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from statistics import median

import pytest
import trio

from tests.bench.figures import RUNS, say
from tests.bench.measuring import cpu_seconds
from tests.bench.raw import connect
from tests.cluster_processes import Cluster, make_cluster
from tests.idle import total
from tests.servers import run_server
from tests.wire import complete, schedule

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

WORKFLOWS = 300
WORKERS = (1, 16)
LIMITS = {
    "*": {
        kind: {
            "max_active_leases_per_queue": 10_000,
            "max_active_leases_per_namespace": 20_000,
            "max_dispatches_per_minute": 10_000_000,
            "max_dispatches_per_minute_per_namespace": 10_000_000,
            "budget_group": "g",
            "max_dispatches_per_minute_per_budget_group": 10_000_000,
        }
        for kind in ("workflow_tasks", "activity_tasks")
    }
}
_runs = count()


async def measure(cluster: Cluster, workers: int) -> tuple[float, float]:
    """Node CPU (us) and store commands per task, with so many workers side by side.

    A task is polled for and completed; the starts are not measured.
    """
    node, run = cluster.nodes[0], next(_runs)
    queue = f"q{run}"
    tasks = 0
    async with connect(node.url) as client:
        await client.register(f"{queue}-w", queue)
        for number in range(WORKFLOWS):
            await client.start(f"{queue}-{number}", queue)

    async def work(kind: str, share: int) -> None:
        nonlocal tasks
        async with connect(node.url) as worker:
            for _ in range(share):
                task = await worker.poll(kind, f"{queue}-w", queue)
                assert task is not None
                tasks += 1
                if kind == "activity":
                    await worker.complete_activity(task)
                elif task["last_history_sequence"] < 4:
                    await worker.complete_workflow(task, schedule("x", queue))
                else:
                    await worker.complete_workflow(task, complete("out"))

    pid = node.child.process.pid
    commands = await total(cluster.nodes, "headrace_store_commands_total")
    began = cpu_seconds(pid)
    for kind in ("workflow", "activity", "workflow"):
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(work, kind, WORKFLOWS // workers)
    cpu = cpu_seconds(pid) - began
    sent = await total(cluster.nodes, "headrace_store_commands_total") - commands
    return cpu / tasks * 1e6, sent / tasks


@pytest.mark.parametrize("workers", WORKERS)
async def test_cost_of_limits(tmp_path: Path, workers: int) -> None:
    limited = {"DW_TASK_QUEUE_ADMISSION_OVERRIDES": json.dumps(LIMITS)}
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(1, server.url, tmp_path / "free", {"HEADRACE_KEY_PREFIX": "free"}) as free,
        make_cluster(1, server.url, tmp_path / "all", {"HEADRACE_KEY_PREFIX": "all", **limited}) as strict,
    ):
        await free.start()
        await strict.start()
        rows: dict[str, list[tuple[float, float, float]]] = {"free": [], "limited": []}
        with server.client() as redis:
            for _ in range(RUNS + 1):
                for name, cluster in (("free", free), ("limited", strict)):
                    before = redis.info("cpu")
                    cpu, sent = await measure(cluster, workers)
                    after = redis.info("cpu")
                    used = sum(after[key] - before[key] for key in ("used_cpu_user", "used_cpu_sys"))
                    rows[name].append((cpu, sent, used / (3 * WORKFLOWS) * 1e6))
    figures = {
        name: [median(column) for column in zip(*runs[1:], strict=True)] for name, runs in rows.items()
    }
    for name, (cpu, sent, store) in figures.items():
        text = f"{cpu:,.0f} us node, {store:,.0f} us Redis, {sent:.1f} commands a task"
        say(f"{name} queue, {workers} workers", text)
    node, store = (figures["limited"][i] / figures["free"][i] - 1 for i in (0, 2))
    say(f"limits cost, {workers} workers", f"{node:+.0%} node, {store:+.0%} Redis")
    # One command before the claim, one behind the completion that nobody waits for.
    assert figures["limited"][1] - figures["free"][1] < 2.5
    assert node < 0.25
