"""Routes of tasks and workflows: what they hand to the engine and show of its answers (3.3, 5)."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import orjson
import pytest

from cluster import payloads
from cluster.errors import Refused, ValidationFailed
from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask, PollResult, PollStatus, WorkflowTask
from cluster.workflows.commands import COMMAND_TYPES, normalise
from cluster.workflows.engine import Started, StartRequest
from cluster.workflows.records import Payload, Run, RunInfo, RunState, RunStatus
from cluster.workflows.visibility import HistoryPage, RunPage, RunView
from nodes.api.workflow_tasks import RESUME_KEYS
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Answer, Client

US = 1_800_000_000_123_456
INFO = RunInfo(
    namespace="default",
    workflow_id="w1",
    run_id="R1",
    workflow_type="greeter",
    task_queue="jobs",
    input=payloads.encode(["world"]),
    started_at_us=US,
    execution_deadline_ms=US // 1000,
)
CLAIM = {"lease_owner": "w", "workflow_task_attempt": 1}
ATTEMPT = {"lease_owner": "w", "activity_attempt_id": "R1-a1-1.0"}


def _event(ordinal: int) -> bytes:
    return orjson.dumps(
        {
            "id": f"R1-e{ordinal}",
            "sequence": ordinal,
            "event_type": "WorkflowStarted",
            "payload": {"n": ordinal},
            "recorded_at": "2027-01-15T08:00:00.123456Z",
            "workflow_task_id": None,
            "workflow_command_id": None,
        }
    )


def _task(events: int = 2, **state: Any) -> WorkflowTask:
    return WorkflowTask(
        task_id="R1-w1",
        info=INFO,
        state=RunState(history_length=events, **state),
        attempt=3,
        owner="w",
        lease_expires_at_ms=US // 1000,
        events=[_event(n + 1) for n in range(events)],
        next_page_token="Mg==",
    )


async def _poll(client: Client, kind: str, **fields: Any) -> Answer:
    register = {
        "worker_id": "w",
        "task_queue": "jobs",
        "runtime": "python",
        "supported_workflow_types": ["a"],
    }
    await client.worker("POST", "register", register)
    return await client.worker(
        "POST", f"{kind}-tasks/poll", {"worker_id": "w", "task_queue": "jobs"} | fields
    )


async def test_a_workflow_task_as_workers_see_it(client: Client) -> None:
    client.node.polls.result = PollResult(PollStatus.LEASED, _task(resume={"timer_id": "R1-t1"}))

    answer = await _poll(client, "workflow")

    assert (answer.status, answer.body["poll_status"]) == (200, "leased")
    task = answer.body["task"]
    assert task["task_id"] == "R1-w1"
    assert task["task_kind"] == "workflow"
    assert (task["workflow_id"], task["run_id"], task["workflow_type"]) == ("w1", "R1", "greeter")
    assert (task["workflow_task_attempt"], task["lease_owner"]) == (3, "w")
    assert task["lease_expires_at"] == "2027-01-15T08:00:00.123000Z"
    assert task["payload_codec"] == "avro"
    assert task["arguments"] == {"codec": "avro", "blob": payloads.encode(["world"]).blob}
    assert task["run_status"] == "pending"
    assert task["last_history_sequence"] == task["total_history_events"] == 2
    assert task["history_events"] == [orjson.loads(_event(1)), orjson.loads(_event(2))]
    assert task["next_history_page_token"] == "Mg=="
    assert task["compatibility"] is None
    assert set(RESUME_KEYS) <= task.keys()
    assert {name: task[name] for name in RESUME_KEYS if task[name] is not None} == {"timer_id": "R1-t1"}
    assert len(RESUME_KEYS) == 20


@pytest.mark.parametrize(("events", "encoding"), [(49, "gzip"), (50, "br"), (50, None)])
async def test_short_or_unasked_histories_are_plain(
    client: Client, events: int, encoding: str | None
) -> None:
    client.node.polls.result = PollResult(PollStatus.LEASED, _task(events))

    task = (await _poll(client, "workflow", accept_history_encoding=encoding)).body["task"]

    assert len(task["history_events"]) == events
    assert "history_events_compressed" not in task


async def test_long_histories_are_compressed_on_request(client: Client) -> None:
    client.node.polls.result = PollResult(PollStatus.LEASED, _task(50))

    task = (await _poll(client, "workflow", accept_history_encoding="gzip")).body["task"]

    assert task["history_events"] == []
    assert task["history_events_encoding"] == "gzip"
    packed = base64.b64decode(task["history_events_compressed"])
    assert orjson.loads(gzip.decompress(packed)) == [orjson.loads(_event(n + 1)) for n in range(50)]


@pytest.mark.parametrize(
    ("sent", "timeout"),
    [
        ({}, 7),
        ({"timeout_seconds": 30}, 30),
        ({"timeout_seconds": "5"}, 5),
        ({"timeout_seconds": 900}, 60),
        ({"timeout_seconds": -1}, 0),
        ({"timeout_seconds": None}, 7),
    ],
)
async def test_how_long_a_poll_waits(open_client: OpenClient, sent: dict[str, Any], timeout: int) -> None:
    client = await open_client(worker_poll_timeout=7)

    await _poll(client, "workflow", **sent)

    assert client.node.polls.asked[0].timeout == timeout


async def test_what_a_poll_asks_for(client: Client) -> None:
    await _poll(client, "workflow", poll_request_id="p1", history_page_size=10)
    await _poll(client, "activity")

    workflow, activity = client.node.polls.asked
    assert (workflow.kind, workflow.namespace, workflow.queue) == (TaskKind.WORKFLOW, "default", "jobs")
    assert (workflow.worker_id, workflow.poll_request_id, workflow.page_size) == ("w", "p1", 10)
    assert workflow.types == {"a"}
    assert (activity.kind, activity.types) == (TaskKind.ACTIVITY, frozenset())


@pytest.mark.parametrize("status", [PollStatus.EMPTY, PollStatus.THROTTLED, PollStatus.UNAVAILABLE])
async def test_a_poll_without_a_task_says_why(client: Client, status: PollStatus) -> None:
    client.node.polls.result = PollResult(status)

    answer = await _poll(client, "activity")

    assert (answer.status, answer.body["task"], answer.body["poll_status"]) == (200, None, status.value)
    assert ("reason" in answer.body) == (status is PollStatus.UNAVAILABLE)


async def test_an_activity_task_as_workers_see_it(client: Client) -> None:
    body = {"workflow_id": "w1", "activity_type": "greet", "payload_codec": "avro", "arguments": None}
    task = ActivityTask("R1-a1", "R1-a1-2.0", 2, "w", "jobs", 0, US // 1000, orjson.dumps(body))
    client.node.polls.result = PollResult(PollStatus.LEASED, task)

    shown = (await _poll(client, "activity")).body["task"]

    assert shown == body | {
        "task_id": "R1-a1",
        "activity_attempt_id": "R1-a1-2.0",
        "attempt_number": 2,
        "task_queue": "jobs",
        "lease_owner": "w",
        "lease_expires_at": "2027-01-15T08:00:00.123000Z",
    }


@pytest.mark.parametrize("action", ["history", "heartbeat", "complete", "fail"])
async def test_workflow_task_calls_need_their_claim(client: Client, action: str) -> None:
    answer = await client.worker("POST", f"workflow-tasks/R1-w1/{action}", {"workflow_task_attempt": 0})

    assert answer.status == 422
    assert {"lease_owner", "workflow_task_attempt"} <= set(answer.body["errors"])
    if action == "complete":
        assert "commands" in answer.body["errors"]
    if action == "fail":
        assert "failure" in answer.body["errors"]


async def test_completing_hands_over_the_raw_commands(client: Client) -> None:
    commands = [{"type": "complete_workflow", "result": {"codec": "avro", "blob": " x "}}]
    client.node.engine.answers["complete_workflow_task"] = {"outcome": "completed"}

    answer = await client.worker("POST", "workflow-tasks/R1-w1/complete", CLAIM | {"commands": commands})

    assert (answer.status, answer.body["outcome"]) == (200, "completed")
    assert client.node.engine.calls == [
        ("complete_workflow_task", ("default", "R1-w1", "w", 1, commands, None), {})
    ]


async def test_a_wrong_command_for_a_missing_task_is_a_field_error(client: Client) -> None:
    client.node.engine.answers["complete_workflow_task"] = Refused("task_not_found", "no", status=404)
    commands = [{"type": "start_timer", "delay_seconds": 1, "retry_policy": {}}]

    answer = await client.worker("POST", "workflow-tasks/x/complete", CLAIM | {"commands": commands})

    assert (answer.status, list(answer.body["errors"])) == (422, ["commands.0.retry_policy"])


async def test_ownership_errors_say_error(client: Client) -> None:
    client.node.engine.answers["heartbeat_workflow_task"] = Refused(
        "lease_owner_mismatch", "Another worker.", lease_owner="v", task_id="R1-w1", workflow_task_attempt=1
    )

    answer = await client.worker("POST", "workflow-tasks/R1-w1/heartbeat", CLAIM)

    assert answer.status == 409
    assert (answer.body["reason"], answer.body["error"]) == ("lease_owner_mismatch", "Another worker.")
    assert (answer.body["lease_owner"], answer.body["task_id"]) == ("v", "R1-w1")
    assert "message" not in answer.body


async def test_a_failure_may_have_an_empty_message(client: Client) -> None:
    failure = {"message": "", "type": "ValueError", "new": 1}

    workflow = await client.worker("POST", "workflow-tasks/R1-w1/fail", CLAIM | {"failure": failure})
    activity = await client.worker("POST", "activity-tasks/R1-a1/fail", ATTEMPT | {"failure": failure})

    assert workflow.status == activity.status == 200
    assert [call[1][-1] for call in client.node.engine.calls] == [{"message": "", "type": "ValueError"}] * 2


@pytest.mark.parametrize(
    ("failure", "wrong"),
    [
        ({}, "failure.message"),
        ({"message": 1}, "failure.message"),
        ({"message": "m", "kind": "sad"}, "failure.kind"),
        ({"message": "m", "timeout_type": "late"}, "failure.timeout_type"),
        ({"message": "m", "non_retryable": "maybe"}, "failure.non_retryable"),
        ("m", "failure"),
        (None, "failure"),
    ],
)
async def test_wrong_activity_failures(client: Client, failure: Any, wrong: str) -> None:
    answer = await client.worker("POST", "activity-tasks/R1-a1/fail", ATTEMPT | {"failure": failure})

    assert (answer.status, list(answer.body["errors"])) == (422, [wrong])


async def test_an_activity_failure_keeps_its_details(client: Client) -> None:
    failure = {
        "message": " m ",
        "class": "builtins.ValueError",
        "code": 7,
        "non_retryable": "1",
        "kind": "application",
        "details": {"codec": "avro", "blob": " b "},
    }

    await client.worker("POST", "activity-tasks/R1-a1/fail", ATTEMPT | {"failure": failure})

    assert client.node.engine.calls[0][1][-1] == failure | {"non_retryable": True}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ({"codec": "avro", "blob": " any "}, Payload(codec="avro", blob=" any ")),
        ({"codec": "avro", "blob": None}, None),
        (" plain ", payloads.encode(" plain ")),
        (payloads.encode(1).blob, payloads.encode(1)),
        ({"a": ["", " b "]}, payloads.encode({"a": ["", " b "]})),
        ([], payloads.encode([])),
    ],
)
async def test_results_are_payloads(client: Client, result: Any, expected: Payload | None) -> None:
    await client.worker("POST", "activity-tasks/R1-a1/complete", ATTEMPT | {"result": result})

    assert client.node.engine.calls[0][1] == ("default", "R1-a1", "R1-a1-1.0", "w", expected)


async def test_activity_heartbeats_carry_progress(client: Client) -> None:
    progress = {"message": "half", "current": 1, "total": 2.5, "unit": "rows", "details": {"": None}}

    good = await client.worker("POST", "activity-tasks/R1-a1/heartbeat", ATTEMPT | progress | {"x": 1})
    wrong = await client.worker(
        "POST", "activity-tasks/R1-a1/heartbeat", ATTEMPT | {"details": [], "current": "x"}
    )

    assert good.status == 200
    assert client.node.engine.calls[0][1][-1] == progress
    assert set(wrong.body["errors"]) == {"details", "current"}


# -- workflows --------------------------------------------------------------------------------


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
    client.node.engine.answers["history"] = HistoryPage([_event(1)], None)

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


# -- discovery --------------------------------------------------------------------------------


async def test_the_front_says_where_to_go(client: Client) -> None:
    front = await client.send("GET", "/")
    assert (front.status, front.body["name"]) == (200, "Headrace")
    for place in ("openapi", "health", "ready", "cluster_info", "metrics"):
        found = await client.send("GET", front.body["links"][place])
        assert found.status in (200, 401, 503), place
    assert (await client.send("HEAD", "/")).status == 200


async def test_only_applied_commands_are_advertised(client: Client) -> None:
    info = (await client.send("GET", "/api/cluster/info")).body
    advertised = info["worker_protocol"]["server_capabilities"]["supported_workflow_task_commands"]

    assert advertised == list(COMMAND_TYPES)
    for name in ("start_service_operation", *advertised):
        try:
            normalise([{"type": name}])
            known = True
        except ValidationFailed as fault:
            known = "commands.0.type" not in fault.errors
        assert known == (name in advertised), name


async def test_cluster_info_carries_no_version_header(client: Client) -> None:
    answer = await client.send("GET", "/api/cluster/info")

    assert not any(name.startswith("x-durable-workflow") for name in answer.headers)
    assert answer.body["limits"]["max_payload_bytes"] == 2097152
    assert answer.body["worker_protocol"]["version"] == "1.20"
    assert answer.body["control_plane"]["version"] == "2"
    stages = answer.body["control_plane"]["request_contract"]["operations"]["update"]["fields"]["wait_for"]
    assert stages["canonical_values"] == ["accepted", "completed"]
    assert "namespace" not in answer.body


async def test_health_and_readiness(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="token")

    health = await client.send("GET", "/api/health")
    unset = await client.send("GET", "/api/ready")

    assert (health.status, health.body["status"], health.body["checks"]) == (
        200,
        "serving",
        {"database": "ok"},
    )
    assert (unset.status, unset.body["status"]) == (503, "not_ready")
    assert unset.body["checks"]["auth"]["status"] == "missing"
    assert unset.body["checks"]["migrations"] == {"status": "ok"}
    assert unset.body["checks"]["default_namespace"] == {"status": "ok", "namespace": "default"}
    assert unset.body["checks"]["cache"] == {"status": "ok", "store": "redis"}
    assert client.node.store.strings == {}


async def test_a_node_that_leaves_is_not_ready(client: Client) -> None:
    assert (await client.send("GET", "/api/ready")).status == 200
    client.node.stopping = True
    assert (await client.send("GET", "/api/ready")).status == 503
    assert (await client.send("GET", "/api/health")).status == 200


async def test_metrics_name_what_happened(client: Client) -> None:
    await _poll(client, "workflow")
    await client.worker(
        "POST", "workflow-tasks/x/complete", CLAIM | {"commands": [{"type": "complete_workflow"}]}
    )
    await client.send("GET", "/api/secret-path")

    text = (await client.send("GET", "/metrics")).body.decode()

    assert 'headrace_http_requests_total{route="/api/worker/register",status="2xx"} 1.0' in text
    assert 'headrace_http_requests_total{route="unmatched",status="4xx"} 1.0' in text
    assert 'headrace_polls_total{kind="workflow",status="empty"} 1.0' in text
    assert 'headrace_tasks_total{kind="workflow",outcome="completed"} 1.0' in text
    assert "headrace_partitions_owned 2.0" in text
    assert "headrace_store_commands_total 7.0" in text
    assert "headrace_build_info{" in text
    assert "secret-path" not in text
