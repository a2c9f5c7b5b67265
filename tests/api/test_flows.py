"""Flows over HTTP, on a real node."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from cluster.flows.engine import ResultKind
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.cluster.flows.lab import HandOut, Lab, complete, go_to, wait_for
from tests.unit.api.fakes import Answer, Client
from tests.waiting import PATIENCE, eventually

START = {"flow_type": "shop", "flow_id": "f1", "start_step": "first"}


@pytest.fixture
def workers(node: Node) -> Lab:
    lab = Lab(node.store, namespace="default")
    lab.engine = node.flows
    return lab


async def start(client: Client, **fields: Any) -> Answer:
    return await client.control("POST", "/api/flows", START | fields)


async def take_soon(workers: Lab) -> HandOut:
    taken: list[HandOut] = []

    async def got() -> bool:
        taken.extend(await workers.take())
        return bool(taken)

    await eventually(got)
    return taken[0]


async def test_from_start_to_result(client: Client, workers: Lab) -> None:
    started = await start(client, input={"n": 1}, attributes={"a": [1]})
    assert (started.status, started.body["outcome"]) == (201, "started_new")

    described = (await client.control("GET", "/api/flows/f1")).body
    (step,) = described["open_steps"]
    assert (described["status"], described["attributes"]) == ("running", {"a": [1]})
    assert (step["step_execution_id"], step["state"], step["attempt"]) == ("first-1", "queued", 1)
    taken = await workers.take_one()
    (step,) = (await client.control("GET", "/api/flows/f1")).body["open_steps"]
    assert (step["state"], step["worker_id"], step["pending_reason"]) == ("running", "w1", None)
    await workers.fail(taken, "broken", retry_after_seconds=3)
    (step,) = (await client.control("GET", "/api/flows/f1")).body["open_steps"]
    assert (step["state"], step["attempt"]) == ("backoff", 2)
    assert step["last_failure"]["message"] == "broken"

    running = await client.control("GET", "/api/flows/f1/wait?timeout_seconds=0")
    assert (running.status, running.body["is_terminal"]) == (202, False)
    taken = await take_soon(workers)
    assert taken.claim.attempt == 2
    await workers.finish(taken, complete({"total": 3}))
    ended = await client.control("GET", "/api/flows/f1/wait")
    assert (ended.status, ended.body["status"], ended.body["result"]) == (200, "completed", {"total": 3})
    steps = (await client.control("GET", "/api/flows/f1/steps?page_size=1")).body
    assert [entry["event"] for entry in steps["steps"]] == ["failed"]
    more = f"/api/flows/f1/steps?next_page_token={steps['next_page_token']}"
    assert [entry["event"] for entry in (await client.control("GET", more)).body["steps"]] == ["completed"]


@pytest.mark.parametrize(
    ("path", "body", "field", "hint"),
    [
        ("", START | {"options": {"execute": {}}}, "options", "Did you mean step_options?"),
        ("", START | {"flowId": None}, "flowId", "Did you mean flow_id?"),
        ("/f1/stop", {"kind": "terminate"}, "kind", "Known fields are type, reason, wait."),
        ("/f1/channels/c", {"vlaue": 1}, "vlaue", "Did you mean value?"),
        ("/f1/rpc/total", {"inputs": 1}, "inputs", "Did you mean input?"),
    ],
)
async def test_a_misspelt_member_is_refused_by_name(
    client: Client, path: str, body: dict[str, Any], field: str, hint: str
) -> None:
    if path:
        await start(client)
    refused = await client.control("POST", f"/api/flows{path}", body)
    assert (refused.status, refused.body["reason"]) == (422, "validation_failed")
    assert refused.body["errors"] == {field: [f"There is no field {field}. {hint}"]}
    flow = await client.control("GET", "/api/flows/f1")
    assert flow.body.get("status") == ("running" if path else None), "nothing was done"


async def test_waiting_ends_with_the_flow_wherever_it_ends(
    client: Client, workers: Lab, another_node: OpenNode
) -> None:
    await start(client)
    taken = await workers.take_one()
    answers: list[Answer] = []
    async with another_node(node_name="second") as second:
        there = client_of(second)

        async def wait() -> None:
            answers.append(await there.control("GET", "/api/flows/f1/wait?timeout_seconds=60"))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await workers.finish(taken, complete(1))
    assert (answers[0].status, answers[0].body["result"]) == (200, 1)


async def test_starting_twice(client: Client) -> None:
    first = await start(client, request_id="r")
    again = await start(client, request_id="r", ignore_already_started=True)
    assert (again.status, again.body["run_id"]) == (200, first.body["run_id"])
    refused = await start(client)
    assert (refused.status, refused.body["reason"]) == (409, "flow_already_started")
    assert refused.body["run_id"] == first.body["run_id"]


@pytest.mark.parametrize("flow_id", [".", ".."])
async def test_an_id_that_no_url_can_name_is_refused(client: Client, flow_id: str) -> None:
    refused = await start(client, flow_id=flow_id)
    assert (refused.status, list(refused.body["errors"])) == (422, ["flow_id"])
    assert (await start(client, flow_id="...")).status == 201


async def test_bad_starts(client: Client) -> None:
    for fields, field in (
        ({"flow_type": ""}, "flow_type"),
        ({"step_options": {"retries": 1}}, "step_options"),
        ({"step_options": {"execute": {"heartbeat_timeout_seconds": 9}}}, "step_options"),
        ({"timeout_policy": "handler", "timeout_seconds": 9}, "timeout_handler"),
        ({"timeout_handler": {"step_type": "t"}}, "timeout_handler"),
        ({"timeout_handler": {"steptype": "t"}, "timeout_seconds": 9}, "timeout_handler"),
        (
            {"timeout_handler": {"step_type": "t"}, "timeout_seconds": 9, "timeout_policy": "fail"},
            "timeout_handler",
        ),
        ({"timeout_policy": "later"}, "timeout_policy"),
        ({"id_reuse_policy": "maybe"}, "id_reuse_policy"),
    ):
        answer = await start(client, **fields)
        assert (answer.status, answer.body["reason"]) == (422, "validation_failed"), fields
        assert field in answer.body["errors"]
    large = await start(client, input="x" * (256 * 1024))
    assert (large.status, large.body["reason"]) == (422, "structural_limit_exceeded")
    assert (await client.control("GET", "/api/flows/f1")).status == 404


async def test_channels(client: Client, workers: Lab) -> None:
    await start(client, step_options={"wait_for": {}})
    await workers.do(wait_for("all", {"id": "m", "channel": "a/b c", "count": 2}))
    target = "/api/flows/f1/channels/a%2Fb%20c"
    answers = [
        await client.control("POST", target, {"value": {"n": 1}, "request_id": "r1"}),
        await client.control("POST", target, {"value": {"n": 1}, "request_id": "r1"}),
    ]
    assert [(a.status, a.body["outcome"]) for a in answers] == [
        (202, "published"),
        (200, "duplicate_request"),
    ]
    (step,) = (await client.control("GET", "/api/flows/f1")).body["open_steps"]
    assert step["conditions"]["items"] == [{"id": "m", "channel": "a/b c", "count": 2}]
    await client.control("POST", target, {"value": 2})
    taken = await workers.take_one()
    assert taken.body["conditions"]["m"]["values"] == [{"n": 1}, 2]
    await workers.finish(taken, complete())
    late = await client.control("POST", target, {"value": 3})
    assert (late.status, late.body["reason"]) == (409, "flow_closed")


async def test_stops(client: Client, workers: Lab) -> None:
    await start(client)
    taken = await workers.take_one()
    canceling = await client.control("POST", "/api/flows/f1/stop", {"type": "cancel", "reason": "why not"})
    assert (canceling.status, canceling.body["stopping"]) == (202, "canceled")
    refused = await client.control("POST", "/api/flows/f1/channels/c", {"value": 1})
    assert (refused.status, refused.body["reason"]) == (409, "flow_closing")
    await workers.finish(taken, go_to("second"))
    ended = (await client.control("GET", "/api/flows/f1/wait")).body
    assert (ended["status"], ended["close_reason"]) == ("canceled", "why not")
    assert await workers.take() == []

    await start(client, flow_id="f2")
    failed = await client.control("POST", "/api/flows/f2/stop", {"type": "fail", "reason": "bad luck"})
    assert (failed.status, failed.body["status"]) == (200, "failed")
    again = await client.control("POST", "/api/flows/f2/stop", {"type": "terminate"})
    assert (again.status, again.body["reason"]) == (409, "flow_closed")


async def test_lists(client: Client, workers: Lab) -> None:
    for number in range(5):
        await start(client, flow_id=f"f{number}", flow_type="even" if number % 2 == 0 else "odd")
    await client.control("POST", "/api/flows/f3/stop", {"type": "terminate"})

    async def listed(query: str) -> list[str]:
        found: list[str] = []
        token = ""
        while token is not None:
            page = (await client.control("GET", f"/api/flows?{query}&next_page_token={token}")).body
            found += [flow["flow_id"] for flow in page["flows"]]
            token = page["next_page_token"]
        return found

    assert sorted(await listed("page_size=2")) == ["f0", "f1", "f2", "f3", "f4"]
    assert sorted(await listed("flow_type=odd")) == ["f1", "f3"]
    assert await listed("status=terminated&page_size=1") == ["f3"]


async def test_an_rpc_without_workers_says_so(client: Client) -> None:
    await start(client)
    answer = await client.control(
        "POST", "/api/flows/f1/rpc/total", {"input": 1, "timeout_seconds": 0.1, "lock_attributes": ["a"]}
    )
    assert (answer.status, answer.body["reason"]) == (503, "rpc_unavailable")
    assert (await client.control("GET", "/api/flows/f1")).body["locked_attributes"] == []
    hasty = await client.control("POST", "/api/flows/f1/rpc/total", {"timeout_seconds": 0})
    assert hasty.body["errors"] == {
        "timeout_seconds": ["The timeout_seconds field must be greater than 0.0."]
    }
    assert (await client.control("POST", "/api/flows/nobody/rpc/total", {})).status == 404


async def test_unknown_flows(client: Client) -> None:
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/wait", None),
        ("GET", "/steps", None),
        ("POST", "/stop", {}),
        ("POST", "/channels/c", {"value": 1}),
    ):
        answer = await client.control(method, f"/api/flows/nobody{path}", body)
        assert (answer.status, answer.body["reason"]) == (404, "flow_not_found"), path
    await start(client)
    other = await client.control("GET", "/api/flows/f1?run_id=01KB8M3V6T5Q0Z9W2N4X7C1D0G")
    assert (other.status, other.body["reason"]) == (404, "run_not_found")


async def test_timers_are_fired_by_the_node(client: Client, workers: Lab) -> None:
    await start(client, timeout_seconds=3, step_options={"wait_for": {}})
    await workers.do(wait_for("all", {"id": "soon", "timer_seconds": 0.2}))
    taken = await take_soon(workers)
    assert taken.body["conditions"] == {"soon": {"satisfied": True}}
    await workers.finish(taken, kind=ResultKind.RETURNED)
    ended = await client.control("GET", "/api/flows/f1/wait?timeout_seconds=9")
    assert (ended.status, ended.body["status"], ended.body["failure"]["type"]) == (
        200,
        "failed",
        "FlowTimeout",
    )
