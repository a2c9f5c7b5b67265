"""Looking after single workflows: runs, repair, archive, waiting for events, export."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import trio

from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client
from tests.waiting import PATIENCE, eventually

WORKER = {"worker_id": "w", "task_queue": "jobs", "runtime": "python"}
POLL = {"worker_id": "w", "task_queue": "jobs"}
DONE = {"type": "complete_workflow"}


async def _start(client: Client, **fields: Any) -> str:
    await client.worker("POST", "register", WORKER)
    body = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs"}
    answer = await client.control("POST", "/api/workflows", body | fields)
    assert answer.status == 201
    return str(answer.body["run_id"])


async def _poll(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.worker("POST", "workflow-tasks/poll", POLL)).body["task"]
    return found


async def _step(client: Client, *commands: dict[str, Any]) -> None:
    task = await _poll(client)
    body = {"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]}
    path = f"workflow-tasks/{task['task_id']}/complete"
    assert (await client.worker("POST", path, body | {"commands": list(commands)})).status == 200


async def _verb(client: Client, verb: str, body: Any = None, workflow_id: str = "w1") -> Answer:
    return await client.control("POST", f"/api/workflows/{workflow_id}/{verb}", body or {})


async def test_the_runs_of_a_workflow(client: Client) -> None:
    run_id = await _start(client, business_key="b")

    answer = await client.control("GET", "/api/workflows/w1/runs")
    unknown = await client.control("GET", "/api/workflows/w2/runs")

    assert (answer.body["workflow_id"], answer.body["run_count"]) == ("w1", 1)
    run = answer.body["runs"][0]
    assert (run["run_id"], run["run_number"], run["business_key"]) == (run_id, 1, "b")
    assert (run["status"], run["task_queue"], run["closed_at"]) == ("pending", "jobs", None)
    assert answer.body["control_plane"]["operation"] == "list_runs"
    assert (unknown.status, unknown.body["reason"]) == (404, "instance_not_found")


async def test_archive(node: Node, client: Client) -> None:
    run_id = await _start(client)
    still_open = await _verb(client, "archive")
    await _step(client, DONE)
    before = (await client.control("GET", "/api/workflows/w1")).body["actions"]["can_archive"]
    archived = await _verb(client, "archive", {"reason": "audit"})
    again = await _verb(client, "archive")
    after = (await client.control("GET", "/api/workflows/w1")).body
    history = (await client.control("GET", f"/api/workflows/w1/runs/{run_id}/history")).body["events"]
    pruned = await client.control("POST", "/api/system/retention/pass", {"run_ids": [run_id]})
    unknown = await _verb(client, "archive", workflow_id="w2")

    assert (still_open.status, still_open.body["reason"]) == (409, "run_not_closed")
    assert still_open.body["command_status"] == "rejected"
    assert (archived.status, archived.body["outcome"]) == (200, "archived")
    assert (archived.body["command_status"], archived.body["command_source"]) == ("accepted", "control_plane")
    assert archived.body["control_plane"]["operation"] == "archive"
    assert (again.status, again.body["outcome"]) == (200, "archive_not_needed")
    assert (before, after["actions"]["can_archive"], after["status"]) == (True, False, "completed")
    assert [event["event_type"] for event in history[-2:]] == ["WorkflowCompleted", "WorkflowArchived"]
    assert history[-1]["payload"]["reason"] == "audit"
    assert pruned.body["results"] == [{"run_id": run_id, "outcome": "skipped", "reason": "run_archived"}]
    assert (unknown.status, unknown.body["reason"]) == (404, "instance_not_found")


async def test_a_healthy_run_needs_no_repair(client: Client) -> None:
    await _start(client)
    healthy = await _verb(client, "repair")
    await _step(client, DONE)
    closed = await _verb(client, "repair")

    assert (healthy.status, healthy.body["outcome"]) == (200, "repair_not_needed")
    assert healthy.body["control_plane"]["operation"] == "repair"
    assert (closed.status, closed.body["reason"]) == (409, "run_not_active")


async def test_a_failing_workflow_task_is_ready_at_once(client: Client) -> None:
    run_id = await _start(client)
    task = await _poll(client)
    body = {"lease_owner": "w", "workflow_task_attempt": 1, "failure": {"message": "cannot replay"}}
    for _ in range(2):
        failed = await client.worker("POST", f"workflow-tasks/{task['task_id']}/fail", body)
        assert failed.status == 200
        if body["workflow_task_attempt"] == 1:
            assert (await _verb(client, "repair")).body["outcome"] == "repair_dispatched"
            task = await _poll(client)
            body["workflow_task_attempt"] = 2
    metrics = (await client.control("GET", "/api/system/metrics")).body["metrics"]
    passed = await client.control("POST", "/api/system/repair/pass", {"instance_id": "w1"})
    task = await _poll(client)
    events = (await client.control("GET", f"/api/workflows/w1/runs/{run_id}/history")).body["events"]

    assert task["workflow_task_attempt"] == 3
    assert [event["event_type"] for event in events].count("RepairRequested") == 2
    failures = metrics["dw_workflow_task_consecutive_failures"]
    assert (failures["max_consecutive_failures"], failures["failed_task_count"]) == (2, 1)
    assert failures["by_workflow_type"] == [
        {"workflow_type": "t", "max_consecutive_failures": 2, "failed_task_count": 1}
    ]
    assert (passed.status, passed.body["repaired_existing_tasks"], passed.body["dispatched_tasks"]) == (
        200,
        1,
        1,
    )
    assert passed.body["instance_id"] == "w1"


async def test_missing_tasks_and_timers_come_back(node: Node, client: Client) -> None:
    run_id = await _start(client, run_timeout_seconds=600)
    activity = {"type": "schedule_activity", "activity_type": "a"}
    await _step(client, activity, {"type": "start_timer", "delay_seconds": 600})
    base = node.store.keys.base(0).rsplit("{", 1)[0]
    keys = await node.store.call("KEYS", f"{base}*:task:{run_id}*")
    assert len(keys) == 1
    partition = next(p for p in range(16) if keys[0].decode().startswith(node.store.keys.base(p)))
    await node.store.call("DEL", keys[0])
    await node.store.call("DEL", node.store.keys.timers(partition))

    status = (await client.control("GET", "/api/system/repair")).body
    passed = (await client.control("POST", "/api/system/repair/pass", {})).body
    again = (await client.control("POST", "/api/system/repair/pass", {"run_ids": [run_id]})).body
    task = (await client.worker("POST", "activity-tasks/poll", POLL)).body["task"]
    timers = await node.store.call("ZRANGE", node.store.keys.timers(partition), 0, -1)

    assert status["candidates"]["missing_task_candidates"] == 1
    assert (passed["selected_missing_task_candidates"], passed["repaired_missing_tasks"]) == (1, 3)
    assert (again["repaired_missing_tasks"], again["run_ids"]) == (0, [run_id])
    assert task["activity_type"] == "a"
    assert sorted(timers) == sorted([f"{run_id} r".encode(), f"{run_id} t2".encode()])


async def test_history_waits_for_an_event_on_any_node(another_node: OpenNode) -> None:
    async with (
        another_node(worker_poll_timeout=20) as node,
        another_node(worker_poll_timeout=20, node_name="second") as second,
    ):
        client, there = client_of(node), client_of(second)
        run_id = await _start(client)
        path = f"/api/workflows/w1/runs/{run_id}/history?wait_new_event=1&next_page_token="
        answers: list[Answer] = []

        async def follow() -> None:
            answers.append(await there.control("GET", path + b64encode(b"2").decode()))

        with trio.fail_after(PATIENCE):
            at_once = await there.control("GET", path)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await eventually(lambda: second.history_waits.waiting == 1)
                await _step(client, {"type": "start_timer", "delay_seconds": 0})
            await _step(client, DONE)
            closed = await there.control("GET", path + b64encode(b"99").decode())

    assert [event["sequence"] for event in at_once.body["events"]] == [1, 2]
    assert [event["event_type"] for event in answers[0].body["events"]] == ["TimerScheduled", "TimerFired"]
    assert answers[0].body["control_plane"]["operation"] == "history"
    assert (closed.status, closed.body["events"], closed.body["next_page_token"]) == (200, [], None)


async def test_a_wait_for_an_event_ends(another_node: OpenNode) -> None:
    async with another_node(worker_poll_timeout=1) as node:
        client = client_of(node)
        run_id = await _start(client)
        path = f"/api/workflows/w1/runs/{run_id}/history?wait_new_event=true&next_page_token="
        with trio.fail_after(PATIENCE):
            answer = await client.control("GET", path + b64encode(b"2").decode())

    assert (answer.status, answer.body["events"], answer.body["next_page_token"]) == (200, [], None)
    assert node.history_waits.waiting == 0


async def test_waits_end_with_the_node(another_node: OpenNode) -> None:
    async with another_node(worker_poll_timeout=60) as node:
        client = client_of(node)
        run_id = await _start(client)
        path = f"/api/workflows/w1/runs/{run_id}/history?wait_new_event=1&next_page_token="
        answers: list[Answer] = []

        async def follow() -> None:
            answers.append(await client.control("GET", path + b64encode(b"2").decode()))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await eventually(lambda: node.history_waits.waiting == 1)
                node.history_waits.close()

    assert (answers[0].status, answers[0].body["events"]) == (200, [])


async def test_debugging_a_run(client: Client) -> None:
    run_id = await _start(client, input=["x" * 5000])

    async def status(query: str = "") -> dict[str, Any]:
        answer = await client.control("GET", f"/api/workflows/w1/debug{query}")
        assert answer.status == 200
        assert answer.body["control_plane"]["diagnostic_status"] == answer.body["diagnostic_status"]
        found: dict[str, Any] = answer.body
        return found

    ready = await status()
    await _step(client, {"type": "schedule_activity", "activity_type": "a"})
    waiting = await status("?include_last_event_payload=1")
    attempt = (await client.worker("POST", "activity-tasks/poll", POLL)).body["task"]
    failure = {"message": "no", "type": "Boom"}
    claim = {"activity_attempt_id": attempt["activity_attempt_id"], "lease_owner": "w", "failure": failure}
    await client.worker("POST", f"activity-tasks/{attempt['task_id']}/fail", claim)
    task = await _poll(client)
    running = await status()
    body = {"lease_owner": "w", "workflow_task_attempt": 1, "failure": {"message": "bad replay"}}
    await client.worker("POST", f"workflow-tasks/{task['task_id']}/fail", body)
    failing = await status()
    await client.worker("DELETE", "registrations/w")
    await _verb(client, "terminate")
    closed = (await client.control("GET", f"/api/workflows/w1/runs/{run_id}/debug")).body
    unknown = await client.control("GET", "/api/workflows/w2/debug")

    assert (ready["diagnostic_status"], ready["run_id"]) == ("workflow_task_ready", run_id)
    assert ready["pending_workflow_tasks"][0]["status"] == "ready"
    assert [poller["worker_id"] for poller in ready["task_queue"]["pollers"]] == ["w"]
    assert "payload_preview" not in ready["last_event"]
    assert waiting["diagnostic_status"] == "waiting"
    assert waiting["pending_activities"][0]["status"] == "pending"
    assert waiting["last_event"]["event_type"] == "ActivityScheduled"
    assert '"activity_type":"a"' in waiting["last_event"]["payload_preview"]
    assert waiting["execution"]["wait_kind"] == "activity"
    assert running["diagnostic_status"] == "workflow_task_running"
    assert (running["recent_failures"][0]["message"], running["pending_activities"]) == ("no", [])
    assert failing["diagnostic_status"] == "workflow_task_failing"
    assert failing["pending_workflow_tasks"][0]["last_error"]["message"] == "bad replay"
    assert (closed["diagnostic_status"], closed["pending_workflow_tasks"]) == ("closed", [])
    assert (unknown.status, unknown.body["reason"]) == (404, "instance_not_found")


async def test_runs_of_a_chain_are_pruned_one_by_one(node: Node, client: Client) -> None:
    first = await _start(client)
    await _step(client, {"type": "continue_as_new"})
    runs = (await client.control("GET", "/api/workflows/w1/runs")).body
    second = runs["runs"][1]["run_id"]
    await _step(client, DONE)

    async def prune(*run_ids: str) -> list[Any]:
        answer = await client.control("POST", "/api/system/retention/pass", {"run_ids": list(run_ids)})
        return [result["outcome"] for result in answer.body["results"]]

    assert (runs["run_count"], [run["run_number"] for run in runs["runs"]]) == (2, [1, 2])
    assert [run["is_current_run"] for run in runs["runs"]] == [False, True]
    assert await prune(first) == ["pruned"]
    left = (await client.control("GET", "/api/workflows/w1/runs")).body
    assert [run["run_id"] for run in left["runs"]] == [second]
    assert (await client.control("GET", "/api/workflows/w1")).body["run_id"] == second
    assert await prune(second) == ["pruned"]
    assert (await client.control("GET", "/api/workflows/w1")).status == 404
    assert await node.store.call("KEYS", f"{node.store.keys.prefix}:*:wf:*") == []


async def test_the_older_run_stays_readable_when_the_newer_one_goes(client: Client) -> None:
    first = await _start(client)
    await _step(client, {"type": "continue_as_new"})
    second = (await client.control("GET", "/api/workflows/w1")).body["run_id"]
    await _step(client, DONE)
    await client.control("POST", "/api/system/retention/pass", {"run_ids": [second]})

    described = (await client.control("GET", "/api/workflows/w1")).body
    again = await client.control("POST", "/api/workflows", {"workflow_type": "t", "workflow_id": "w1"})

    assert described["run_id"] == first
    assert (again.status, again.body["reason"]) == (409, "duplicate_not_allowed")
