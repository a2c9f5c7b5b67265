"""Bridge adapters: an event from elsewhere happens once, and its answer says so (cases W01 to W04)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.unit.api.fakes import Answer, Client
from tests.waiting import eventually

START = {"workflow_type": "order", "task_queue": "jobs"}
ME = {"worker_id": "w", "task_queue": "jobs"}


async def send(client: Client, action: str, target: dict[str, Any], key: str = "k1", **more: Any) -> Answer:
    body = {"action": action, "idempotency_key": key, "target": target, **more}
    return await client.control("POST", "/api/bridge-adapters/webhook/stripe", body)


async def commands(client: Client, workflow_id: str, run_id: str) -> list[str]:
    path = f"/api/workflows/{workflow_id}/runs/{run_id}/history/export"
    return [command["type"] for command in (await client.control("GET", path)).body["commands"]]


async def test_w01_an_event_starts_one_workflow(client: Client) -> None:
    first = await send(client, "start_workflow", START, input={"order": 7}, correlation={"trace": "t"})
    again = await send(client, "start_workflow", START, input={"order": 7})
    other = await send(client, "start_workflow", START, key="k2")

    assert (first.status, first.body["accepted"], first.body["outcome"]) == (202, True, "accepted")
    assert first.body["schema"] == "durable-workflow.v2.bridge-adapter-outcome.contract"
    assert first.body["workflow_id"].startswith("bridge-stripe-")
    assert (first.body["correlation"], first.body["reason"]) == ({"trace": "t"}, None)
    assert (again.status, again.body["outcome"], again.body["reason"]) == (
        200,
        "duplicate",
        "duplicate_start",
    )
    assert (again.body["workflow_id"], again.body["run_id"]) == (
        first.body["workflow_id"],
        first.body["run_id"],
    )
    assert other.body["workflow_id"] != first.body["workflow_id"]
    shown = (await client.control("GET", f"/api/workflows/{first.body['workflow_id']}")).body
    assert (shown["input"], shown["task_queue"]) == ({"order": 7}, "jobs")


async def test_w01_many_at_once_start_one(client: Client) -> None:
    answers: list[Answer] = []

    async def one() -> None:
        answers.append(await send(client, "start_workflow", START))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one)
    assert sorted(answer.status for answer in answers) == [200] * 7 + [202]
    assert len({answer.body["run_id"] for answer in answers}) == 1


async def test_keys_are_of_one_adapter_and_namespace(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "other"})
    body = {"action": "start_workflow", "idempotency_key": "k", "target": START}
    found = [
        await client.control("POST", "/api/bridge-adapters/webhook/a", body),
        await client.control("POST", "/api/bridge-adapters/webhook/b", body),
        await client.control("POST", "/api/bridge-adapters/webhook/a", body, **{"x-namespace": "other"}),
    ]
    assert [answer.status for answer in found] == [202] * 3


@pytest.mark.parametrize(
    ("action", "name"), [("signal_workflow", "signal_name"), ("update_workflow", "update_name")]
)
async def test_w02_w03_an_event_tells_a_workflow_once(client: Client, action: str, name: str) -> None:
    run_id = (await client.control("POST", "/api/workflows", START | {"workflow_id": "w1"})).body["run_id"]
    target = {"workflow_id": "w1", name: "paid"}

    first = await send(client, action, target, input={"amount": 3})
    again = await send(client, action, target, input={"amount": 3})
    changed = await send(client, action, target, input={"amount": 4})

    assert (first.status, first.body["outcome"], first.body["run_id"]) == (202, "accepted", run_id)
    assert (again.status, again.body["outcome"]) == (200, "duplicate")
    assert again.body["reason"] == "deduped_existing_command"
    assert again.body["command_id"] == first.body["command_id"]
    assert (changed.status, changed.body["reason"]) == (422, "request_id_conflict")
    assert len(await commands(client, "w1", run_id)) == 2


async def test_w04_what_cannot_be_done_is_rejected(client: Client) -> None:
    unknown = await send(client, "signal_workflow", {"workflow_id": "none", "signal_name": "s"})
    action = await send(client, "reboot", {"workflow_id": "none"})
    run_id = (await client.control("POST", "/api/workflows", START | {"workflow_id": "w1"})).body["run_id"]
    await client.control("POST", "/api/workflows/w1/cancel")
    closed = await send(client, "signal_workflow", {"workflow_id": "w1", "signal_name": "s"})

    assert (unknown.status, unknown.body["outcome"], unknown.body["reason"]) == (
        422,
        "rejected",
        "unknown_target",
    )
    assert (unknown.body["accepted"], unknown.body["target"]["workflow_id"]) == (False, "none")
    assert (action.status, action.body["reason"]) == (422, "unsupported_action")
    assert (closed.status, closed.body["reason"]) == (422, "run_not_active")
    assert await commands(client, "w1", run_id) == ["start", "cancel"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "x" * 256}, "idempotency_key"),
        ({"target": None}, "target"),
        ({"target": {"task_queue": "jobs"}}, "target.workflow_type"),
        ({"action": "signal_workflow", "target": {"workflow_id": "w"}}, "target.signal_name"),
        ({"correlation": 5}, "correlation"),
        ({"input": "text"}, "input"),
    ],
)
async def test_wrong_fields(client: Client, changed: dict[str, Any], field: str) -> None:
    body = {"action": "start_workflow", "idempotency_key": "k", "target": START} | changed
    answer = await client.control("POST", "/api/bridge-adapters/webhook/stripe", body)
    assert (answer.status, answer.body["reason"]) == (422, "validation_failed")
    assert list(answer.body["errors"]) == [field]
    bad_name = await client.control("POST", "/api/bridge-adapters/webhook/a%20b", body)
    assert (bad_name.status, list(bad_name.body["errors"])) == (422, ["adapter"])


async def test_a_signal_wakes_its_workflow(client: Client) -> None:
    await client.worker("POST", "register", ME | {"runtime": "python"})
    await client.control("POST", "/api/workflows", START | {"workflow_id": "w1"})
    await send(client, "signal_workflow", {"workflow_id": "w1", "signal_name": "paid"})

    async def seen() -> bool:
        task = (await client.worker("POST", "workflow-tasks/poll", ME)).body["task"]
        return task is not None and "SignalReceived" in [e["event_type"] for e in task["history_events"]]

    await eventually(seen)
