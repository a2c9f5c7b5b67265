"""The whole HTTP interface on real nodes and a real store."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from cluster import payloads
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client
from tests.waiting import PATIENCE, eventually

WORKER = {"worker_id": "w", "task_queue": "jobs", "runtime": "python"}
POLL = {"worker_id": "w", "task_queue": "jobs"}


async def _register(client: Client, **fields: Any) -> Answer:
    answer = await client.worker("POST", "register", WORKER | fields)
    assert answer.status == 201
    return answer


async def _poll(client: Client, kind: str = "workflow", **fields: Any) -> Answer:
    return await client.worker("POST", f"{kind}-tasks/poll", POLL | fields)


async def _complete(client: Client, task: dict[str, Any], *commands: dict[str, Any]) -> Answer:
    body = {
        "lease_owner": task["lease_owner"],
        "workflow_task_attempt": task["workflow_task_attempt"],
        "commands": list(commands),
    }
    return await client.worker("POST", f"workflow-tasks/{task['task_id']}/complete", body)


async def test_a_workflow_with_an_activity(client: Client) -> None:
    await _register(client)
    start = {"workflow_type": "greeter", "workflow_id": "w1", "task_queue": "jobs", "input": ["world"]}
    started = await client.control("POST", "/api/workflows", start)
    assert (started.status, started.body["status"]) == (201, "pending")

    task = (await _poll(client)).body["task"]
    assert [event["event_type"] for event in task["history_events"]] == ["StartAccepted", "WorkflowStarted"]
    activity = {
        "type": "schedule_activity",
        "activity_type": "greet",
        "arguments": payloads.encode(["world"]).blob,
    }
    scheduled = await _complete(client, task, activity)
    assert (scheduled.status, scheduled.body["run_status"]) == (200, "waiting")

    attempt = (await _poll(client, "activity")).body["task"]
    assert attempt["arguments"] == {"codec": "avro", "blob": payloads.encode(["world"]).blob}
    claim = {"activity_attempt_id": attempt["activity_attempt_id"], "lease_owner": "w"}
    target = f"activity-tasks/{attempt['task_id']}"
    beat = await client.worker("POST", f"{target}/heartbeat", claim | {"message": "half"})
    assert (beat.status, beat.body["heartbeat_recorded"]) == (200, True)
    done = await client.worker("POST", f"{target}/complete", claim | {"result": "hello"})
    assert (done.status, done.body["recorded"]) == (200, True)
    again = await client.worker("POST", f"{target}/complete", claim | {"result": "hello"})
    assert (again.status, again.body["reason"]) == (409, "stale_attempt")

    resumed = (await _poll(client)).body["task"]
    assert resumed["workflow_wait_kind"] == "activity"
    result = {"type": "complete_workflow", "result": {"codec": "avro", "blob": payloads.encode("hello").blob}}
    finished = await _complete(client, resumed, result)
    assert (finished.status, finished.body["run_status"]) == (200, "completed")

    described = (await client.control("GET", "/api/workflows/w1")).body
    assert (described["status"], described["output"], described["input"]) == ("completed", "hello", ["world"])
    run = f"/api/workflows/w1/runs/{described['run_id']}"
    assert (await client.control("GET", run)).body["run_id"] == described["run_id"]
    history = (await client.control("GET", f"{run}/history?page_size=1000")).body
    assert history["events"][-1]["event_type"] == "WorkflowCompleted"
    assert [event["sequence"] for event in history["events"]] == list(range(1, len(history["events"]) + 1))
    listed = (await client.control("GET", "/api/workflows?status=completed")).body
    assert [item["workflow_id"] for item in listed["workflows"]] == ["w1"]


async def test_history_pages(client: Client) -> None:
    await _register(client)
    await client.control("POST", "/api/workflows", {"workflow_type": "t", "task_queue": "jobs"})

    task = (await _poll(client, history_page_size=1)).body["task"]
    page = await client.worker(
        "POST",
        f"workflow-tasks/{task['task_id']}/history",
        {
            "lease_owner": "w",
            "workflow_task_attempt": 1,
            "next_history_page_token": task["next_history_page_token"],
        },
    )

    assert len(task["history_events"]) == 1
    assert task["total_history_events"] == page.body["total_history_events"] == 2
    assert [event["sequence"] for event in page.body["history_events"]] == [2]
    assert page.body["next_history_page_token"] is None


async def test_what_one_node_is_told_all_know(node: Node, client: Client, another_node: OpenNode) -> None:
    async with another_node(node_name="second") as second:
        there = client_of(second)
        await client.control("POST", "/api/namespaces", {"name": "prod", "retention_days": 7})
        assert (await there.control("GET", "/api/workflows", **{"x-namespace": "prod"})).status == 200
        await client.control("PUT", "/api/namespaces/prod", {"retention_days": 8})

        async def known() -> bool:
            found = await second.namespaces.get("prod")
            return found is not None and found.retention_days == 8

        await eventually(known)
        await _register(client)
        assert (await _poll(there)).status == 200
        await _register(client, task_queue="other")

        async def moved() -> bool:
            return (await _poll(there)).status == 409

        await eventually(moved)
        await client.worker("DELETE", "registrations/w")

        async def gone() -> bool:
            return (await _poll(there)).status == 412

        await eventually(gone)


async def test_two_nodes_may_create_the_same_namespace_once(client: Client) -> None:
    statuses: list[int] = []

    async def create(name: str) -> None:
        statuses.append((await client.control("POST", "/api/namespaces", {"name": name})).status)

    async with trio.open_nursery() as nursery:
        for name in ("prod", "Prod", "PROD", "pROD"):
            nursery.start_soon(create, name)

    assert sorted(statuses) == [201, 409, 409, 409]


async def test_concurrent_registrations_agree_on_one(node: Node, client: Client) -> None:
    answers: list[Answer] = []

    async def register(fingerprint: str) -> None:
        body = WORKER | {"workflow_definition_fingerprints": {"t": fingerprint}}
        answers.append(await client.worker("POST", "register", body))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(register, f"sha256:{number}")

    assert sorted(answer.status for answer in answers) == [201] + [409] * 7
    stored = await node.workers.get("default", "w")
    assert stored is not None
    assert len(stored.workflow_definition_fingerprints) == 1


async def test_heartbeats_and_receipts_are_in_the_store(node: Node, client: Client) -> None:
    token = (await _register(client)).body["registration_token"]
    beats = node.store.keys.heartbeats("default")
    first = int(await node.store.call("HGET", beats, "w"))

    assert (await client.worker("POST", "heartbeat", {"worker_id": "w"})).status == 200
    assert int(await node.store.call("HGET", beats, "w")) >= first
    for _ in range(2):
        target = "registrations/w/deregister"
        assert (await client.worker("POST", target, {"registration_token": token})).status == 200
    assert await node.store.call("EXISTS", beats) == 0
    assert await node.store.call("EXISTS", node.store.keys.registrations("default")) == 0
    assert (await client.worker("POST", "heartbeat", {"worker_id": "w"})).status == 404


async def test_names_cannot_leave_their_namespace(node: Node, client: Client) -> None:
    worker_id = "a}:{b:*?\x00é" + "x" * 200
    await _register(client, worker_id=worker_id, task_queue="q:{}*")

    answer = await client.worker(
        "POST", "workflow-tasks/poll", {"worker_id": worker_id, "task_queue": "q:{}*", "timeout_seconds": 0}
    )

    assert answer.status == 200
    assert await node.workers.get("default", "a}") is None


async def test_ready_and_metrics_of_a_real_node(client: Client) -> None:
    ready = await client.send("GET", "/api/ready")
    metrics = await client.send("GET", "/metrics")

    assert (ready.status, ready.body["status"]) == (200, "ready")
    assert b"headrace_partitions_owned" in metrics.body
    assert b"headrace_store_round_trips_total" in metrics.body


@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_a_parked_poll_ends_empty_when_the_node_leaves(node: Node, client: Client, kind: str) -> None:
    await _register(client)
    answers: list[Answer] = []

    async def poll() -> None:
        answers.append(await _poll(client, kind, timeout_seconds=60))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await eventually(lambda: node.polls.parked == 1)
            node.polls.close()

    assert (answers[0].status, answers[0].body["poll_status"]) == (200, "empty")
