"""Queries, workers, builds and upkeep over a real Redis Cluster, where every script keeps to one slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from cluster.settings import Settings
from nodes.node import open_node
from tests.api.conftest import client_of
from tests.servers import KINDS, Server, run_cluster
from tests.unit.api.fakes import Answer
from tests.waiting import eventually

WORKER = {"worker_id": "w", "task_queue": "jobs", "runtime": "python", "build_id": "b"}
POLL = {"worker_id": "w", "task_queue": "jobs"}


@pytest.fixture(scope="module", params=KINDS)
def cluster_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with run_cluster(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


async def test_a_day_of_an_operator(cluster_server: Server, prefix: str) -> None:
    settings = Settings(
        redis_url=f"redis+cluster://127.0.0.1:{cluster_server.port}", key_prefix=prefix, auth_driver="none"
    )
    answers: dict[str, Answer] = {}
    with trio.fail_after(60):
        async with open_node(settings) as node, trio.open_nursery() as nursery:
            await node.membership.wait_joined()
            client = client_of(node)

            async def ask(name: str, method: str, path: str, body: object = None) -> Answer:
                answers[name] = await client.control(method, f"/api/{path}", body)
                return answers[name]

            assert (await client.worker("POST", "register", WORKER)).status == 201
            start = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs"}
            run_id = (await ask("start", "POST", "workflows", start)).body["run_id"]

            nursery.start_soon(ask, "query", "POST", "workflows/w1/query/state", {})
            task = (await client.worker("POST", "query-tasks/poll", POLL)).body["task"]
            claim = {"lease_owner": "w", "query_task_attempt": 1, "result": 7}
            done = await client.worker("POST", f"query-tasks/{task['query_task_id']}/complete", claim)
            assert done.status == 200
            await eventually(lambda: "query" in answers)

            await ask("drain", "POST", "task-queues/jobs/build-ids/drain", {"build_id": "b"})
            drained = await client.worker("POST", "workflow-tasks/poll", POLL)
            await ask("builds", "GET", "task-queues/jobs/build-ids")
            await ask("resume", "POST", "task-queues/jobs/build-ids/resume", {"build_id": "b"})

            async def follow() -> None:
                page = f"workflows/w1/runs/{run_id}/history?wait_new_event=1&next_page_token=Mg=="
                await ask("follow", "GET", page)

            nursery.start_soon(follow)
            await eventually(lambda: node.history_waits.waiting == 1)
            found = (await client.worker("POST", "workflow-tasks/poll", POLL)).body["task"]
            complete = {"lease_owner": "w", "workflow_task_attempt": 1}
            complete |= {"commands": [{"type": "complete_workflow"}]}
            await client.worker("POST", f"workflow-tasks/{found['task_id']}/complete", complete)
            await eventually(lambda: "follow" in answers)

            await ask("repair", "POST", "system/repair/pass", {})
            await ask("timeouts", "GET", "system/activity-timeouts")
            await ask("metrics", "GET", "system/metrics")
            await ask("operator", "GET", "system/operator-metrics")
            await ask("debug", "GET", "workflows/w1/debug")
            await ask("archive", "POST", "workflows/w1/archive", {})
            await ask("start2", "POST", "workflows", start | {"workflow_id": "w2"})
            beat = await client.worker("POST", "heartbeat", {"worker_id": "w", "task_slots": {"a": 1}})
            second = (await client.worker("POST", "workflow-tasks/poll", POLL)).body["task"]
            await ask("leave", "DELETE", "workers/w")
            await ask("terminate", "POST", "workflows/w2/terminate", {})
            await ask("prune", "POST", "system/retention/pass", {"run_ids": [second["run_id"]]})

    assert {name: answer.status for name, answer in answers.items() if answer.status >= 300} == {}
    assert answers["query"].body["result"] == 7
    assert (drained.status, drained.body["reason"]) == (409, "worker_draining")
    assert answers["builds"].body["build_ids"][0]["drain_intent"] == "draining"
    assert answers["follow"].body["events"][0]["event_type"] == "WorkflowCompleted"
    assert answers["archive"].body["outcome"] == "archived"
    assert beat.body["retention"]["throttled"] is False
    assert answers["leave"].body["recovered_workflow_task_count"] == 1
    assert answers["prune"].body["pruned"] == 1
