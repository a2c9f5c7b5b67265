"""Registration, heartbeats, deregistration and the poll guard (4.1 to 4.3)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cluster.queues.model import PollStatus
from cluster.store.store import Store
from cluster.workers import Announcement, WorkerStore
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Answer, Client

BASE = {"worker_id": "w1", "task_queue": "jobs", "runtime": "python"}
TYPES = {"supported_workflow_types": ["a"], "workflow_definition_fingerprints": {"a": "sha256:1"}}


async def _register(client: Client, **fields: Any) -> Answer:
    namespace = fields.pop("namespace", "default")
    return await client.worker("POST", "register", BASE | fields, **{"x-namespace": namespace})


async def test_registering(client: Client) -> None:
    answer = await _register(client)

    assert answer.status == 201
    assert answer.body["worker_id"] == "w1"
    assert answer.body["registered"] is True
    assert len(answer.body["registration_token"]) == 32
    assert int(answer.body["registration_token"], 16) >= 0
    assert answer.body["heartbeat_interval_seconds"] == 20
    assert answer.body["stale_after_seconds"] == 60


async def test_the_cadence_follows_the_setting(open_client: OpenClient) -> None:
    client = await open_client(worker_stale_after_seconds=2)

    assert (await _register(client)).body["heartbeat_interval_seconds"] == 1


async def test_an_id_is_made_when_none_is_given(client: Client) -> None:
    first, second = await _register(client, worker_id=None), await _register(client, worker_id=" ")

    assert first.status == second.status == 201
    assert len({first.body["worker_id"], second.body["worker_id"]}) == 2


@pytest.mark.parametrize("runtime", ["php", "python", "rust", "typescript", "go", "java", "external"])
async def test_known_runtimes(client: Client, runtime: str) -> None:
    assert (await _register(client, runtime=runtime)).status == 201


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"task_queue": None, "runtime": ""}, {"task_queue", "runtime"}),
        ({"runtime": "cobol"}, {"runtime"}),
        ({"worker_id": "x" * 256}, {"worker_id"}),
        ({"worker_id": 5}, {"worker_id"}),
        ({"sdk_version": "x" * 65}, {"sdk_version"}),
        ({"supported_workflow_types": "a"}, {"supported_workflow_types"}),
        ({"supported_workflow_types": ["a", 1]}, {"supported_workflow_types.1"}),
        ({"supported_activity_types": {}}, {"supported_activity_types"}),
        ({"workflow_definition_fingerprints": ["a"]}, {"workflow_definition_fingerprints"}),
        ({"workflow_definition_fingerprints": {"a": "x" * 256}}, {"workflow_definition_fingerprints.a"}),
        ({"max_concurrent_workflow_tasks": 0}, {"max_concurrent_workflow_tasks"}),
        ({"max_concurrent_activity_tasks": "0"}, {"max_concurrent_activity_tasks"}),
    ],
)
async def test_wrong_fields(client: Client, fields: dict[str, Any], wrong: set[str]) -> None:
    answer = await _register(client, **fields)

    assert answer.status == 422
    assert set(answer.body["errors"]) == wrong
    assert answer.body["message"]
    assert "error" not in answer.body
    assert client.node.store.published == []


async def test_what_newer_clients_send_is_ignored(client: Client) -> None:
    answer = await _register(client, capabilities=["x", 1], task_slots={"a": 1}, process_metrics=None, new=[])

    assert answer.status == 201


async def test_a_registration_replaces_the_old_one(client: Client) -> None:
    await _register(client, sdk_version="1", supported_activity_types=["b"], max_concurrent_workflow_tasks=5)
    await _register(client, sdk_version="2")

    found = await client.node.workers.get("default", "w1")
    assert found is not None
    assert found.sdk_version == "2"
    assert found.supported_activity_types == ()
    assert found.max_concurrent_workflow_tasks == 100


async def test_fingerprints_are_kept_while_their_type_is_advertised(client: Client) -> None:
    await _register(client, **TYPES)
    kept = await _register(client, supported_workflow_types=["a", "b"])
    same = await _register(client, **TYPES)
    omitted = await _register(client)

    assert kept.status == same.status == omitted.status == 201
    found = await client.node.workers.get("default", "w1")
    assert found is not None
    assert found.workflow_definition_fingerprints == {"a": "sha256:1"}


async def test_a_changed_fingerprint_is_refused_and_nothing_written(client: Client) -> None:
    await _register(client, **TYPES)
    before = dict(client.node.store.hashes)
    changed = {"workflow_definition_fingerprints": {"a": " sha256:2 "}}

    answer = await _register(client, **changed)

    assert answer.status == 409
    assert answer.body["reason"] == "workflow_definition_changed"
    assert answer.body["workflow_type"] == "a"
    assert answer.body["error"]
    assert answer.body["remediation"]
    assert client.node.store.hashes == before


async def test_a_type_no_longer_advertised_may_come_back_changed(client: Client) -> None:
    await _register(client, **TYPES)
    await _register(client, supported_workflow_types=["b"])

    answer = await _register(client, workflow_definition_fingerprints={"a": "sha256:2"})

    assert answer.status == 201


async def test_namespaces_do_not_share_workers(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "other"})
    await _register(client, task_queue="one")
    await _register(client, task_queue="two", namespace="other")

    first = await client.node.workers.get("default", "w1")
    second = await client.node.workers.get("other", "w1")

    assert first is not None
    assert second is not None
    assert (first.task_queue, second.task_queue) == ("one", "two")


async def test_heartbeats(client: Client) -> None:
    await _register(client)

    known = await client.worker("POST", "heartbeat", {"worker_id": "w1", "task_slots": {}})
    unknown = await client.worker("POST", "heartbeat", {"worker_id": "w2"})
    empty = await client.worker("POST", "heartbeat", {})

    assert known.status == 200
    assert known.body["acknowledged"] is True
    assert (known.body["worker_id"], known.body["stale_after_seconds"]) == ("w1", 60)
    assert (unknown.status, unknown.body["reason"]) == (404, "worker_not_registered")
    assert (unknown.body["error"], unknown.body["worker_id"]) == ("Worker not registered.", "w2")
    assert (empty.status, set(empty.body["errors"])) == (422, {"worker_id"})


async def test_fenced_deregistration_can_be_repeated(client: Client) -> None:
    token = (await _register(client)).body["registration_token"]
    target = "registrations/w1/deregister"

    first = await client.worker("POST", target, {"registration_token": token})
    second = await client.worker("POST", target, {"registration_token": token})
    await _register(client)
    third = await client.worker("POST", target, {"registration_token": token})

    for answer in (first, second, third):
        assert answer.status == 200
        assert answer.body["worker_id"] == "w1"
        assert answer.body["outcome"] == "deregistered"
        assert answer.body["recovered_workflow_task_count"] == 0
        assert answer.body["registration_token"] == token
    assert await client.node.workers.get("default", "w1") is not None


async def test_another_token_is_refused(client: Client) -> None:
    old = (await _register(client)).body["registration_token"]
    await _register(client)
    target = "registrations/w1/deregister"

    for token in (old, "0" * 32):
        answer = await client.worker("POST", target, {"registration_token": token})
        assert (answer.status, answer.body["reason"]) == (409, "registration_token_mismatch")
    for token in ("", "é" * 32, "A" * 32, "0" * 31, None):
        assert (await client.worker("POST", target, {"registration_token": token})).status == 422
    assert await client.node.workers.get("default", "w1") is not None


async def test_unfenced_deregistration(client: Client) -> None:
    await _register(client)

    first = await client.worker("DELETE", "registrations/w1")
    second = await client.worker("DELETE", "registrations/w1")

    assert (first.status, first.body["outcome"]) == (200, "deregistered")
    assert "registration_token" not in first.body
    assert (second.status, second.body["reason"]) == (404, "worker_not_found")


@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_who_may_poll(client: Client, kind: str) -> None:
    async def poll(**fields: str) -> Answer:
        return await client.worker(
            "POST", f"{kind}-tasks/poll", {"worker_id": "w1", "task_queue": "jobs"} | fields
        )

    unknown = await poll()
    await _register(client, build_id="b1")
    queue = await poll(task_queue="other")
    build = await poll(build_id="b2")
    same = await poll(build_id="b1")
    silent = await poll()
    missing = await client.worker("POST", f"{kind}-tasks/poll", {})

    assert (unknown.status, unknown.body["reason"]) == (412, "worker_not_registered")
    assert unknown.body["error"] == "Worker not registered."
    assert (queue.status, queue.body["reason"]) == (409, "task_queue_mismatch")
    assert (queue.body["registered_task_queue"], queue.body["requested_task_queue"]) == ("jobs", "other")
    assert (build.status, build.body["reason"]) == (409, "build_id_mismatch")
    assert (build.body["registered_build_id"], build.body["requested_build_id"]) == ("b1", "b2")
    for refused in (unknown, queue, build):
        assert refused.body["task"] is None
    for passed in (same, silent):
        assert (passed.status, passed.body["task"], passed.body["poll_status"]) == (200, None, "empty")
    assert (missing.status, set(missing.body["errors"])) == (422, {"worker_id", "task_queue"})
    assert [request.marker for request in client.node.polls.asked] == ["b1", "b1"]


async def test_an_unversioned_worker_may_name_any_build(client: Client) -> None:
    await _register(client)

    answer = await client.worker(
        "POST", "workflow-tasks/poll", {"worker_id": "w1", "task_queue": "jobs", "build_id": "b"}
    )

    assert answer.body["poll_status"] == PollStatus.EMPTY
    assert client.node.polls.asked[0].marker == ""


async def test_a_thousand_polls_cost_no_command(client: Client) -> None:
    await _register(client)
    body = {"worker_id": "w1", "task_queue": "jobs"}
    await client.worker("POST", "workflow-tasks/poll", body)
    client.node.store.commands.clear()

    for _ in range(1000):
        await client.worker("POST", "workflow-tasks/poll", body)

    assert client.node.store.commands == []
    assert len(client.node.polls.asked) == 1001


async def test_a_registration_elsewhere_is_heard(client: Client) -> None:
    await _register(client)
    assert await client.node.workers.get("default", "w1") is not None
    other = WorkerStore(cast(Store, client.node.store), client.node.clock.now_ms)

    await other.register(Announcement("default", "w1", "elsewhere", "go"))
    moved = await client.node.workers.get("default", "w1")
    await other.deregister("default", "w1", None)

    assert moved is not None
    assert moved.task_queue == "elsewhere"
    assert await client.node.workers.get("default", "w1") is None


@pytest.mark.parametrize("interval", [True, "10", 0, -1, 10**9, None])
async def test_a_strange_interval_of_heartbeats_is_left_out(client: Client, interval: Any) -> None:
    """It is only shown, so it is no reason to refuse a worker; and the registration stays readable."""
    for _ in range(2):
        assert (await _register(client, heartbeat_interval_seconds=interval)).status == 201
    worker = await client.node.workers.get("default", "w1")
    assert worker is not None
    assert worker.heartbeat_interval_seconds is None
