"""A node that cannot reach Redis says so, and heals by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.cluster_processes import make_cluster
from tests.faults import open_proxy
from tests.servers import run_server
from tests.waiting import eventually
from tests.wire import complete, metric, open_wire


@pytest.mark.timeout(240)
@pytest.mark.parametrize("silent", [False, True], ids=["closed", "black hole"])
async def test_a_cut_node_refuses_and_heals(silent: bool, tmp_path: Path) -> None:
    with run_server("redis", tmp_path) as server:
        async with open_proxy(server.address) as proxy:
            with make_cluster(2, server.url, tmp_path) as cluster:
                cut, whole = cluster.nodes
                cut.redis_url = proxy.url
                await cluster.start()
                async with open_wire(cut.url) as a, open_wire(whole.url) as b:
                    await a.register("w", "q", workflows=["t"])
                    if silent:
                        proxy.black_hole()
                    else:
                        proxy.refusing = True
                        await proxy.cut()
                    answer = await a.client.get("/api/workflows/w")
                    assert answer.status_code == 503, answer.text
                    assert answer.json()["reason"] == (
                        "store_outcome_unknown" if silent else "store_unavailable"
                    )
                    assert int(answer.headers["retry-after"]) >= 1
                    for path, status in (("/api/health", "degraded"), ("/api/ready", "not_ready")):
                        answer = await a.client.get(path)
                        assert (answer.status_code, answer.json()["status"]) == (503, status)
                    # A restart would not bring Redis back.
                    assert (await a.client.get("/api/live")).status_code == 200

                    async def taken_over() -> bool:
                        return await metric(b, "headrace_partitions_owned") == 16

                    # The others go on meanwhile.
                    await eventually(taken_over, 15)
                    await b.start("t", "q", "meanwhile")
                    task = await b.task("workflow", "w", "q")
                    assert task["workflow_id"] == "meanwhile"
                    await b.complete_workflow_task(task, complete())

                    proxy.refusing = False
                    proxy.black_hole(False)
                    await cut.ready()
                    started = await a.start("t", "q", "healed")
                    task = await a.task("workflow", "w", "q", seconds=20)
                    assert task["run_id"] == started["run_id"]
                    done = await a.complete_workflow_task(task, complete())
                    assert done["run_status"] == "completed"
                    assert "Traceback" not in cut.log, cut.log


@pytest.mark.timeout(240)
async def test_a_parked_poll_survives_a_short_cut(tmp_path: Path) -> None:
    """Connections break and come back while polls wait: the next task still reaches them at once."""
    with run_server("redis", tmp_path) as server:
        async with open_proxy(server.address) as proxy:
            with make_cluster(2, server.url, tmp_path, {"DW_WORKER_POLL_INTERVAL_MS": "60000"}) as cluster:
                cut, whole = cluster.nodes
                cut.redis_url = proxy.url
                await cluster.start()
                async with open_wire(cut.url) as a, open_wire(whole.url) as b:
                    await a.register("w", "q", workflows=["t"])
                    tasks = []

                    async def poll() -> None:
                        tasks.append(await a.task("workflow", "w", "q", seconds=30))

                    async def parked() -> bool:
                        return await metric(a, "headrace_polls_parked") == 1

                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(poll)
                        await eventually(parked)
                        before = proxy.connections
                        await proxy.cut()
                        await eventually(lambda: proxy.connections > before)
                        await b.start("t", "q", "after")
                        await eventually(lambda: bool(tasks))
                    assert tasks[0]["workflow_id"] == "after"
