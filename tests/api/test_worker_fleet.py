"""Operators look at registered workers and forget them."""

from __future__ import annotations

from typing import Any

import pytest

from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.store_time import next_millisecond
from tests.unit.api.fakes import Client

WORKER = {
    "worker_id": "w1",
    "task_queue": "jobs",
    "runtime": "python",
    "sdk_version": "py/1",
    "build_id": "b1",
    "supported_workflow_types": ["t"],
    "supported_activity_types": ["a"],
    "workflow_definition_fingerprints": {"t": "sha256:1"},
    "max_concurrent_workflow_tasks": 3,
    "capabilities": ["query_tasks"],
    "workflow_command_contracts": {"t": {"queries": ["state"]}, "broken": 1},
    "heartbeat_interval_seconds": 20,
    "task_slots": {"workflow_available": 3},
    "process_metrics": {"process_id": 7, "host": "vm", "nested": {"x": 1}},
}


async def _register(client: Client, **fields: Any) -> None:
    assert (await client.worker("POST", "register", WORKER | fields)).status == 201


async def test_a_worker_is_shown_as_it_registered(client: Client) -> None:
    await _register(client)

    shown = (await client.control("GET", "/api/workers/w1")).body
    listed = (await client.control("GET", "/api/workers")).body

    told = WORKER | {
        "workflow_command_contracts": {"t": {"queries": ["state"]}},
        "process_metrics": {"process_id": 7, "host": "vm"},
    }
    assert {name: shown[name] for name in told} == told
    assert (shown["namespace"], shown["status"]) == ("default", "active")
    assert shown["max_concurrent_activity_tasks"] == 100
    assert shown["last_heartbeat_at"].endswith("Z")
    assert shown["registered_at"] <= shown["updated_at"]
    del shown["updated_at"]
    assert listed["workers"] == [shown]
    assert (listed["namespace"], listed["stale_after_seconds"]) == ("default", 60)


async def test_heartbeats_bring_new_vitals(client: Client) -> None:
    await _register(client)

    await client.worker("POST", "heartbeat", {"worker_id": "w1", "task_slots": {"workflow_available": 0}})
    changed = (await client.control("GET", "/api/workers/w1")).body
    await client.worker("POST", "heartbeat", {"worker_id": "w1"})
    kept = (await client.control("GET", "/api/workers/w1")).body

    assert changed["task_slots"] == kept["task_slots"] == {"workflow_available": 0}


async def test_filters(node: Node, client: Client) -> None:
    await _register(client)
    await next_millisecond(node.store)
    await _register(client, worker_id="w2", task_queue="other")

    async def found(query: str) -> list[str]:
        answer = await client.control("GET", f"/api/workers{query}")
        assert answer.status == 200
        return [worker["worker_id"] for worker in answer.body["workers"]]

    assert await found("") == ["w2", "w1"]
    assert await found("?task_queue=jobs") == ["w1"]
    assert await found("?task_queue=nothing") == []
    assert await found("?status=active&task_queue=other") == ["w2"]
    assert await found("?status=stale") == []
    wrong = await client.control("GET", "/api/workers?status=idle")
    assert (wrong.status, list(wrong.body["errors"])) == (422, ["status"])


async def test_a_worker_that_moves_is_in_one_queue(client: Client) -> None:
    await _register(client)
    await _register(client, task_queue="other")

    for queue, expected in (("jobs", []), ("other", ["w1"])):
        answer = await client.control("GET", f"/api/workers?task_queue={queue}")
        assert [worker["worker_id"] for worker in answer.body["workers"]] == expected


async def test_silence_makes_a_worker_stale(node: Node, client: Client) -> None:
    await _register(client)
    old = node.clock.now_ms() - 60_001 - 1000
    keys = node.store.keys
    await node.store.call("HSET", keys.heartbeats("default"), "w1", old)

    stale = (await client.control("GET", "/api/workers/w1")).body["status"]
    listed = (await client.control("GET", "/api/workers?status=stale")).body["workers"]
    await client.worker("POST", "heartbeat", {"worker_id": "w1"})
    alive = (await client.control("GET", "/api/workers/w1")).body["status"]

    assert (stale, len(listed), alive) == ("stale", 1, "active")


async def test_an_operator_forgets_a_worker(node: Node, client: Client) -> None:
    await _register(client)

    gone = await client.control("DELETE", "/api/workers/w1")
    again = await client.control("DELETE", "/api/workers/w1")
    polled = await client.worker("POST", "workflow-tasks/poll", {"worker_id": "w1", "task_queue": "jobs"})
    left = await node.store.call("KEYS", f"{node.store.keys.prefix}:{{w.default}}:*")

    assert (gone.status, gone.body["outcome"], gone.body["worker_id"]) == (200, "deregistered", "w1")
    assert (again.status, again.body["reason"]) == (404, "worker_not_found")
    assert (await client.control("GET", "/api/workers/w1")).status == 404
    assert polled.status == 412
    assert left == []


async def test_workers_of_other_namespaces_are_not_found(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "prod"})
    await _register(client)

    elsewhere = {"x-namespace": "prod"}
    assert (await client.control("GET", "/api/workers/w1", **elsewhere)).status == 404
    assert (await client.control("GET", "/api/workers", **elsewhere)).body["workers"] == []


@pytest.mark.parametrize("role", ["operator", "admin"])
async def test_only_admins_forget_workers(another_node: OpenNode, role: str) -> None:
    tokens = {"operator_token": "o", "admin_token": "a", "worker_token": "w"}
    async with another_node(auth_driver="token", **tokens) as node:
        client = client_of(node)
        headers = {"authorization": f"Bearer {role[0]}"}
        listed = await client.control("GET", "/api/workers", **headers)
        removed = await client.control("DELETE", "/api/workers/w1", **headers)

    assert listed.status == 200
    assert removed.status == (404 if role == "admin" else 403)


async def test_a_leaving_worker_gives_its_workflow_tasks_back(node: Node, client: Client) -> None:
    token = (await client.worker("POST", "register", WORKER)).body["registration_token"]
    await _register(client, worker_id="w2")
    for number in range(3):
        body = {"workflow_type": "t", "workflow_id": f"f{number}", "task_queue": "jobs"}
        await client.control("POST", "/api/workflows", body)
    tasks = [
        (
            await client.worker("POST", "workflow-tasks/poll", {"worker_id": worker, "task_queue": "jobs"})
        ).body["task"]
        for worker in ("w1", "w1", "w2")
    ]

    path = "registrations/w1/deregister"
    receipts = [
        (await client.worker("POST", path, {"registration_token": token})).body[
            "recovered_workflow_task_count"
        ]
        for _ in range(2)
    ]
    stale = await client.worker(
        "POST",
        f"workflow-tasks/{tasks[0]['task_id']}/complete",
        {"lease_owner": "w1", "workflow_task_attempt": 1, "commands": [{"type": "complete_workflow"}]},
    )
    again = [
        (await client.worker("POST", "workflow-tasks/poll", {"worker_id": "w2", "task_queue": "jobs"})).body[
            "task"
        ]
        for _ in range(3)
    ]

    assert receipts == [2, 2]
    assert (stale.status, stale.body["reason"]) == (409, "task_not_leased")
    assert [task and task["workflow_task_attempt"] for task in again] == [2, 2, None]
    assert {task["task_id"] for task in again[:2]} == {task["task_id"] for task in tasks[:2]}
    repaired = again[0]["history_events"][-1]
    assert repaired["event_type"] == "RepairRequested"
    assert repaired["payload"]["metadata"] == {"trigger": "worker_deregistered"}
