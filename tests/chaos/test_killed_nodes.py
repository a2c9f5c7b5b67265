"""Nodes are killed in turn under load: nothing is lost, nothing runs twice under one id."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.chaos.load import check_attempts, check_histories, start_all, wait_all
from tests.chaos.remains import check_remains, compact
from tests.cluster_processes import Cluster, make_cluster, worker_ready
from tests.servers import run_server
from tests.wire import open_wire

WORKFLOWS = 200
ROUNDS = 2


async def kill_in_turn(cluster: Cluster) -> None:
    """Each node is killed and comes back before the next one is."""
    for _ in range(ROUNDS):
        for node in cluster.nodes:
            await node.restart()


@pytest.mark.timeout(300)
async def test_all_workflows_complete_while_nodes_die(tmp_path: Path, short_leases: dict[str, str]) -> None:
    ids = [f"w{number}" for number in range(WORKFLOWS)]
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(3, server.url, tmp_path, short_leases, balanced=True) as cluster,
    ):
        await cluster.start()
        for _ in range(2):
            await worker_ready(cluster.start_worker("chaos", poll="2"))
        async with open_wire(cluster.url) as wire:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_in_turn, cluster)
                await start_all(wire, "chaos", ids, 0.1)
                await wait_all(wire, ids, within=100)
            await check_histories(wire, ids)
        check_attempts(tmp_path / "chaos.events", 3 * WORKFLOWS)
        for worker in cluster.workers:
            worker.process.kill()
        for node in cluster.nodes:
            assert await node.stop() == 0, node.log
            assert "Traceback" not in node.log, node.log
        await compact(server.url, "hr1")
        with server.client() as client:
            check_remains(client, "hr1", WORKFLOWS)
