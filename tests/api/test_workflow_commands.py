"""Commands that meet a run which is just being continued, and the limits that settings give them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.store.store import Store
from cluster.workflows import starts
from cluster.workflows.storage import Snapshot, load
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client

WORKER = {"worker_id": "w", "task_queue": "jobs"}
START = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs"}
CONTINUE = {"type": "continue_as_new"}


async def _start(client: Client, **fields: Any) -> Answer:
    await client.worker("POST", "register", WORKER | {"runtime": "python"})
    return await client.control("POST", "/api/workflows", START | fields)


async def _step(client: Client, *commands: dict[str, Any]) -> Answer:
    task = (await client.worker("POST", "workflow-tasks/poll", WORKER)).body["task"]
    body = {"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]}
    path = f"workflow-tasks/{task['task_id']}/complete"
    return await client.worker("POST", path, body | {"commands": list(commands)})


async def _send(client: Client, verb: str, **body: Any) -> Answer:
    return await client.control("POST", f"/api/workflows/w1/{verb}", body)


async def _history(client: Client) -> list[str]:
    run = (await client.control("GET", "/api/workflows/w1")).body["run_id"]
    page = await client.control("GET", f"/api/workflows/w1/runs/{run}/history?page_size=1000")
    return [event["event_type"] for event in page.body["events"]]


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("verb", ["signal/go", "update/go"])
async def test_a_request_id_is_known_in_the_runs_that_follow(client: Client, verb: str, runs: int) -> None:
    first = (await _start(client)).body["run_id"]
    sent = await _send(client, verb, input=["a"], request_id="r1")
    if verb == "update/go":
        update = (await client.worker("POST", "workflow-tasks/poll", WORKER)).body["task"]
        claim = {"lease_owner": "w", "workflow_task_attempt": update["workflow_task_attempt"]}
        over = {"type": "complete_update", "update_id": sent.body["update_id"]}
        path = f"workflow-tasks/{update['task_id']}/complete"
        assert (await client.worker("POST", path, claim | {"commands": [over]})).status == 200
    for _ in range(runs):
        assert (await _step(client, CONTINUE)).status == 200

    again = await _send(client, verb, input=["a"], request_id="r1")
    other = await _send(client, verb, input=["b"], request_id="r1")
    new = await _send(client, verb, input=["a"], request_id="r2")

    assert (again.body["run_id"], again.body["command_id"]) == (first, sent.body["command_id"])
    assert (sent.body["retained"], again.body["retained"]) == (False, True)
    assert (other.status, other.body["reason"]) == (409, "request_id_conflict")
    assert (new.status, new.body["retained"], new.body["run_id"] == first) == (202, False, False)
    if verb == "update/go":
        assert (again.status, again.body["update_status"]) == (200, "completed")
    kind = "SignalReceived" if verb == "signal/go" else "UpdateAccepted"
    assert (await _history(client)).count(kind) == 1


async def test_a_start_that_meets_a_continuation_finds_the_next_run(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await _start(client)).body["run_id"]
    asked: list[str] = []

    async def continue_first(store: Store, run_id: str) -> Snapshot | None:
        if not asked:
            await _step(client, CONTINUE)
        asked.append(run_id)
        return await load(store, run_id)

    monkeypatch.setattr(starts, "load", continue_first)
    found = await _start(client, duplicate_policy="use-existing")

    assert (found.status, found.body["outcome"]) == (200, "returned_existing_active")
    assert asked == [first, found.body["run_id"]]


async def test_a_closed_workflow_is_no_existing_one(client: Client) -> None:
    await _start(client)
    await _step(client, {"type": "complete_workflow"})
    refused = await _start(client, duplicate_policy="use-existing")
    assert (refused.status, refused.body["reason"]) == (409, "duplicate_not_allowed")


async def test_settings_give_the_wait_and_the_limits(another_node: OpenNode) -> None:
    settings: dict[str, Any] = {
        "v2_update_wait_completion_timeout_seconds": 1,
        "v2_limit_pending_signals": 1,
        "v2_limit_pending_children": 7,
        "max_pending_activities": 5,
        "v2_limit_memo_size_bytes": 0,
    }
    async with another_node(**settings) as node:
        assert isinstance(node, Node)
        client = client_of(node)
        await _start(client)
        waited = await _send(client, "update/go", wait_for="completed")
        taken = await _send(client, "signal/go")
        refused = await _send(client, "signal/go")
        limits = (await client.control("GET", "/api/cluster/info")).body["structural_limits"]

    assert (waited.status, waited.body["wait_timeout_seconds"]) == (202, 1)
    assert (taken.status, refused.status, refused.body["limit_kind"]) == (202, 409, "pending_signal_count")
    assert (limits["pending_child_count"], limits["pending_activity_count"]) == (7, 5)
    assert limits["memo_size"] == 256 * 1024


async def test_only_a_run_of_the_workflow_is_one_of_its_runs(client: Client) -> None:
    started = [
        await client.control(
            "POST", "/api/workflows", {"workflow_type": "t", "workflow_id": f"seen-{number}"}
        )
        for number in range(40)
    ]
    own, *others = [answer.body["run_id"] for answer in started]

    assert (await client.control("GET", f"/api/workflows/seen-0/runs/{own}")).status == 200
    for run_id in (*others, "nonsense", f"{own}:x", f"..%2F{own}", own[:-1]):
        answer = await client.control("GET", f"/api/workflows/seen-0/runs/{run_id}")
        assert (answer.status, answer.body["reason"]) == (404, "run_not_found"), run_id
