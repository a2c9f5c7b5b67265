"""Routes of workflows: what they hand to the engine and show of its answers (3.3, 5)."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import payloads
from cluster.errors import Refused
from cluster.workflows.engine import Started, StartRequest
from cluster.workflows.records import Payload, Run, RunState, RunStatus
from cluster.workflows.visibility import HistoryPage, RunPage, RunView
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Answer, Client
from tests.unit.api.runs import INFO, US, event


async def _start(client: Client, **fields: Any) -> Answer:
    client.node.engine.answers["start"] = Started(INFO, RunStatus.PENDING, "started_new")
    return await client.control("POST", "/api/workflows", {"workflow_type": "greeter"} | fields)


async def test_starting(client: Client) -> None:
    answer = await _start(client, workflow_id=" w1 ", input=["world"])

    assert answer.status == 201
    assert answer.body.pop("control_plane")["outcome"] == "started_new"
    assert answer.body == {
        "workflow_id": "w1",
        "run_id": "R1",
        "workflow_type": "greeter",
        "namespace": "default",
        "status": "pending",
        "business_key": None,
        "payload_codec": "avro",
        "outcome": "started_new",
    }
    request = client.node.engine.calls[0][1][0]
    assert request == StartRequest(
        namespace="default",
        workflow_type="greeter",
        task_queue="default",
        workflow_id="w1",
        input=payloads.encode(["world"]),
    )


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (None, []),
        ([], []),
        ([" a ", None, ""], [" a ", None, ""]),
        ({"name": "x"}, {"name": "x"}),
        ({"codec": "avro", "blob": "x", "more": 1}, {"codec": "avro", "blob": "x", "more": 1}),
    ],
)
async def test_bare_input_is_encoded(client: Client, sent: Any, value: Any) -> None:
    await _start(client, input=sent)

    assert client.node.engine.calls[0][1][0].input == payloads.encode(value)


async def test_an_envelope_passes_untouched(client: Client) -> None:
    await _start(client, input={"codec": "avro", "blob": " not checked "})

    assert client.node.engine.calls[0][1][0].input == Payload(codec="avro", blob=" not checked ")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"workflow_type": ""}, {"workflow_type"}),
        ({"workflow_id": "a b"}, {"workflow_id"}),
        ({"workflow_id": "x" * 129}, {"workflow_id"}),
        ({"task_queue": "x" * 256, "business_key": 5}, {"task_queue", "business_key"}),
        ({"input": "text"}, {"input"}),
        ({"input": 5}, {"input"}),
        ({"input": {"codec": "json", "blob": "x"}}, {"input.codec"}),
        ({"input": {"codec": "avro", "blob": 5}}, {"input.blob"}),
        ({"input": {"codec": "avro", "external_storage": {}}}, {"input"}),
        ({"duplicate_policy": "use_existing"}, {"duplicate_policy"}),
        ({"duplicate_policy": ["fail"]}, {"duplicate_policy"}),
        (
            {"execution_timeout_seconds": 0, "run_timeout_seconds": -1},
            {"execution_timeout_seconds", "run_timeout_seconds"},
        ),
        ({"run_timeout_seconds": 10**11}, {"run_timeout_seconds"}),
        ({"memo": ["x"]}, {"memo"}),
        ({"memo": {"x": "y" * 100}}, {"memo"}),
        ({"search_attributes": {"1a": 1, "ok": "x" * 31, "l": ["x" * 31]}}, {"search_attributes"}),
        (
            {
                "workflow_execution_timeout": 1,
                "workflow_run_timeout": 1,
                "workflow_task_timeout": None,
                "retry_policy": {},
                "idempotency_key": "",
                "request_id": "r",
            },
            {
                "workflow_execution_timeout",
                "workflow_run_timeout",
                "workflow_task_timeout",
                "retry_policy",
                "idempotency_key",
                "request_id",
            },
        ),
    ],
)
async def test_wrong_starts(open_client: OpenClient, fields: dict[str, Any], wrong: set[str]) -> None:
    client = await open_client(max_memo_bytes=100, max_search_attribute_value_bytes=30)

    answer = await _start(client, **fields)

    assert answer.status == 422
    assert set(answer.body["errors"]) == wrong
    assert answer.body["control_plane"]["operation"] == "start"
    assert answer.body["control_plane"]["validation_errors"] == answer.body["errors"]
    if "search_attributes" in wrong:
        assert len(answer.body["errors"]["search_attributes"]) == 3
    assert client.node.engine.calls == []


async def test_the_duplicate_policy_names_its_values(client: Client) -> None:
    answer = await _start(client, duplicate_policy="terminate_existing")

    assert answer.body["errors"]["duplicate_policy"] == [
        "The duplicate_policy field only supports fail or use-existing."
    ]
    assert (await _start(client, duplicate_policy="use-existing")).status == 201


async def test_an_existing_run_is_200_and_a_duplicate_409(client: Client) -> None:
    await _start(client)
    client.node.engine.answers["start"] = Started(INFO, RunStatus.WAITING, "returned_existing_active")
    existing = await client.control("POST", "/api/workflows", {"workflow_type": "greeter"})
    client.node.engine.answers["start"] = Refused(
        "duplicate_not_allowed", "Exists.", outcome="rejected_duplicate", workflow_id="w1"
    )
    refused = await client.control("POST", "/api/workflows", {"workflow_type": "greeter"})

    assert (existing.status, existing.body["status"]) == (200, "waiting")
    assert (refused.status, refused.body["outcome"]) == (409, "rejected_duplicate")
    assert refused.body["control_plane"]["reason"] == "duplicate_not_allowed"


def _view(status: RunStatus = RunStatus.WAITING, **state: Any) -> RunView:
    run = Run(info=INFO, state=RunState(status=status, **state), version=1)
    return RunView(run=run, run_count=1, is_current=True, task=None, archived=False)


async def test_describing(client: Client) -> None:
    client.node.engine.answers["describe"] = _view(
        RunStatus.COMPLETED,
        closed_at_us=US,
        closed_reason="completed",
        output=payloads.encode({"n": b"\xff"}),
    )

    body = (await client.control("GET", "/api/workflows/w1")).body

    assert body["status_bucket"] == "completed"
    assert body["is_terminal"] is True
    assert body["started_at"] == body["closed_at"] == "2027-01-15T08:00:00.123456Z"
    assert body["execution_deadline_at"] == "2027-01-15T08:00:00+00:00"
    assert body["run_deadline_at"] is None
    assert body["input"] == ["world"]
    assert body["input_envelope"]["codec"] == "avro"
    assert body["output"] == {"n": "\ufffd"}
    assert body["wait_kind"] is None
    assert [action for action, allowed in body["actions"].items() if allowed] == ["can_archive"]
    assert body["control_plane"]["run_id"] == "R1"
    assert (body["run_number"], body["run_count"], body["is_current_run"]) == (1, 1, True)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ({"task_open": True, "activities": (1,)}, "workflow-task"),
        ({"activities": (1,), "timers": (2,)}, "activity"),
        ({"timers": (2,)}, "timer"),
        ({}, None),
    ],
)
async def test_what_a_run_waits_for(client: Client, state: dict[str, Any], kind: str | None) -> None:
    client.node.engine.answers["describe"] = _view(**state)

    body = (await client.control("GET", "/api/workflows/w1/runs/R1")).body

    assert body["wait_kind"] == kind
    assert (body["wait_reason"] is None) == (kind is None)
    assert client.node.engine.calls[0][1] == ("default", "w1", "R1")


async def test_an_unreadable_output_does_not_hide_the_run(client: Client) -> None:
    client.node.engine.answers["describe"] = _view(
        RunStatus.COMPLETED, output=Payload(codec="avro", blob="broken")
    )

    body = (await client.control("GET", "/api/workflows/w1")).body

    assert body["output"] is None
    assert body["output_envelope"] == {"codec": "avro", "blob": "broken"}


async def test_listing(client: Client) -> None:
    client.node.engine.answers["list_runs"] = RunPage([_view()], "next")

    answer = await client.control(
        "GET", "/api/workflows?status=running&workflow_type=a&query=%20x+y%20&page_size=7&next_page_token=t"
    )

    assert answer.body["workflow_count"] == 1
    assert answer.body["next_page_token"] == "next"
    assert answer.body["workflows"][0]["status_bucket"] == "running"
    assert "input" not in answer.body["workflows"][0]
    assert client.node.engine.calls[0][2] == {
        "workflow_type": "a",
        "bucket": "running",
        "query": "x y",
        "page_size": 7,
        "token": "t",
    }


@pytest.mark.parametrize("query", ["status=open", "page_size=0", "page_size=201", "page_size=x"])
async def test_wrong_lists(client: Client, query: str) -> None:
    answer = await client.control("GET", f"/api/workflows?{query}")

    assert (answer.status, list(answer.body["errors"])) == (422, [query.partition("=")[0]])


async def test_history(client: Client) -> None:
    client.node.engine.answers["history"] = HistoryPage([event(1)], None)

    answer = await client.control("GET", "/api/workflows/w1/runs/R1/history?page_size=1000")

    assert answer.body["events"] == [
        {
            "id": "R1-e1",
            "sequence": 1,
            "event_type": "WorkflowStarted",
            "timestamp": "2027-01-15T08:00:00.123456Z",
            "recorded_at": "2027-01-15T08:00:00.123456Z",
            "payload": {"n": 1},
            "workflow_task_id": None,
            "workflow_command_id": None,
        }
    ]
    assert answer.body["next_page_token"] is None
    assert answer.body["control_plane"]["operation"] == "history"
    assert answer.body["control_plane"]["run_id"] == "R1"
    for size in ("0", "1001"):
        wrong = await client.control("GET", f"/api/workflows/w1/runs/R1/history?page_size={size}")
        assert wrong.status == 422
