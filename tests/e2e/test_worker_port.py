"""The worker listener of real nodes: alone, behind HAProxy and behind nginx."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import trio

from tests.cluster_processes import Cluster, NodeProcess, kill, make_cluster, wait_ready, worker_ready
from tests.nginx import nginx
from tests.ports import free_ports
from tests.sdk_client import execute
from tests.waiting import LONG_PATIENCE, eventually
from tests.wire import check_history, complete, metric, open_wire, schedule


def served_by(cluster: Cluster, backend: str, path: str) -> set[str]:
    """The nodes to which HAProxy sent requests of a path through a backend."""
    assert cluster.balancer is not None
    lines = cluster.balancer.log.read_text(errors="replace").splitlines()
    found = (re.search(rf" {backend}/(node-\d) ", line) for line in lines if path in line)
    return {match[1] for match in found if match}


async def test_the_public_sdk_through_haproxy_and_the_listener(cluster: Cluster, queue: str) -> None:
    """Activities, retries, timers, and the client's start and queries of the result."""
    worker = cluster.start_worker(queue)
    try:
        await worker_ready(worker)
        for name, arguments, result in (
            ("steps", (3,), [0, 1, 2]),
            ("retry", (2, 3), 3),
            ("timer", (1,), "rang"),
        ):
            got = await execute(cluster.url, name, queue, *arguments, workflow_id=f"{queue}-{name}")
            assert got == result
        async with open_wire(cluster.url) as wire:
            check_history(await wire.history(f"{queue}-steps"))
    finally:
        kill(worker)

    async def logged() -> bool:
        return bool(served_by(cluster, "workers", "/api/workflows HTTP"))

    await eventually(logged)
    assert served_by(cluster, "workers", "/api/worker/workflow-tasks/poll")
    assert served_by(cluster, "workers", "/api/worker/register")
    assert not served_by(cluster, "nodes", "/api/worker/")
    assert served_by(cluster, "nodes", f"/api/workflows/{queue}-steps")
    assert not served_by(cluster, "workers", "/api/workflows/")


async def test_haproxy_uses_the_other_port_while_no_node_has_a_listener(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    environ = {"HEADRACE_KEY_PREFIX": prefix, "HEADRACE_WORKER_LISTEN": ""}
    with make_cluster(2, valkey_url, tmp_path, environ, balanced=True, listeners=True) as cluster:
        await cluster.start()
        async with open_wire(cluster.url) as wire:

            async def registered() -> bool:
                body = {"worker_id": "w", "task_queue": "q", "runtime": "python"}
                return (await wire.client.post("/api/worker/register", json=body)).is_success

            await eventually(registered)
            await wire.start("t", "q", "one")
        assert served_by(cluster, "nodes", "/api/worker/register")


async def test_one_way_in_for_workers(cluster: Cluster, queue: str, worker_id: str) -> None:
    """A whole workflow over the listeners of three nodes; everything else is told where to go."""
    one, two, three = cluster.nodes
    async with open_wire(one.worker_url) as a, open_wire(two.worker_url) as b, open_wire(three.url) as main:
        await a.register(worker_id, queue, workflows=["t"], activities=["x"])
        await b.start("t", queue, queue)
        await a.complete_workflow_task(await b.task("workflow", worker_id, queue), schedule("x", queue))
        await b.complete_activity(await a.task("activity", worker_id, queue), "out")
        await a.complete_workflow_task(await a.task("workflow", worker_id, queue), complete("out"))
        refused = await a.client.get(f"/api/workflows/{queue}")
        assert (refused.status_code, refused.json()["reason"]) == (404, "not_for_workers")
        assert refused.json()["port"] == one.port
        assert (await a.client.get("/api/ready")).is_success
        assert (await main.describe(queue))["status"] == "completed"
        async with open_wire(one.url) as other:
            assert await metric(other, "headrace_worker_connections") >= 1


async def test_a_worker_that_leaves_its_parked_poll_takes_nothing(
    cluster: Cluster, queue: str, worker_id: str
) -> None:
    node = cluster.nodes[0]
    async with open_wire(node.url) as main, open_wire(cluster.nodes[1].url) as other:

        async def parked(count: int) -> bool:
            return await metric(main, "headrace_polls_parked") == count

        async with open_wire(node.worker_url) as worker, trio.open_nursery() as nursery:
            await worker.register(worker_id, queue, workflows=["t"])
            await eventually(lambda: parked(0))
            nursery.start_soon(worker.poll, "workflow", worker_id, queue)
            await eventually(lambda: parked(1))
            nursery.cancel_scope.cancel()
        await eventually(lambda: parked(0))
        await main.start("t", queue, queue)
        assert (await other.task("workflow", worker_id, queue))["workflow_id"] == queue


async def test_sigterm_answers_the_polls_of_the_listener(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    with make_cluster(1, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}, listeners=True) as cluster:
        await cluster.start()
        (node,) = cluster.nodes
        answers: list[object] = []
        async with open_wire(node.worker_url) as worker, open_wire(node.url) as main:
            await worker.register("w", "q", workflows=["t"])

            async def poll() -> None:
                answers.append(await worker.poll("workflow", "w", "q", seconds=60))

            async def all_parked() -> bool:
                return await metric(main, "headrace_polls_parked") == 20

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(poll)
                await eventually(all_parked)
                node.signal(signal.SIGTERM)
            assert answers == [None] * 20
        with trio.fail_after(LONG_PATIENCE):
            assert await node.child.wait() == 0, node.log
        assert "Traceback" not in node.log
        assert "connection_broke" not in node.log


@pytest.mark.parametrize("listening", [True, False], ids=["two-ports", "listeners-down"])
async def test_the_public_sdk_through_nginx(
    cluster: Cluster, queue: str, tmp_path: Path, listening: bool
) -> None:
    """Where no worker listener answers, nginx uses the other port."""
    nodes = cluster.nodes
    if not listening:
        ports = free_ports(3)
        nodes = [
            NodeProcess(node.name, node.redis_url, node.directory, node.port, worker_port=port)
            for node, port in zip(cluster.nodes, ports, strict=True)
        ]
    with nginx(nodes, tmp_path) as url:
        await wait_ready(url, LONG_PATIENCE)
        worker = cluster.start_worker(queue, url=url)
        try:
            await worker_ready(worker)
            assert await execute(url, "steps", queue, 3, workflow_id=queue) == [0, 1, 2]
        finally:
            kill(worker)
