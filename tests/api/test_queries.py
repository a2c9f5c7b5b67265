"""Queries: a client asks one node, a worker answers on another."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from cluster import payloads
from cluster.errors import StoreUnavailable
from cluster.queries.model import QueryTaskId
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client
from tests.waiting import PATIENCE, eventually

WORKER = {"worker_id": "w", "task_queue": "jobs", "runtime": "python", "supported_workflow_types": ["t"]}
POLL = {"worker_id": "w", "task_queue": "jobs"}


@pytest.fixture
async def node(another_node: OpenNode) -> Any:
    async with another_node(query_task_timeout=20, worker_poll_timeout=20) as opened:
        yield opened


async def _started(client: Client, **fields: Any) -> dict[str, Any]:
    await client.worker("POST", "register", WORKER | fields.pop("worker", {}))
    body = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs", "input": ["x"]} | fields
    started = await client.control("POST", "/api/workflows", body)
    assert started.status == 201
    found: dict[str, Any] = started.body
    return found


async def _query(client: Client, name: str = "state", body: Any = None, path: str = "") -> Answer:
    return await client.control("POST", f"/api/workflows/w1{path}/query/{name}", body or {})


async def _poll(client: Client, **fields: Any) -> Answer:
    return await client.worker("POST", "query-tasks/poll", POLL | fields)


async def _answer(client: Client, task: dict[str, Any], verb: str = "complete", **fields: Any) -> Answer:
    claim = {"lease_owner": task["lease_owner"], "query_task_attempt": task["query_task_attempt"]}
    return await client.worker("POST", f"query-tasks/{task['query_task_id']}/{verb}", claim | fields)


class Asked:
    """A query that runs in the background."""

    def __init__(self, nursery: trio.Nursery, client: Client, **fields: Any) -> None:
        self.answer: Answer | None = None
        self.done = trio.Event()
        nursery.start_soon(self._run, client, fields)

    async def _run(self, client: Client, fields: dict[str, Any]) -> None:
        self.answer = await _query(client, **fields)
        self.done.set()

    async def result(self) -> Answer:
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        assert self.answer is not None
        return self.answer


async def test_a_query_is_answered_by_a_worker_on_another_node(
    client: Client, another_node: OpenNode
) -> None:
    run_id = (await _started(client))["run_id"]
    async with (
        another_node(node_name="second", worker_poll_timeout=20) as second,
        trio.open_nursery() as nursery,
    ):
        polled: list[Answer] = []

        async def poll() -> None:
            polled.append(await _poll(client_of(second)))

        nursery.start_soon(poll)
        await eventually(lambda: second.query_polls.parked == 1)
        asked = Asked(nursery, client, body={"input": [1, "a"]})
        await eventually(lambda: bool(polled))
        task = polled[0].body["task"]
        assert (polled[0].status, polled[0].body["poll_status"]) == (200, "leased")
        assert task["query_task_attempt"] == 1
        assert (task["lease_owner"], task["task_queue"]) == ("w", "jobs")
        assert (task["workflow_id"], task["run_id"], task["workflow_type"]) == ("w1", run_id, "t")
        assert (task["query_name"], task["payload_codec"], task["run_status"]) == ("state", "avro", "pending")
        assert task["workflow_arguments"]["blob"] == payloads.encode(["x"]).blob
        assert task["query_arguments"] == {"codec": "avro", "blob": payloads.encode([1, "a"]).blob}
        assert [event["event_type"] for event in task["history_events"]] == [
            "StartAccepted",
            "WorkflowStarted",
        ]
        assert task["lease_expires_at"].endswith("Z")
        envelope = {"codec": "avro", "blob": payloads.encode({"n": 1}).blob}
        done = await _answer(client_of(second), task, result={"n": 1}, result_envelope=envelope)
        assert (done.status, done.body["outcome"], done.body["status"]) == (200, "completed", 200)
        answer = await asked.result()
        again = await _answer(client_of(second), task, result=2)

    assert answer.status == 200
    assert (answer.body["result"], answer.body["result_envelope"]) == ({"n": 1}, envelope)
    assert (answer.body["workflow_id"], answer.body["run_id"], answer.body["reason"]) == ("w1", run_id, None)
    assert (answer.body["query_name"], answer.body["target_scope"]) == ("state", "instance")
    control = answer.body["control_plane"]
    assert (control["operation"], control["operation_name"]) == ("query", "state")
    assert control["operation_name_field"] == "query_name"
    assert (again.status, again.body["reason"]) == (409, "query_task_not_leased")
    assert "query" not in answer.body


@pytest.mark.parametrize(
    ("reason", "status", "shown"),
    [
        ("rejected_unknown_query", 404, "rejected_unknown_query"),
        ("query_payload_decode_failed", 409, "query_payload_decode_failed"),
        (None, 409, "query_rejected"),
    ],
)
async def test_a_worker_that_fails_a_query(
    client: Client, reason: str | None, status: int, shown: str
) -> None:
    await _started(client)
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        task = (await _poll(client)).body["task"]
        failed = await _answer(client, task, "fail", failure={"message": "no", "reason": reason})
        answer = await asked.result()

    assert (failed.status, failed.body["outcome"], failed.body["reason"]) == (200, "failed", shown)
    assert (answer.status, answer.body["reason"], answer.body["message"]) == (status, shown, "no")
    assert (answer.body["result"], answer.body["query_name"]) == (None, "state")
    assert answer.body["control_plane"]["operation"] == "query"


async def test_a_closed_run_can_still_be_asked(client: Client) -> None:
    await _started(client)
    task = (await client.worker("POST", "workflow-tasks/poll", POLL)).body["task"]
    await client.worker(
        "POST",
        f"workflow-tasks/{task['task_id']}/complete",
        {"lease_owner": "w", "workflow_task_attempt": 1, "commands": [{"type": "complete_workflow"}]},
    )
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        query = (await _poll(client)).body["task"]
        await _answer(client, query, result="over")
        answer = await asked.result()

    assert query["run_status"] == "completed"
    assert query["history_events"][-1]["event_type"] == "WorkflowCompleted"
    assert (answer.status, answer.body["result"]) == (200, "over")


async def test_the_guard_of_answers(client: Client) -> None:
    await _started(client)
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        task = (await _poll(client)).body["task"]
        unknown = await _answer(client, task | {"query_task_id": str(QueryTaskId.draw("jobs"))}, result=1)
        nonsense = await _answer(client, task | {"query_task_id": "nonsense"}, result=1)
        owner = await _answer(client, task | {"lease_owner": "other"}, result=1)
        attempt = await _answer(client, task | {"query_task_attempt": 2}, result=1)
        missing = await _answer(client, task, result=1, result_envelope={"codec": "avro"})
        empty = await client.worker("POST", f"query-tasks/{task['query_task_id']}/fail", {})
        await _answer(client, task, result=1)
        await asked.result()

    for refused in (unknown, nonsense):
        assert (refused.status, refused.body["reason"]) == (404, "query_task_not_found")
        assert refused.body["outcome"] == "rejected"
    assert (owner.status, owner.body["reason"], owner.body["lease_owner"]) == (
        409,
        "lease_owner_mismatch",
        "w",
    )
    assert (attempt.status, attempt.body["reason"]) == (409, "query_task_attempt_mismatch")
    assert attempt.body["current_attempt"] == 1
    assert (missing.status, list(missing.body["errors"])) == (422, ["result_envelope.blob"])
    assert (empty.status, set(empty.body["errors"])) == (
        422,
        {"lease_owner", "query_task_attempt", "failure"},
    )


async def test_nobody_answers_in_time(another_node: OpenNode) -> None:
    async with another_node(query_task_timeout=0) as node:
        client = client_of(node)
        await _started(client)

        answer = await _query(client)
        polled = await _poll(client)
        keys = await node.store.call("KEYS", f"{node.store.keys.queries('default', 'jobs')}:*")

    assert (answer.status, answer.body["reason"]) == (504, "query_worker_timeout")
    assert answer.body["control_plane"]["operation"] == "query"
    assert (polled.status, polled.body["task"], polled.body["poll_status"]) == (200, None, "empty")
    assert len(keys) == 1  # the record of the query that timed out, until its time to live is over


async def test_a_full_queue_refuses_at_once(another_node: OpenNode) -> None:
    async with another_node(query_task_timeout=20, query_task_max_pending_per_queue=2) as node:
        client = client_of(node)
        await _started(client)
        async with trio.open_nursery() as nursery:
            asked = [Asked(nursery, client) for _ in range(2)]

            async def both_wait() -> bool:
                return await node.queries.pending("default", "jobs") == 2

            await eventually(both_wait)
            refused = await _query(client)
            for _ in asked:
                task = (await _poll(client)).body["task"]
                await _answer(client, task, result=task["query_task_id"])
            answers = [await query.result() for query in asked]
        room = await node.queries.pending("default", "jobs")

    assert (refused.status, refused.body["reason"]) == (429, "query_task_queue_full")
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body["result"] != answers[1].body["result"]
    assert room == 0


@pytest.mark.parametrize(
    "worker",
    [
        {"task_queue": "other"},
        {"supported_workflow_types": ["u"]},
        {"runtime": "php"},
    ],
)
async def test_nobody_can_answer(client: Client, worker: dict[str, Any]) -> None:
    await _started(client, worker=worker)

    answer = await _query(client)

    assert (answer.status, answer.body["reason"]) == (409, "query_worker_unavailable")
    assert (answer.body["query_name"], answer.body["result"]) == ("state", None)


async def test_requests_that_cannot_be_asked(client: Client) -> None:
    run_id = (await _started(client))["run_id"]

    unknown = await client.control("POST", "/api/workflows/w2/query/state", {})
    run = await _query(client, path="/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV")
    text = await _query(client, body={"input": "x"})
    blob = await _query(client, body={"input": {"codec": "avro", "blob": payloads.encode("x").blob}})
    codec = await _query(client, body={"input": {"codec": "json", "blob": "[]"}})
    long = await _query(client, name="n" * 257)
    control = await _query(client, name="a%07b")

    assert (unknown.status, unknown.body["reason"]) == (404, "instance_not_found")
    assert (run.status, run.body["reason"], run.body["run_id"]) == (
        404,
        "run_not_found",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    )
    assert (text.status, list(text.body["errors"])) == (422, ["input"])
    assert (blob.status, list(blob.body["errors"])) == (422, ["input.blob"])
    assert (codec.status, list(codec.body["errors"])) == (422, ["input.codec"])
    for refused in (long, control):
        assert (refused.status, list(refused.body["errors"])) == (422, ["query_name"])
    assert run_id


async def test_the_current_run_by_its_id(client: Client) -> None:
    run_id = (await _started(client))["run_id"]
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client, path=f"/runs/{run_id}")
        await _answer(client, (await _poll(client)).body["task"], result=1)
        answer = await asked.result()

    assert (answer.status, answer.body["target_scope"], answer.body["run_id"]) == (200, "run", run_id)


async def test_a_poll_sent_again_elsewhere_gets_the_same_query(
    client: Client, another_node: OpenNode
) -> None:
    await _started(client)
    async with another_node(node_name="second") as second, trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        first = (await _poll(client, poll_request_id="r1")).body["task"]
        again = (await _poll(client_of(second), poll_request_id="r1", timeout_seconds=5)).body["task"]
        other = (await _poll(client, poll_request_id="r2", timeout_seconds=0)).body["task"]
        await _answer(client, again, result=1)
        answer = await asked.result()
        after = (await _poll(client, poll_request_id="r1", timeout_seconds=0)).body["task"]

    assert (again["query_task_id"], again["query_task_attempt"]) == (first["query_task_id"], 1)
    assert other is None
    assert after is None
    assert answer.status == 200


async def test_a_query_of_a_poll_that_is_gone_goes_back(
    node: Node, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _started(client)
    run, claimed, go_on = node.store.run, trio.Event(), trio.Event()

    async def slow_claims(script: str, *args: Any, **options: Any) -> Any:
        reply = await run(script, *args, **options)
        if script == "query_claim" and reply and not go_on.is_set():
            claimed.set()
            await go_on.wait()
        return reply

    monkeypatch.setattr(node.store, "run", slow_claims)
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        async with trio.open_nursery() as gone:
            gone.start_soon(_poll, client)
            await claimed.wait()
            gone.cancel_scope.cancel()
        go_on.set()
        task = (await _poll(client)).body["task"]
        await _answer(client, task, result=1)
        answer = await asked.result()

    assert task["query_task_attempt"] == 2
    assert answer.status == 200


async def test_a_run_bound_to_a_build_is_asked_of_that_build(client: Client) -> None:
    await _started(client, compatibility="b1")
    unavailable = await _query(client)
    await client.worker("POST", "register", WORKER | {"worker_id": "w2", "build_id": "b1"})
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        others = (await _poll(client, timeout_seconds=0)).body["task"]
        task = (await _poll(client, worker_id="w2")).body["task"]
        await _answer(client, task, result=1)
        answer = await asked.result()

    assert unavailable.status == 409
    assert others is None
    assert answer.status == 200


async def test_parked_query_polls_end_with_the_node(node: Node, client: Client) -> None:
    await _started(client)
    answers: list[Answer] = []

    async def poll() -> None:
        answers.append(await _poll(client))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await eventually(lambda: node.query_polls.parked == 1)
        node.query_polls.close()

    assert (answers[0].status, answers[0].body["poll_status"]) == (200, "empty")


async def test_a_store_that_is_away_is_no_empty_queue(
    node: Node, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _started(client)
    run = node.store.run

    async def away(script: str, *args: Any, **options: Any) -> Any:
        if script.startswith("query_"):
            raise StoreUnavailable("away")
        return await run(script, *args, **options)

    monkeypatch.setattr(node.store, "run", away)
    polled = await _poll(client, timeout_seconds=0)
    parked = await _poll(client, timeout_seconds=1)
    asked = await _query(client)
    monkeypatch.undo()
    left = await node.store.call("KEYS", f"{node.store.keys.queries('default', 'jobs')}:*")

    for refused in (polled, parked):
        assert (refused.status, refused.body["reason"]) == (503, "query_task_queue_unavailable")
        assert (refused.body["task"], refused.body["poll_status"]) == (None, "unavailable")
        assert refused.body["error"] == refused.body["message"]
        assert (refused.body["namespace"], refused.body["task_queue"]) == ("default", "jobs")
    assert (asked.status, asked.body["reason"]) == (503, "query_task_queue_unavailable")
    assert (asked.body["query_name"], asked.body["result"]) == ("state", None)
    assert left == []


async def test_a_draining_build_is_not_asked(client: Client) -> None:
    await _started(client)
    await client.control("POST", "/api/task-queues/jobs/build-ids/drain", {"build_id": None})

    answer = await _query(client)

    assert (answer.status, answer.body["reason"]) == (409, "query_worker_unavailable")


async def test_a_query_whose_history_cannot_be_read_goes_back(
    node: Node, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _started(client)
    read = node.engine.whole_history

    async def away(run_id: str) -> Any:
        monkeypatch.setattr(node.engine, "whole_history", read)
        raise StoreUnavailable("away")

    monkeypatch.setattr(node.engine, "whole_history", away)
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client)
        refused = await _poll(client)
        task = (await _poll(client)).body["task"]
        await _answer(client, task, result=1)
        answer = await asked.result()

    assert (refused.status, refused.body["poll_status"]) == (503, "unavailable")
    assert task["query_task_attempt"] == 2
    assert answer.status == 200
