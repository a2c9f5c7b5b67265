"""Routes of tasks: what they hand to the engine and show of its answers (3.3, 5)."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import orjson
import pytest

from cluster import payloads
from cluster.errors import Refused
from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask, PollResult, PollStatus, WorkflowTask
from cluster.workflows.records import Payload, RunState
from nodes.api.workflow_tasks import RESUME_KEYS
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Client
from tests.unit.api.runs import CLAIM, INFO, US, event, poll

ATTEMPT = {"lease_owner": "w", "activity_attempt_id": "R1-a1-1.0"}


def _task(events: int = 2, **state: Any) -> WorkflowTask:
    return WorkflowTask(
        task_id="R1-w1",
        info=INFO,
        state=RunState(history_length=events, **state),
        attempt=3,
        owner="w",
        lease_expires_at_ms=US // 1000,
        events=[event(n + 1) for n in range(events)],
        next_page_token="Mg==",
    )


async def test_a_workflow_task_as_workers_see_it(client: Client) -> None:
    client.node.polls.result = PollResult(PollStatus.LEASED, _task(resume={"timer_id": "R1-t1"}))

    answer = await poll(client, "workflow")

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
    assert task["history_events"] == [orjson.loads(event(1)), orjson.loads(event(2))]
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

    task = (await poll(client, "workflow", accept_history_encoding=encoding)).body["task"]

    assert len(task["history_events"]) == events
    assert "history_events_compressed" not in task


async def test_long_histories_are_compressed_on_request(client: Client) -> None:
    client.node.polls.result = PollResult(PollStatus.LEASED, _task(50))

    task = (await poll(client, "workflow", accept_history_encoding="gzip")).body["task"]

    assert task["history_events"] == []
    assert task["history_events_encoding"] == "gzip"
    packed = base64.b64decode(task["history_events_compressed"])
    assert orjson.loads(gzip.decompress(packed)) == [orjson.loads(event(n + 1)) for n in range(50)]


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

    await poll(client, "workflow", **sent)

    assert client.node.polls.asked[0].timeout == timeout


async def test_what_a_poll_asks_for(client: Client) -> None:
    await poll(client, "workflow", poll_request_id="p1", history_page_size=10)
    await poll(client, "activity")

    workflow, activity = client.node.polls.asked
    assert (workflow.kind, workflow.namespace, workflow.queue) == (TaskKind.WORKFLOW, "default", "jobs")
    assert (workflow.worker_id, workflow.poll_request_id, workflow.page_size) == ("w", "p1", 10)
    assert workflow.types == {"a"}
    assert (activity.kind, activity.types) == (TaskKind.ACTIVITY, frozenset())


@pytest.mark.parametrize("status", [PollStatus.EMPTY, PollStatus.THROTTLED, PollStatus.UNAVAILABLE])
async def test_a_poll_without_a_task_says_why(client: Client, status: PollStatus) -> None:
    client.node.polls.result = PollResult(status)

    answer = await poll(client, "activity")

    assert (answer.status, answer.body["task"], answer.body["poll_status"]) == (200, None, status.value)
    assert ("reason" in answer.body) == (status is PollStatus.UNAVAILABLE)


async def test_an_activity_task_as_workers_see_it(client: Client) -> None:
    body = {"workflow_id": "w1", "activity_type": "greet", "payload_codec": "avro", "arguments": None}
    task = ActivityTask("R1-a1", "R1-a1-2.0", 2, "w", "jobs", 0, US // 1000, orjson.dumps(body))
    client.node.polls.result = PollResult(PollStatus.LEASED, task)

    shown = (await poll(client, "activity")).body["task"]

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
