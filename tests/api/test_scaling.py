"""How many workers a queue needs: the numbers an autoscaler reads."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import pytest

from cluster.queues.overview import CHUNK
from cluster.store.store import Store
from nodes.api.scaling import Demand
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Client
from tests.waiting import eventually


async def _worker(
    client: Client, worker_id: str, queue: str, workflow_slots: int, activity_slots: int
) -> None:
    body = {
        "worker_id": worker_id,
        "task_queue": queue,
        "runtime": "python",
        "supported_workflow_types": ["t"],
        "max_concurrent_workflow_tasks": workflow_slots,
        "max_concurrent_activity_tasks": activity_slots,
    }
    assert (await client.worker("POST", "register", body)).status == 201


async def _start(client: Client, queue: str, count: int, **headers: str) -> None:
    for _ in range(count):
        body = {"workflow_type": "t", "task_queue": queue}
        assert (await client.control("POST", "/api/workflows", body, **headers)).status == 201


async def _get(client: Client, path: str, **headers: str) -> Any:
    answer = await client.control("GET", path, **headers)
    assert answer.status == 200, answer.body
    return answer.body


async def test_a_queue_with_work_and_workers(client: Client) -> None:
    await _worker(client, "w1", "jobs", 2, 10)
    await _worker(client, "w2", "jobs", 4, 10)
    await _start(client, "jobs", 10)
    for worker in ("w1", "w2"):
        polled = await client.worker(
            "POST", "workflow-tasks/poll", {"worker_id": worker, "task_queue": "jobs"}
        )
        assert polled.body["task"] is not None

    shown = await _get(client, "/api/scaling/jobs")

    age = shown.pop("oldest_age_seconds")
    assert age >= 0
    assert shown == {
        "namespace": "default",
        "task_queue": "jobs",
        "backlog": 8,
        "slots_in_use": 2,
        "registered_slots": 26,
        "active_workers": 2,
        "desired_workers": 4,  # (8 + 2) / ((2 + 4) / 2), rounded up
        "workflow_task_backlog": 8,
        "workflow_slots_in_use": 2,
        "registered_workflow_slots": 6,
        "activity_task_backlog": 0,
        "activity_slots_in_use": 0,
        "registered_activity_slots": 20,
        "step_task_backlog": 0,
        "step_slots_in_use": 0,
        "registered_step_slots": 0,
    }


async def test_steps_of_flows_count_under_their_flow_type(client: Client) -> None:
    for number in range(3):
        body = {"flow_type": "shop", "flow_id": f"f{number}", "start_step": "first"}
        assert (await client.control("POST", "/api/flows", body)).status == 201

    async def counted() -> bool:
        # A step waits for a worker of its flow for a moment before it is in the queue.
        shown = await _get(client, "/api/scaling/shop?slots_per_worker=2")
        return (shown["backlog"], shown["step_task_backlog"], shown["desired_workers"]) == (3, 3, 2)

    await eventually(counted)


async def test_the_total_is_the_sum_of_the_queues_of_the_namespace(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "prod"})
    await _start(client, "jobs", 2)
    await _start(client, "mail", 3)
    await _start(client, "jobs", 5, **{"x-namespace": "prod"})
    await _worker(client, "w1", "idle", 5, 5)

    shown = await _get(client, "/api/scaling?slots_per_worker=1")

    assert [row["task_queue"] for row in shown["task_queues"]] == ["idle", "jobs", "mail"]
    assert [row["desired_workers"] for row in shown["task_queues"]] == [0, 2, 3]
    assert {name: value for name, value in shown["total"].items() if name != "oldest_age_seconds"} == {
        "backlog": 5,
        "slots_in_use": 0,
        "registered_slots": 10,
        "active_workers": 1,
        "desired_workers": 5,
    }
    for row in shown["task_queues"]:
        alone = await _get(client, f"/api/scaling/{row['task_queue']}?slots_per_worker=1")
        ages = (alone.pop("oldest_age_seconds"), row.pop("oldest_age_seconds"))
        assert abs(ages[0] - ages[1]) <= 5
        assert alone == {"namespace": "default", **row}


async def test_an_unknown_queue_needs_nobody_and_every_value_is_a_number(client: Client) -> None:
    shown = await _get(client, "/api/scaling/never-heard-of")

    names = (shown.pop("namespace"), shown.pop("task_queue"))
    assert names == ("default", "never-heard-of")
    assert set(shown.values()) == {0}


@pytest.mark.parametrize("value", ["0", "-1", "x", "1000001"])
async def test_a_bad_number_of_slots_is_refused(client: Client, value: str) -> None:
    for path in ("/api/scaling", "/api/scaling/jobs"):
        answer = await client.control("GET", f"{path}?slots_per_worker={value}")
        assert (answer.status, list(answer.body["errors"])) == (422, ["slots_per_worker"])


async def test_a_limit_of_leases_bounds_what_more_workers_could_do(node: Node, client: Client) -> None:
    await _start(client, "jobs", 9)
    body = {"workflow_tasks": {"max_active_leases_per_queue": 4}}
    assert (await client.control("PUT", "/api/admission/limits/jobs", body)).status == 200

    shown = await _get(client, "/api/scaling/jobs?slots_per_worker=2")

    assert (shown["backlog"], shown["desired_workers"]) == (9, 2)


async def test_another_node_says_the_same(another_node: OpenNode) -> None:
    async with another_node() as first, another_node() as second:
        await _worker(client_of(first), "w", "jobs", 1, 1)
        await _start(client_of(first), "jobs", 3)
        shown = await _get(client_of(second), "/api/scaling/jobs")

    assert (shown["backlog"], shown["active_workers"], shown["desired_workers"]) == (3, 1, 3)


@pytest.mark.parametrize(
    ("demand", "assumed", "desired"),
    [
        (Demand(0, 0, 0, 0), 1, 0),
        (Demand(1, 0, 0, 0), 100, 1),
        (Demand(101, 0, 0, 0), 100, 2),
        (Demand(5, 5, 10, 2), 1, 2),
        (Demand(6, 5, 10, 2), 1, 3),
        (Demand(6, 5, 0, 2), 4, 3),
        (Demand(500, 5, 10, 1, limit=20), 1, 2),
        (Demand(1, 0, 10, 1, limit=20), 1, 1),
    ],
)
def test_desired_workers(demand: Demand, assumed: int, desired: int) -> None:
    assert demand.desired_workers(assumed) == desired


async def test_an_autoscaler_needs_no_header_but_its_token(client: Client) -> None:
    """KEDA's metrics-api scaler sends a URL and a bearer token, nothing else."""
    await client.control("POST", "/api/namespaces", {"name": "prod"})
    await _start(client, "jobs", 5, **{"x-namespace": "prod"})
    target = "/api/scaling/jobs?namespace=prod&slots_per_worker=2"
    answer = await client.send("GET", target, headers={"authorization": "Bearer any"})
    assert (answer.status, answer.body["desired_workers"]) == (200, 3)


async def test_thousands_of_queues_cost_no_more_commands_than_their_chunks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of each queue by itself."""
    client, asked = client_of(node), Counter[str]()
    store, keys = node.store, node.store.keys
    run, call = Store.run, Store.call

    async def counted_run(self: Store, script: str, *args: Any, **more: Any) -> Any:
        asked[script] += 1
        return await run(self, script, *args, **more)

    async def counted_call(self: Store, *command: Any, **more: Any) -> Any:
        asked[str(command[0])] += 1
        return await call(self, *command, **more)

    async def cost(queues: int) -> Counter[str]:
        members = [f"w:queue-{number}" for number in range(queues)]
        await store.call("SADD", f"{keys.base(0)}:nq:default", *members)
        asked.clear()
        shown = await _get(client, "/api/scaling")
        assert len(shown["task_queues"]) == queues
        return Counter(asked)

    monkeypatch.setattr(Store, "run", counted_run)
    monkeypatch.setattr(Store, "call", counted_call)
    asked_of_all = await cost(1_000)
    assert asked_of_all["overview"] == ceil(1_000 / CHUNK) * keys.partitions
    # The node goes on with its own work meanwhile.
    assert max(number for name, number in asked_of_all.items() if name != "overview") < 500
