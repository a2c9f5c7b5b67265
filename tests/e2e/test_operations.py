"""What operators do, through the public SDK's client: look after runs, workers and builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from durable_workflow import Client, ServerError

from tests.cluster_processes import Cluster, kill, make_cluster, worker_ready
from tests.sdk_client import execute, with_client
from tests.servers import run_server
from tests.waiting import eventually


async def test_runs_are_listed_exported_archived(cluster: Cluster, queue: str) -> None:
    one, two, three = cluster.nodes
    worker = cluster.start_worker(queue, url=two.url)
    try:
        await worker_ready(worker)
        assert await execute(one.url, "steps", queue, 2, workflow_id=queue) == [0, 1]

        async def look(client: Client) -> None:
            runs = await client.list_workflow_runs(queue)
            assert (runs.run_count, len(runs.runs)) == (1, 1)
            run_id = runs.runs[0].run_id
            assert run_id is not None
            bundle = await client.export_history(queue, run_id)
            assert bundle["workflow"]["run_id"] == run_id
            with pytest.raises(ServerError, match="closed"):
                await client.repair_workflow(queue)
            archived = await client.archive_workflow(queue, reason="kept")
            assert archived.outcome == "archived"
            assert (await client.archive_workflow(queue)).outcome == "archive_not_needed"
            assert (await client.retention_pass(run_ids=[run_id]))["skipped"] == 1
            described = await client.describe_workflow_run(queue, run_id)
            assert described.actions is not None
            assert described.actions["can_archive"] is False

        await with_client(three.url, look)
    finally:
        kill(worker)


async def test_system_passes_and_workers(cluster: Cluster, queue: str, worker_id: str) -> None:
    one, two, _ = cluster.nodes
    worker = cluster.start_worker(queue, url=two.url, id=worker_id)
    try:
        await worker_ready(worker)

        async def look(client: Client) -> None:
            listed = await client.list_workers(task_queue=queue)
            assert [found.worker_id for found in listed.workers] == [worker_id]
            described = await client.describe_worker(worker_id)
            assert (described.task_queue, described.status) == (queue, "active")
            assert described.process_metrics is not None
            assert described.process_metrics["process_id"] == worker.process.pid
            assert (await client.repair_status())["policy"]["scan_limit"] == 25
            assert (await client.repair_pass(run_ids=[]))["repaired_existing_tasks"] == 0
            assert (await client.activity_timeout_status())["expired_count"] == 0
            assert (await client.activity_timeout_pass(limit=5))["processed"] == 0
            assert (await client.retention_status())["retention_days"] == 30

        await with_client(one.url, look)
    finally:
        kill(worker)


async def test_a_drained_build_gets_no_work_until_it_is_resumed(tmp_path: Path) -> None:
    with (
        run_server("valkey", tmp_path) as server,
        make_cluster(2, server.url, tmp_path) as cluster,
    ):
        await cluster.start()
        one, two = cluster.nodes
        worker = cluster.start_worker("q", url=two.url, poll="2")
        await worker_ready(worker)
        assert await execute(one.url, "greet", "q", "you") == "hello you"

        async def drain(client: Client) -> None:
            drained = await client.drain_task_queue_build_id("q", None)
            assert (drained.drain_intent, drained.build_id) == ("draining", None)

        async def resume(client: Client) -> None:
            assert (await client.resume_task_queue_build_id("q", None)).drain_intent == "active"

        async def state(client: Client) -> Any:
            listed = await client.list_task_queue_build_ids("q")
            return [(entry.build_id, entry.rollout_status, entry.drain_intent) for entry in listed.build_ids]

        async def status(workflow_id: str) -> str:
            async with httpx.AsyncClient(trust_env=False) as http:
                headers = {"X-Durable-Workflow-Control-Plane-Version": "2"}
                answer = await http.get(f"{one.url}/api/workflows/{workflow_id}", headers=headers)
                return str(answer.json()["status"])

        await with_client(one.url, drain)
        assert (await with_client(two.url, state))[0][2] == "draining"

        async def start(client: Client) -> None:
            await client.start_workflow(
                workflow_type="greet", task_queue="q", workflow_id="later", input=["later"]
            )

        await with_client(one.url, start)
        await eventually(lambda: "draining" in worker.log.read_text())
        assert await status("later") == "pending"
        await with_client(one.url, resume)

        async def completed() -> bool:
            return await status("later") == "completed"

        await eventually(completed, within=60)
        assert (await with_client(two.url, state))[0] == (None, "active", "active")
