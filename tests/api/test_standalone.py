"""Standalone activities over HTTP on a real node (sdk-wire 5.5)."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import payloads
from cluster.workflows import visibility
from tests.unit.api.fakes import Answer, Client
from tests.waiting import eventually

WORKER = {"worker_id": "w", "task_queue": "jobs"}
START = {"activity_type": "resize", "task_queue": "jobs", "activity_id": "a1", "input": ["cat.png"]}


async def start(client: Client, **fields: Any) -> Answer:
    return await client.control("POST", "/api/activities", START | fields)


async def poll(client: Client, kind: str = "activity") -> dict[str, Any] | None:
    await client.worker("POST", "register", WORKER | {"runtime": "python"})
    task: dict[str, Any] | None = (await client.worker("POST", f"{kind}-tasks/poll", WORKER)).body["task"]
    return task


async def end(client: Client, task: dict[str, Any], verb: str, **fields: Any) -> Answer:
    body = {"activity_attempt_id": task["activity_attempt_id"], "lease_owner": "w", **fields}
    return await client.worker("POST", f"activity-tasks/{task['task_id']}/{verb}", body)


async def describe(client: Client, activity_id: str = "a1") -> dict[str, Any]:
    answer = await client.control("GET", f"/api/activities/{activity_id}")
    assert answer.status == 200
    body: dict[str, Any] = answer.body
    return body


async def test_an_activity_runs_and_its_host_closes_with_the_result(client: Client) -> None:
    started = await start(client)
    assert started.status == 201
    assert started.body["workflow_type"] == "dw.standalone_activity"
    assert (started.body["activity_id"], started.body["activity_type"]) == ("a1", "resize")
    waiting = await describe(client)
    assert (waiting["status"], waiting["activity_status"], waiting["attempt_count"]) == (
        "running",
        "pending",
        0,
    )
    assert await poll(client, "workflow") is None
    task = await poll(client)
    assert task is not None
    assert task["task_id"] == started.body["activity_execution_id"]
    assert task["arguments"]["blob"] == payloads.encode(["cat.png"]).blob
    running = await describe(client)
    assert (running["status"], running["activity_status"], running["attempt_count"]) == (
        "running",
        "running",
        1,
    )
    done = await end(client, task, "complete", result="small.png")
    assert (done.body["recorded"], done.body["next_task_id"]) == (True, None)
    ended = await describe(client)
    assert (ended["status"], ended["activity_status"], ended["attempt_count"]) == (
        "completed",
        "completed",
        1,
    )
    assert (ended["result"], ended["payload_codec"]) == (
        {"codec": "avro", "blob": payloads.encode("small.png").blob},
        "avro",
    )
    assert (ended["closed_reason"], ended["closed_at"] is not None) == ("completed", True)
    assert await poll(client, "workflow") is None
    host = (await client.control("GET", "/api/workflows/a1")).body
    assert (host["status"], host["output"], host["workflow_type"]) == (
        "completed",
        "small.png",
        "dw.standalone_activity",
    )


async def test_a_failed_attempt_is_tried_again(client: Client) -> None:
    await start(client, retry_policy={"max_attempts": 2, "backoff_seconds": [0]})
    task = await poll(client)
    assert task is not None
    await end(client, task, "fail", failure={"message": "boom", "type": "Boom"})
    again = await poll(client)
    assert again is not None
    assert again["attempt_number"] == 2
    await end(client, again, "fail", failure={"message": "boom again", "type": "Boom"})
    ended = await describe(client)
    assert (ended["status"], ended["activity_status"], ended["attempt_count"]) == ("failed", "failed", 2)
    assert (ended["failure"]["message"], ended["failure"]["exception_type"]) == ("boom again", "Boom")
    assert ended["result"] is None
    assert await poll(client, "workflow") is None


async def test_an_activity_nobody_takes_times_out(client: Client) -> None:
    await start(client, schedule_to_start_timeout_seconds=1)

    async def failed() -> bool:
        return bool((await describe(client))["status"] == "failed")

    await eventually(failed)
    ended = await describe(client)
    assert (ended["activity_status"], ended["closed_reason"], ended["attempt_count"]) == (
        "timed_out",
        "timed_out",
        0,
    )


async def test_ids_are_unique_and_drawn_when_absent(client: Client) -> None:
    await start(client)
    again = await start(client)
    assert (again.status, again.body["reason"]) == (409, "duplicate_not_allowed")
    drawn = await client.control("POST", "/api/activities", {"activity_type": "t", "task_queue": "jobs"})
    assert len(drawn.body["activity_id"]) == 26


async def test_only_activities_are_found_and_listed(client: Client) -> None:
    await client.control("POST", "/api/workflows", {"workflow_type": "t", "workflow_id": "w1"})
    for missing in ("w1", "none"):
        answer = await client.control("GET", f"/api/activities/{missing}")
        assert (answer.status, answer.body["reason"]) == (404, "activity_not_found")
    await start(client)
    await start(client, activity_id="a2")
    task = await poll(client)
    assert task is not None
    await end(client, task, "complete")
    for query, count in (("", 2), ("?status=running", 1), ("?status=completed", 1), ("?status=failed", 0)):
        listed = (await client.control("GET", f"/api/activities{query}")).body
        assert (len(listed["activities"]), listed["activity_count"]) == (count, count)
    page = (await client.control("GET", "/api/activities?page_size=1")).body
    following = f"/api/activities?page_size=1&next_page_token={page['next_page_token']}"
    rest = (await client.control("GET", following)).body
    seen = {item["activity_id"] for body in (page, rest) for item in body["activities"]}
    assert seen == {"a1", "a2"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"activity_type": ""}, "activity_type"),
        ({"task_queue": None}, "task_queue"),
        ({"activity_id": "no spaces"}, "activity_id"),
        ({"input": "text"}, "input"),
        ({"heartbeat_timeout_seconds": 5, "start_to_close_timeout_seconds": 4}, "heartbeat_timeout_seconds"),
        ({"start_to_close_timeout_seconds": 0}, "start_to_close_timeout_seconds"),
        ({"retry_policy": {"max_attempts": 0}}, "retry_policy.max_attempts"),
        ({"retry_policy": {"backoff_seconds": [1, -1]}}, "retry_policy.backoff_seconds.1"),
    ],
)
async def test_bad_starts(client: Client, fields: dict[str, Any], field: str) -> None:
    answer = await start(client, **fields)
    assert (answer.status, list(answer.body["errors"])) == (422, [field])


async def test_filtered_pages_are_full(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled and terminated activities share a bucket with failed ones: a filter must not thin pages."""
    monkeypatch.setattr(visibility, "LOOK_LIMIT", 3)
    for number in range(24):
        await client.control("POST", "/api/activities", START | {"activity_id": f"a{number}"})
        if number % 2:
            verb = "cancel" if number % 4 == 1 else "terminate"
            await client.control("POST", f"/api/workflows/a{number}/{verb}")
    # A workflow that only has the type of a host is no activity.
    fake = {"workflow_type": "dw.standalone_activity", "workflow_id": "fake", "task_queue": "jobs"}
    await client.control("POST", "/api/workflows", fake)

    for status, expected in (("cancelled", range(1, 24, 4)), ("running", range(0, 24, 2)), ("", range(24))):
        seen: list[str] = []
        token = ""
        while True:
            query = f"?page_size=4&status={status}&next_page_token={token}"
            page = (await client.control("GET", f"/api/activities{query}")).body
            seen += [item["activity_id"] for item in page["activities"]]
            token = page["next_page_token"]
            if token is None:
                break
            assert page["activity_count"] == len(page["activities"]) == 4
        assert sorted(seen) == sorted(f"a{number}" for number in expected)
