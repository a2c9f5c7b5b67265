"""Routes of worker sessions, and what polls make of them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.times import iso_ms
from nodes.node import Node
from tests.api.conftest import client_of
from tests.unit.api.fakes import Answer, Client

OTHER = {"worker_id": "b", "session_id": "s"}
MINE = {"worker_id": "a", "session_id": "s"}
PATH = "sessions/s"


@pytest.fixture
async def client(node: Node) -> Client:
    """Requests to a node that knows the workers a and b."""
    client = client_of(node)
    for worker_id in ("a", "b"):
        body = {"worker_id": worker_id, "task_queue": "jobs", "runtime": "python"}
        await client.worker("POST", "register", body | {"max_concurrent_worker_sessions": 2})
    return client


def _seen(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.body.get("reason")


async def test_one_worker_holds_a_session(node: Node, client: Client) -> None:
    wire = MINE | {"lease_seconds": 60, "ttl_seconds": 100, "requirements": ["gpu"], "queue": "jobs"}
    created = await client.worker("POST", "sessions", wire)
    again = await client.worker("POST", "sessions", wire)
    body = created.body
    assert (created.status, again.status) == (201, 200)
    assert (body["status"], body["lease_owner"], body["session_id"]) == ("active", "a", "s")
    assert (body["lease_seconds"], body["max_concurrent_activities"]) == (60, 1)
    assert body["requirements"] == ["gpu"]
    assert iso_ms(node.clock.now_ms()) < body["lease_expires_at"] < body["ttl_expires_at"]
    assert body["worker_session"]["lease_owner"] == "a"
    assert "protocol_version" in body

    assert _seen(await client.worker("POST", "sessions", OTHER)) == (409, "worker_session_held")
    renewed = await client.worker("POST", f"{PATH}/heartbeat", {"worker_id": "a", "lease_seconds": 90})
    assert (renewed.status, renewed.body["renewed"]) == (200, True)
    assert renewed.body["lease_expires_at"] > body["lease_expires_at"]
    late = await client.worker("POST", f"{PATH}/heartbeat", {"worker_id": "b"})
    assert _seen(late) == (409, "worker_session_held")
    assert _seen(await client.worker("DELETE", PATH, {"worker_id": "b"})) == (409, "worker_session_held")

    for _ in range(2):
        closed = await client.worker("DELETE", PATH, {"worker_id": "a", "reason": "done"})
        assert (closed.status, closed.body["outcome"], closed.body["status"]) == (200, "closed", "closed")
    gone = await client.worker("POST", f"{PATH}/heartbeat", {"worker_id": "a"})
    assert _seen(gone) == (404, "worker_session_not_found")
    assert (await client.worker("POST", "sessions", OTHER)).status == 201


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"worker_id": "x"}, (404, "worker_not_registered")),
        ({"queue": "others"}, (409, "task_queue_mismatch")),
        ({"create_if_missing": False}, (404, "worker_session_not_found")),
        ({"session_id": " "}, (422, "validation_failed")),
        ({"lease_seconds": 0}, (422, "validation_failed")),
        ({"ttl_seconds": "x"}, (422, "validation_failed")),
        ({"max_concurrent_activities": 0}, (422, "validation_failed")),
        ({"requirements": "gpu"}, (422, "validation_failed")),
        ({"create_if_missing": "maybe"}, (422, "validation_failed")),
    ],
)
async def test_what_is_refused(client: Client, fields: dict[str, Any], seen: tuple[int, str]) -> None:
    assert _seen(await client.worker("POST", "sessions", MINE | fields)) == seen
    assert _seen(await client.worker("DELETE", PATH, {"worker_id": "a"})) == (404, "worker_session_not_found")


async def test_a_silent_holder_s_session_goes_to_another_or_is_lost(node: Node, client: Client) -> None:
    record = node.store.keys.worker_session("ses", "default", "s")
    for allowed, seen in ((True, (201, None)), (False, (409, "worker_session_lost"))):
        await client.worker("POST", "sessions", MINE | {"allow_reacquire_after_failure": allowed})
        await node.store.call("HSET", record, "lease", 1)
        assert _seen(await client.worker("POST", "sessions", OTHER)) == seen
        for worker_id in ("a", "b"):
            await client.worker("DELETE", PATH, {"worker_id": worker_id})


async def test_as_many_sessions_as_were_registered(client: Client) -> None:
    answers = [
        await client.worker("POST", "sessions", MINE | {"session_id": f"s {number}:{{}}"})
        for number in range(3)
    ]
    assert [_seen(answer) for answer in answers] == [
        (201, None),
        (201, None),
        (409, "worker_session_limit_reached"),
    ]


async def test_a_task_carries_its_session_to_the_holder(client: Client) -> None:
    wire = {"session_id": "s", "lease_seconds": 30}
    start = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs"}
    await client.control("POST", "/api/workflows", start)
    mine = {"worker_id": "a", "task_queue": "jobs"}
    task = (await client.worker("POST", "workflow-tasks/poll", mine)).body["task"]
    command = {"type": "schedule_activity", "activity_type": "act", "worker_session": wire}
    target = f"workflow-tasks/{task['task_id']}/complete"
    claim = {"lease_owner": "a", "workflow_task_attempt": task["workflow_task_attempt"]}
    bad = command | {"worker_session": {"session_id": "", "lease_seconds": 0, "create_if_missing": 3}}
    refused = await client.worker("POST", target, claim | {"commands": [bad]})
    assert (await client.worker("POST", target, claim | {"commands": [command]})).status == 200

    await client.worker("POST", "sessions", MINE)
    other = await client.worker("POST", "activity-tasks/poll", mine | {"worker_id": "b"})
    found = (await client.worker("POST", "activity-tasks/poll", mine)).body["task"]
    listed = await client.control("GET", "/api/task-queues/jobs")

    at = "commands.0.worker_session."
    wrong = {at + name for name in ("session_id", "lease_seconds", "create_if_missing")}
    assert (refused.status, set(refused.body["errors"])) == (422, wrong)
    assert (other.body["task"], other.body["poll_status"]) == (None, "empty")
    assert found["worker_session"] == wire
    assert listed.status == 200


async def test_sessions_are_advertised(client: Client) -> None:
    info = (await client.control("GET", "/api/cluster/info")).body
    offered = info["worker_protocol"]["server_capabilities"]["worker_sessions"]
    assert offered["supported"] is True
