"""System routes: retention, timeouts of activities, metrics."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.errors import StoreUnavailable
from cluster.upkeep.due import DueReport
from cluster.upkeep.expiry import Expiry
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Client
from tests.waiting import eventually

WORKER = {"worker_id": "w", "task_queue": "jobs", "runtime": "python"}
POLL = {"worker_id": "w", "task_queue": "jobs"}
OLD_MS = 40 * 24 * 3600 * 1000


async def _start(client: Client, workflow_id: str, **fields: Any) -> str:
    await client.worker("POST", "register", WORKER)
    body = {"workflow_type": "t", "workflow_id": workflow_id, "task_queue": "jobs"}
    answer = await client.control("POST", "/api/workflows", body | fields)
    assert answer.status == 201
    return str(answer.body["run_id"])


async def _step(client: Client, *commands: dict[str, Any]) -> None:
    task = (await client.worker("POST", "workflow-tasks/poll", POLL)).body["task"]
    body = {"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]}
    path = f"workflow-tasks/{task['task_id']}/complete"
    assert (await client.worker("POST", path, body | {"commands": list(commands)})).status == 200


async def _closed(node: Node, client: Client, workflow_id: str, age_ms: int = OLD_MS) -> str:
    """A run that closed ``age_ms`` ago."""
    run_id = await _start(client, workflow_id)
    await _step(client, {"type": "schedule_activity", "activity_type": "a"})
    task = (await client.worker("POST", "activity-tasks/poll", POLL)).body["task"]
    claim = {"activity_attempt_id": task["activity_attempt_id"], "lease_owner": "w", "result": 1}
    assert (await client.worker("POST", f"activity-tasks/{task['task_id']}/complete", claim)).status == 200
    await _step(client, {"type": "complete_workflow"})
    keys = node.store.keys
    for partition in range(keys.partitions):
        closed = keys.closed(partition, "default")
        await node.store.call("ZADD", closed, "XX", node.clock.now_ms() - age_ms, run_id)
    return run_id


async def _keys_of(node: Node, *names: str) -> list[bytes]:
    """Keys whose name or content names one of ``names``."""
    found = []
    for key in await node.store.call("KEYS", f"{node.store.keys.prefix}:*"):
        kind = await node.store.call("TYPE", key)
        content: Any = b""
        if kind == b"zset":
            content = await node.store.call("ZRANGE", key, 0, -1)
        elif kind == b"hash":
            content = await node.store.call("HGETALL", key)
        elif kind == b"set":
            content = await node.store.call("SMEMBERS", key)
        elif kind == b"stream":
            content = await node.store.call("XRANGE", key, "-", "+")
        if any(name in key.decode() or name in repr(content) for name in names):
            found.append(key)
    return found


async def test_retention_of_an_empty_namespace(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "short", "retention_days": 7})

    status = (await client.control("GET", "/api/system/retention")).body
    short = (await client.control("GET", "/api/system/retention", **{"x-namespace": "short"})).body
    passed = (await client.control("POST", "/api/system/retention/pass", {})).body
    wrong = await client.control("GET", "/api/system/retention?limit=0")
    capped = (await client.control("GET", "/api/system/retention?limit=1000")).body

    assert (status["namespace"], status["retention_days"]) == ("default", 30)
    assert (status["expired_run_count"], status["expired_run_ids"]) == (0, [])
    assert (status["scan_limit"], status["scan_pressure"]) == (100, False)
    assert status["cutoff"].endswith("+00:00")
    assert short["retention_days"] == 7
    assert passed == {"processed": 0, "pruned": 0, "skipped": 0, "failed": 0, "results": []}
    assert (wrong.status, list(wrong.body["errors"])) == (422, ["limit"])
    assert capped["scan_limit"] == 100


async def test_expired_runs_leave_no_key(node: Node, client: Client) -> None:
    old = await _closed(node, client, "expired-one")
    young = await _closed(node, client, "young-one", age_ms=1000)
    running = await _start(client, "running-one")

    status = (await client.control("GET", "/api/system/retention?limit=1")).body
    passed = await client.control("POST", "/api/system/retention/pass", {})
    again = (await client.control("POST", "/api/system/retention/pass", {"run_ids": [old]})).body
    listed = (await client.control("GET", "/api/workflows")).body["workflows"]

    assert (status["expired_run_ids"], status["scan_pressure"]) == ([old], True)
    assert (passed.status, passed.body["pruned"], passed.body["processed"]) == (200, 1, 1)
    result = passed.body["results"][0]
    assert (result["run_id"], result["outcome"]) == (old, "pruned")
    assert result["history_events_deleted"] >= 5
    assert result["deleted"]["instances"] == 1
    assert again["results"] == [{"run_id": old, "outcome": "skipped", "reason": "run_not_found"}]
    assert (await client.control("GET", "/api/workflows/expired-one")).status == 404
    assert {item["run_id"] for item in listed} == {young, running}
    assert await _keys_of(node, old, "expired-one") == []
    assert await _keys_of(node, young) != []
    assert await _start(client, "expired-one") != old


async def test_named_runs_whatever_their_age(node: Node, client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "prod"})
    young = await _closed(node, client, "w1", age_ms=0)
    running = await _start(client, "w2")
    nobody = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

    foreign = (
        await client.control(
            "POST", "/api/system/retention/pass", {"run_ids": [young]}, **{"x-namespace": "prod"}
        )
    ).body
    passed = (
        await client.control("POST", "/api/system/retention/pass", {"run_ids": [young, running, nobody, "x"]})
    ).body
    wrong = await client.control("POST", "/api/system/retention/pass", {"run_ids": "all"})

    assert foreign["results"][0]["reason"] == "run_not_found"
    assert [result.get("reason") for result in passed["results"]] == [
        None,
        "run_not_terminal",
        "run_not_found",
        "run_not_found",
    ]
    assert (passed["pruned"], passed["skipped"], passed["failed"]) == (1, 3, 0)
    assert (wrong.status, list(wrong.body["errors"])) == (422, ["run_ids"])


async def test_a_heartbeat_removes_one_run_a_minute(node: Node, client: Client) -> None:
    for name in ("w1", "w2"):
        await _closed(node, client, name)

    first = (await client.worker("POST", "heartbeat", {"worker_id": "w"})).body["retention"]
    second = (await client.worker("POST", "heartbeat", {"worker_id": "w"})).body["retention"]
    left = (await client.control("GET", "/api/system/retention")).body["expired_run_count"]

    assert first == {"throttled": False, "processed": 1, "pruned": 1, "skipped": 0, "failed": 0}
    assert second == {"throttled": True, "processed": 0, "pruned": 0, "skipped": 0, "failed": 0}
    assert left == 1


async def test_keepers_remove_expired_runs(node: Node, client: Client) -> None:
    old = await _closed(node, client, "w1")
    expiry = Expiry(node.retention, node.namespaces, node.clock.now_ms, Random(0))

    for held in node.membership.held.values():
        await expiry.expire(held)

    assert expiry.removed == 1
    assert await _keys_of(node, old) == []


async def test_activity_timeouts(node: Node, client: Client) -> None:
    run_id = await _start(client, "w1")
    activity = {"type": "schedule_activity", "activity_type": "a", "start_to_close_timeout": 3600}
    await _step(client, activity)
    task = (await client.worker("POST", "activity-tasks/poll", POLL)).body["task"]
    execution = task["activity_execution_id"]

    nothing = (await client.control("GET", "/api/system/activity-timeouts")).body
    early = (
        await client.control(
            "POST", "/api/system/activity-timeouts/pass", {"execution_ids": [execution, "nonsense"]}
        )
    ).body
    empty = (await client.control("POST", "/api/system/activity-timeouts/pass", {})).body
    wrong = await client.control("POST", "/api/system/activity-timeouts/pass", {"limit": 0})

    assert nothing == {
        "expired_count": 0,
        "expired_execution_ids": [],
        "scan_limit": 100,
        "scan_pressure": False,
    }
    assert early["results"] == [
        {"execution_id": execution, "outcome": "skipped", "reason": "no_deadline_expired"},
        {"execution_id": "nonsense", "outcome": "skipped", "reason": "execution_not_found"},
    ]
    assert empty == {"processed": 0, "enforced": 0, "skipped": 0, "failed": 0, "results": []}
    assert wrong.status == 422
    assert run_id in execution


@pytest.mark.parametrize(("retries", "has_retry"), [(1, False), (2, True)])
async def test_a_reached_timeout_is_enforced(
    node: Node, client: Client, monkeypatch: pytest.MonkeyPatch, retries: int, has_retry: bool
) -> None:
    async def later(_partition: int) -> DueReport:
        raise StoreUnavailable("the keepers are kept from being first")

    monkeypatch.setattr(node.due, "run", later)
    await _start(client, "w1")
    activity = {
        "type": "schedule_activity",
        "activity_type": "a",
        "start_to_close_timeout": 1,
        "retry_policy": {"max_attempts": retries, "backoff_seconds": [60]},
    }
    await _step(client, activity)
    task = (await client.worker("POST", "activity-tasks/poll", POLL)).body["task"]
    execution = task["activity_execution_id"]

    async def reached() -> bool:
        found = await client.control("GET", "/api/system/activity-timeouts")
        return bool(found.body["expired_execution_ids"] == [execution])

    await eventually(reached)
    path = "/api/system/activity-timeouts/pass"
    passed = (await client.control("POST", path, {})).body
    again = (await client.control("POST", path, {"execution_ids": [execution]})).body

    assert (passed["enforced"], passed["results"][0]["has_retry"]) == (1, has_retry)
    expected = "no_deadline_expired" if has_retry else "execution_already_terminal"
    assert again["results"][0]["reason"] == expected


async def test_metrics_name_the_types_that_fail_most(another_node: OpenNode) -> None:
    async with another_node(metrics_workflow_task_failure_type_limit=2) as node:
        client = client_of(node)
        await client.control("POST", "/api/namespaces", {"name": "prod"})
        for name, times in (("a", 1), ("b", 2), ("c", 1)):
            await _start(client, name, workflow_type=name)
            for attempt in range(1, times + 1):
                task = (await client.worker("POST", "workflow-tasks/poll", POLL)).body["task"]
                body = {"lease_owner": "w", "workflow_task_attempt": attempt, "failure": {"message": "no"}}
                await client.worker("POST", f"workflow-tasks/{task['task_id']}/fail", body)
                if attempt < times:
                    await client.control("POST", f"/api/workflows/{name}/repair", {})
        found = (await client.control("GET", "/api/system/metrics")).body
        other = (await client.control("GET", "/api/system/metrics", **{"x-namespace": "prod"})).body

    failures = found["metrics"]["dw_workflow_task_consecutive_failures"]
    assert [entry["workflow_type"] for entry in failures["by_workflow_type"]] == ["b", "a"]
    assert (failures["max_consecutive_failures"], failures["failed_task_count"]) == (2, 3)
    assert (failures["workflow_type_count"], failures["workflow_type_limit"]) == (3, 2)
    assert failures["workflow_types_truncated"] is True
    assert (failures["suppressed_workflow_type_count"], failures["suppressed_failed_task_count"]) == (1, 1)
    drift = found["metrics"]["dw_projection_drift_total"]
    assert (drift["total"], drift["table_count"], drift["scope"]) == (0, 5, "server")
    assert drift["by_table"][0] == {"table": "run_summaries", "needs_rebuild": 0}
    assert other["metrics"]["dw_workflow_task_consecutive_failures"]["failed_task_count"] == 0


async def test_operator_metrics_count(node: Node, client: Client) -> None:
    await _closed(node, client, "w1", age_ms=0)
    await client.control("POST", "/api/workflows/w1/archive", {})
    await _start(client, "w2")
    await _start(client, "w3")
    await client.worker("POST", "workflow-tasks/poll", POLL)

    found = (await client.control("GET", "/api/system/operator-metrics")).body

    metrics = found["operator_metrics"]
    assert found["namespace"] == "default"
    assert metrics["runs"] == {"total": 3, "open": 2, "closed": 1, "archived": 1}
    assert (metrics["tasks"]["ready"], metrics["tasks"]["leased"]) == (1, 1)
    assert metrics["workers"] == {"total": 1, "active": 1, "draining": 0, "stale": 0}


@pytest.mark.parametrize(
    "path",
    ["repair", "repair/pass", "activity-timeouts", "activity-timeouts/pass", "retention", "retention/pass"],
)
async def test_only_admins_use_system_routes(another_node: OpenNode, path: str) -> None:
    method = "POST" if path.endswith("pass") else "GET"
    async with another_node(auth_driver="token", operator_token="o", admin_token="a") as node:
        client = client_of(node)
        operator = await client.control(method, f"/api/system/{path}", {}, authorization="Bearer o")
        admin = await client.control(method, f"/api/system/{path}", {}, authorization="Bearer a")

    assert (operator.status, admin.status) == (403, 200)


async def test_cluster_info_tells_of_the_namespace(client: Client) -> None:
    metrics = {"host": "vm", "process_id": 7}
    await client.worker("POST", "register", WORKER | {"build_id": "b1", "process_metrics": metrics})

    info = (await client.send("GET", "/api/cluster/info")).body
    other = (await client.send("GET", "/api/cluster/info", headers={"x-namespace": "nowhere"})).body

    fleet = info["worker_fleet"]
    assert (fleet["namespace"], fleet["active_workers"], fleet["active_worker_scopes"]) == ("default", 1, 1)
    assert (fleet["queues"], fleet["build_ids"]) == (["jobs"], ["b1"])
    entry = fleet["workers"][0]
    assert (entry["queue"], entry["supported"], entry["host"], entry["process_id"]) == (
        "jobs",
        ["b1"],
        "vm",
        7,
    )
    assert other["worker_fleet"]["workers"] == []
    repair = info["task_repair"]
    assert repair["policy"]["scan_strategy"] == "scope_fair_round_robin"
    assert (repair["candidates"]["total_candidates"], repair["candidates"]["scan_pressure"]) == (0, False)
    assert info["structural_limits"]["pending_activity_count"] == 2000
    assert (
        info["capabilities"]["queries"]
        is info["worker_protocol"]["server_capabilities"]["query_tasks"]
        is True
    )
