"""Queries with the public SDK: client and worker on different nodes, nodes that die meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from durable_workflow import Client, QueryFailed

from tests.cluster_processes import Cluster, kill, make_cluster, worker_ready
from tests.sdk_client import with_client
from tests.servers import run_server
from tests.waiting import LONG_PATIENCE, eventually


async def _start(url: str, workflow_id: str, queue: str, count: int, rest: int) -> None:
    async def start(client: Client) -> None:
        await client.start_workflow(
            workflow_type="asked", task_queue=queue, workflow_id=workflow_id, input=[count, rest]
        )

    await with_client(url, start)


async def _query(url: str, workflow_id: str, name: str, *arguments: Any) -> Any:
    async def ask(client: Client) -> Any:
        answer = await client.query_workflow(workflow_id, name, args=list(arguments) or None)
        return answer["result"]

    return await with_client(url, ask)


async def _rests(url: str, workflow_id: str, progress: int) -> None:
    """Wait until the workflow has done its activities."""

    async def done() -> bool:
        found = await _query(url, workflow_id, "progress")
        return bool(found == {"progress": progress})

    await eventually(done, LONG_PATIENCE)


async def test_ask_here_answer_there(cluster: Cluster, queue: str) -> None:
    one, two, three = cluster.nodes
    worker = cluster.start_worker(queue, url=two.url)
    try:
        await worker_ready(worker)
        await _start(one.url, queue, queue, 3, 3600)
        await _rests(three.url, queue, 3)

        assert await _query(one.url, queue, "progress", 10) == {"progress": 30}
        with pytest.raises(QueryFailed, match="nonsense"):
            await _query(one.url, queue, "nonsense")

        finished = f"{queue}-finished"
        await _start(one.url, finished, queue, 2, 0)

        async def result(client: Client) -> Any:
            return await client.get_result(
                client.get_workflow_handle(finished), poll_interval=0.05, timeout=120
            )

        assert await with_client(one.url, result) == 2
        assert await _query(three.url, finished, "progress") == {"progress": 2}
    finally:
        kill(worker)


async def test_nodes_die_while_queries_wait(tmp_path: Path) -> None:
    with (
        run_server("valkey", tmp_path) as server,
        make_cluster(2, server.url, tmp_path, balanced=True) as cluster,
    ):
        await cluster.start()
        await worker_ready(cluster.start_worker("q", poll="5"))
        await _start(cluster.url, "w", "q", 2, 3600)
        await _rests(cluster.url, "w", 2)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await _query(cluster.url, "w", "slow", 1.0))

        for node in cluster.nodes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                nursery.start_soon(ask)
                with server.client() as redis:
                    await eventually(lambda: bool(redis.keys("*{q:default:q}:held:*")))
                await node.restart()

        assert answers == [2] * 4
        for node in cluster.nodes:
            assert "Traceback" not in node.log, node.log
