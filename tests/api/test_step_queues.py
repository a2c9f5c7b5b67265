"""Flow types among the task queues: what they hold, what limits them, and why a step waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.api.test_task_queues import SECTION_FIELDS
from tests.cluster.streams.lab import MemoryPipe
from tests.stream_client import StreamClient
from tests.unit.api.fakes import Answer, Client
from tests.waiting import eventually


class Worker:
    """A worker's connection to a node, through memory."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pipe = MemoryPipe()
        self.client = StreamClient(self.pipe.client)

    async def serve(self) -> None:
        await self._node.streams.serve(self.pipe.node, "default")


@pytest.fixture
async def limited(another_node: OpenNode) -> AsyncIterator[Node]:
    async with another_node(step_task_max_active_leases_per_queue=1) as node:
        yield node


async def start(client: Client, flow_id: str = "f1", **fields: Any) -> str:
    body = {"flow_type": "shop", "flow_id": flow_id, "start_step": "first", **fields}
    assert (await client.control("POST", "/api/flows", body)).status == 201
    described = (await client.control("GET", f"/api/flows/{flow_id}")).body
    task_id: str = described["open_steps"][0]["task_id"]
    return task_id


async def section(client: Client, queue: str = "shop") -> dict[str, Any]:
    answer = await client.control("GET", f"/api/task-queues/{queue}")
    found: dict[str, Any] = answer.body["admission"]["step_tasks"]
    assert set(found) == SECTION_FIELDS
    return found


async def why(client: Client, task_id: str, queue: str = "shop") -> Answer:
    return await client.control("GET", f"/api/task-queues/{queue}/why?task={task_id}")


async def test_a_flow_type_is_a_queue_with_limits(limited: Node) -> None:
    client = client_of(limited)
    first, second = await start(client), await start(client, "f2")
    shown = await section(client)
    assert (shown["status"], shown["ready_count"]) == ("no_active_workers", 2)
    assert (await why(client, first)).body["reason"] == "no_worker"
    worker = Worker(limited)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.serve)
        nursery.start_soon(worker.client.read)
        await worker.client.hello("w1", "shop")
        await worker.client.open(1, 2, 3)
        task = await worker.client.next("task")
        running = task["task"]["task_id"]
        waiting = second if running == first else first

        async def shows_the_worker() -> bool:
            found = await section(client)
            return (found["active_worker_count"], found["configured_slot_count"]) == (1, 3)

        await eventually(shows_the_worker)
        shown = await section(client)
        assert shown["status"] == "throttled"
        assert (shown["server_active_lease_count"], shown["leased_count"], shown["ready_count"]) == (1, 1, 1)
        assert shown["budget_source"] == "worker_streams.step_and_rpc"
        assert shown["server_budget_source"] == "server.admission.step_tasks.max_active_leases_per_queue"
        held = await why(client, running)
        assert (held.body["state"], held.body["lease_owner"]) == ("leased", "w1")
        answer = await why(client, waiting)
        assert (answer.body["reason"], answer.body["task_type"]) == ("limit_reached", "step")
        assert answer.body["reasons"][0]["limit"] == "max_active_leases_per_queue"
        (lease,) = (await client.control("GET", "/api/task-queues/shop")).body["current_leases"]
        assert (lease["task_type"], lease["task_id"]) == ("step", running)
        listed = (await client.control("GET", "/api/task-queues")).body["task_queues"]
        assert [row["name"] for row in listed] == ["shop"]
        await worker.client.complete(task, {"decision": {"complete": 1}})
        assert (await worker.client.next("task"))["task"]["task_id"] == waiting
        assert (await why(client, running)).body["state"] == "ended"
        nursery.cancel_scope.cancel()


async def test_limits_of_steps_at_run_time(client: Client) -> None:
    body = {"step_tasks": {"max_dispatches_per_minute": 5, "budget_group": "api"}}
    answer = await client.control("PUT", "/api/admission/limits/shop", body)
    assert answer.status == 200
    effective = answer.body["effective"]["step_tasks"]
    assert effective["max_dispatches_per_minute"]["value"] == 5
    assert effective["dispatch_budget_group"] == "api"
    assert (await section(client))["server_max_dispatches_per_minute"] == 5


async def test_why_a_step_that_is_not_queued_waits(client: Client, node: Node) -> None:
    task_id = await start(client)
    assert (await why(client, task_id, "other")).status == 409
    assert (await why(client, task_id.replace("-s1", "-s2"))).status == 404
    assert (await why(client, "0" * 26 + "-s1")).status == 404
    stop = {"type": "terminate"}
    assert (await client.control("POST", "/api/flows/f1/stop", stop)).status == 200
    answer = await why(client, task_id)
    assert (answer.body["state"], answer.body["waiting"]) == ("ended", False)


async def test_a_tenant_sees_no_steps_of_others(client: Client) -> None:
    task_id = await start(client)
    made = await client.control("POST", "/api/namespaces", {"name": "other"})
    assert made.status in (200, 201)
    answer = await client.control(
        "GET", f"/api/task-queues/shop/why?task={task_id}", **{"X-Namespace": "other"}
    )
    assert answer.status == 404
