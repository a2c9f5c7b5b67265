"""Cohorts of workers with one build: counted, drained, taken back."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client
from tests.waiting import PATIENCE, eventually

BUILDS = "/api/task-queues/jobs/build-ids"


async def _register(
    client: Client, worker_id: str = "w1", build_id: str | None = "b1", **fields: Any
) -> None:
    body = {"worker_id": worker_id, "task_queue": "jobs", "runtime": "python", "build_id": build_id}
    assert (await client.worker("POST", "register", body | fields)).status == 201


async def _builds(client: Client) -> list[dict[str, Any]]:
    answer = await client.control("GET", BUILDS)
    assert answer.status == 200
    found: list[dict[str, Any]] = answer.body["build_ids"]
    return found


async def _drain(client: Client, build_id: str | None = "b1", verb: str = "drain") -> Answer:
    return await client.control("POST", f"{BUILDS}/{verb}", {"build_id": build_id})


async def _poll(client: Client, worker_id: str = "w1", kind: str = "workflow", **fields: Any) -> Answer:
    body = {"worker_id": worker_id, "task_queue": "jobs"}
    return await client.worker("POST", f"{kind}-tasks/poll", body | fields)


async def test_no_workers(client: Client) -> None:
    answer = await client.control("GET", BUILDS)

    assert answer.body["build_ids"] == []
    assert (answer.body["namespace"], answer.body["task_queue"]) == ("default", "jobs")
    assert answer.body["stale_after_seconds"] == 60


async def test_entries_and_their_order(node: Node, client: Client) -> None:
    await _register(client, "old", "b0", sdk_version="2")
    await _register(client, "w1", "b1", sdk_version="2")
    await _register(client, "w2", "b1", runtime="go", sdk_version="1")
    await _register(client, "w3", None)
    await _register(client, "elsewhere", "b9", task_queue="other")
    await node.store.call("HSET", node.store.keys.heartbeats("default"), "old", 1000)
    await _drain(client, "gone")

    builds = await _builds(client)

    assert [entry["build_id"] for entry in builds] == ["b1", None, "gone", "b0"]
    assert [entry["rollout_status"] for entry in builds] == ["active", "active", "draining", "stale_only"]
    first = builds[0]
    assert (first["active_worker_count"], first["total_worker_count"]) == (2, 2)
    assert (first["runtimes"], first["sdk_versions"]) == (["go", "python"], ["1", "2"])
    assert first["first_seen_at"] <= first["last_heartbeat_at"]
    assert (first["drain_intent"], first["drained_at"]) == ("active", None)
    assert builds[3]["stale_worker_count"] == 1
    assert (builds[2]["total_worker_count"], builds[2]["last_heartbeat_at"]) == (0, None)


async def test_draining_twice_keeps_the_time(client: Client) -> None:
    first, again = await _drain(client), await _drain(client)
    unversioned = await _drain(client, None)
    missing = await client.control("POST", f"{BUILDS}/drain", {})
    long = await _drain(client, "b" * 256)
    resumed = await _drain(client, verb="resume")

    assert (first.status, first.body["drain_intent"]) == (200, "draining")
    assert first.body["drained_at"] == again.body["drained_at"] is not None
    assert unversioned.body["build_id"] is None
    assert (missing.status, list(missing.body["errors"])) == (422, ["build_id"])
    assert long.status == 422
    assert (resumed.body["drain_intent"], resumed.body["drained_at"]) == ("active", None)


async def test_rows_drain_with_their_next_heartbeat(client: Client) -> None:
    await _register(client)
    await _drain(client)
    before = (await _builds(client))[0]
    await client.worker("POST", "heartbeat", {"worker_id": "w1"})
    after = (await _builds(client))[0]
    worker = (await client.control("GET", "/api/workers/w1")).body
    await _drain(client, verb="resume")
    resumed = (await _builds(client))[0]

    assert (before["rollout_status"], before["active_worker_count"]) == ("active_with_draining", 1)
    assert (after["rollout_status"], after["draining_worker_count"]) == ("draining", 1)
    assert worker["status"] == "draining"
    assert (resumed["rollout_status"], resumed["active_worker_count"]) == ("active", 1)


async def test_a_draining_worker_may_change_its_code(client: Client) -> None:
    await _register(
        client, workflow_definition_fingerprints={"t": "sha256:1"}, supported_workflow_types=["t"]
    )
    await _drain(client)
    await client.worker("POST", "heartbeat", {"worker_id": "w1"})

    await _register(
        client, workflow_definition_fingerprints={"t": "sha256:2"}, supported_workflow_types=["t"]
    )

    assert (await client.control("GET", "/api/workers/w1")).body["status"] == "draining"


@pytest.mark.parametrize("kind", ["workflow", "activity", "query"])
async def test_polls_of_a_draining_cohort_are_refused(client: Client, kind: str) -> None:
    await _register(client)
    await _register(client, "w2", "b2")
    await _register(client, "w3", None)
    await _drain(client)

    refused = await _poll(client, kind=kind)
    others = [await _poll(client, worker, kind) for worker in ("w2", "w3")]
    await _drain(client, verb="resume")
    resumed = await _poll(client, kind=kind)

    assert (refused.status, refused.body["reason"]) == (409, "worker_draining")
    assert (refused.body["task"], refused.body["poll_status"]) == (None, "draining")
    assert (refused.body["worker_id"], refused.body["task_queue"], refused.body["build_id"]) == (
        "w1",
        "jobs",
        "b1",
    )
    assert refused.body["error"]
    assert [answer.status for answer in (*others, resumed)] == [200, 200, 200]


@pytest.mark.parametrize("kind", ["workflow", "activity", "query"])
async def test_a_drain_ends_parked_polls_on_all_nodes(
    node: Node, client: Client, another_node: OpenNode, kind: str
) -> None:
    await _register(client)
    await _register(client, "w2", "b2")
    answers: list[Answer] = []

    async with another_node(node_name="second") as second, trio.open_nursery() as nursery:

        async def poll(worker: str, seconds: int) -> None:
            answers.append(await _poll(client_of(second), worker, kind, timeout_seconds=seconds))

        nursery.start_soon(poll, "w1", 60)
        await eventually(lambda: second.polls.parked + second.query_polls.parked == 1)
        nursery.start_soon(poll, "w2", 60)
        await eventually(lambda: second.polls.parked + second.query_polls.parked == 2)
        with trio.fail_after(PATIENCE):
            await _drain(client)
            await eventually(lambda: len(answers) == 1)
        parked = second.polls.parked + second.query_polls.parked
        second.polls.close()
        second.query_polls.close()

    assert (answers[0].status, answers[0].body["reason"]) == (409, "worker_draining")
    assert parked == 1


async def test_the_work_in_hand_of_a_draining_worker_goes_on(client: Client) -> None:
    await _register(client)
    await client.control("POST", "/api/workflows", {"workflow_type": "t", "task_queue": "jobs"})
    task = (await _poll(client)).body["task"]
    await _drain(client)

    claim = {"lease_owner": "w1", "workflow_task_attempt": 1}
    beat = await client.worker("POST", f"workflow-tasks/{task['task_id']}/heartbeat", claim)
    done = await client.worker(
        "POST",
        f"workflow-tasks/{task['task_id']}/complete",
        claim | {"commands": [{"type": "complete_workflow"}]},
    )

    assert (beat.status, done.status) == (200, 200)


async def test_cohorts_are_of_one_namespace_and_queue(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "prod"})
    await _register(client, task_queue="other")
    await _drain(client)
    answer = await client.control("GET", BUILDS, **{"x-namespace": "prod"})
    poll = await client.worker("POST", "workflow-tasks/poll", {"worker_id": "w1", "task_queue": "other"})

    assert answer.body["build_ids"] == []
    assert poll.status == 200


async def test_a_bound_run_goes_to_its_build_only(client: Client) -> None:
    await _register(client)
    await _register(client, "w2", None)
    body = {"workflow_type": "t", "workflow_id": "w", "task_queue": "jobs", "build_id": "b1"}
    await client.control("POST", "/api/workflows", body)

    others = await _poll(client, "w2", build_id="b1")
    task = (await _poll(client)).body["task"]
    described = (await client.control("GET", "/api/workflows/w")).body

    assert others.body["task"] is None
    assert (task["compatibility"], described["compatibility"]) == ("b1", "b1")
