"""Lists that can be read page by page, whatever comes and goes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.paging import names_after
from cluster.pulse import Pulse
from cluster.workflows.outlines import END_BYTES, WHOLE_BYTES
from nodes.node import Node
from tests.api.conftest import client_of
from tests.unit.api.fakes import Client

Rows = list[dict[str, Any]]


async def pages(client: Client, path: str, member: str, size: int, **query: str) -> list[Rows]:
    """All pages of a list."""
    found: list[Rows] = []
    token = ""
    while True:
        given = "&".join(f"{name}={value}" for name, value in {"page_size": str(size), **query}.items())
        answer = await client.control("GET", f"{path}?{given}{token and f'&next_page_token={token}'}")
        assert answer.status == 200, answer.body
        found.append(answer.body[member])
        token = answer.body["next_page_token"]
        if token is None:
            return found


async def register(client: Client, worker: str, queue: str) -> None:
    body = {"worker_id": worker, "task_queue": queue, "runtime": "python"}
    assert (await client.worker("POST", "register", body)).status == 201


async def test_task_queues_come_by_name(client: Client) -> None:
    for number in range(7):
        await register(client, f"w{number}", f"queue-{number}")

    found = await pages(client, "/api/task-queues", "task_queues", 3)

    assert [[queue["name"] for queue in page] for page in found] == [
        ["queue-0", "queue-1", "queue-2"],
        ["queue-3", "queue-4", "queue-5"],
        ["queue-6"],
    ]
    (few,) = await pages(client, "/api/task-queues", "task_queues", 3, query="ue-4")
    assert [queue["name"] for queue in few] == ["queue-4"]
    whole = await client.control("GET", "/api/task-queues")
    assert len(whole.body["task_queues"]) == 7
    assert whole.body["next_page_token"] is None
    for wrong in ("0", "1001", "x"):
        assert (await client.control("GET", f"/api/task-queues?page_size={wrong}")).status == 422


async def test_namespaces_come_by_name(client: Client) -> None:
    for name in ("b", "a", "d", "c"):
        assert (await client.control("POST", "/api/namespaces", {"name": name})).status == 201
    found = await pages(client, "/api/namespaces", "namespaces", 2)
    assert [[row["name"] for row in page] for page in found] == [["a", "b"], ["c", "d"], ["default"]]
    whole = await client.control("GET", "/api/namespaces")
    assert len(whole.body["namespaces"]) == 5
    assert whole.body["next_page_token"] is None
    for wrong in ("0", "1001", "x"):
        assert (await client.control("GET", f"/api/namespaces?page_size={wrong}")).status == 422


async def test_workers_come_by_id(client: Client) -> None:
    for number in range(5):
        await register(client, f"w{number}", "q" if number % 2 else "other")

    found = await pages(client, "/api/workers", "workers", 2)
    assert [[w["worker_id"] for w in page] for page in found] == [["w0", "w1"], ["w2", "w3"], ["w4"]]
    odd = await pages(client, "/api/workers", "workers", 1, task_queue="q")
    assert [[w["worker_id"] for w in page] for page in odd] == [["w1"], ["w3"]]
    assert await pages(client, "/api/workers", "workers", 2, status="stale") == [[]]


async def test_runs_of_a_workflow_come_in_order(client: Client) -> None:
    await register(client, "worker", "q")
    body = {"workflow_type": "t", "task_queue": "q", "workflow_id": "w"}
    assert (await client.control("POST", "/api/workflows", body)).status == 201
    ids = []
    for number in range(5):
        poll = {"worker_id": "worker", "task_queue": "q", "poll_request_id": f"p{number}"}
        task = (await client.worker("POST", "workflow-tasks/poll", poll)).body["task"]
        ids.append(task["run_id"])
        done = {
            "lease_owner": "worker",
            "workflow_task_attempt": 1,
            "commands": [{"type": "continue_as_new"}],
        }
        if number < 4:
            path = f"workflow-tasks/{task['task_id']}/complete"
            assert (await client.worker("POST", path, done)).status == 200

    found = await pages(client, "/api/workflows/w/runs", "runs", 2)

    assert [[run["run_id"] for run in page] for page in found] == [ids[:2], ids[2:4], ids[4:]]
    assert [run["is_current_run"] for page in found for run in page] == [False] * 4 + [True]


async def test_large_events_are_outlined(node: Node) -> None:
    client = client_of(node)
    body = {"workflow_type": "t", "task_queue": "q", "workflow_id": "w", "memo": {"m": "x" * WHOLE_BYTES}}
    run = (await client.control("POST", "/api/workflows", body)).body["run_id"]
    for number in range(3):
        await client.control("POST", f"/api/workflows/w/signal/s{number}", {})

    page = await node.engine.outline("default", "w", run, 1, 10)

    assert page.total == 5
    assert [event.sequence for event in page.events] == [1, 2, 3, 4, 5]
    started = page.events[1]
    assert (started.event_type, started.is_whole) == ("WorkflowStarted", False)
    assert started.size > WHOLE_BYTES > END_BYTES
    assert started.payload["workflow_type"] == "t"
    assert "memo" not in started.payload
    assert [event.payload["signal_name"] for event in page.events[2:]] == ["s0", "s1", "s2"]
    for first, count, numbers in [(-2, 2, [4, 5]), (-3, 2, [3, 4]), (-9, 9, [1, 2, 3, 4, 5]), (4, 9, [4, 5])]:
        part = await node.engine.outline("default", "w", run, first, count)
        assert [event.sequence for event in part.events] == numbers


@pytest.mark.parametrize("token", ["!", "4", "\u00e9", "///", ""])
def test_a_token_nobody_made_counts_as_absent(token: str) -> None:
    assert names_after(["a", "b"], token, 1)[0] == ["a"]


def test_names_that_come_and_go_shift_nothing() -> None:
    page, token = names_after(["a", "b", "c", "d"], None, 2)
    assert page == ["a", "b"]
    assert names_after(["aa", "c", "d"], token, 2) == (["c", "d"], None)


async def test_the_pulse_counts_what_the_queues_hold(node: Node) -> None:
    client = client_of(node)
    await register(client, "worker", "q")
    for number in range(4):
        body = {"workflow_type": "t", "task_queue": "q" if number else "r", "workflow_id": f"w{number}"}
        await client.control("POST", "/api/workflows", body)
    poll = {"worker_id": "worker", "task_queue": "q", "poll_request_id": "p"}
    assert (await client.worker("POST", "workflow-tasks/poll", poll)).body["task"] is not None
    await client.control("POST", "/api/workflows/w0/terminate", {})
    flow = {"flow_type": "parcel", "start_step": "pack"}
    assert (await client.control("POST", "/api/flows", flow)).status == 201

    (sample,) = await Pulse(node.store, node.clock.now_ms, lambda: (0, 0)).look("default")

    assert (sample.ready, sample.leased) == (3, 1)  # two workflow tasks and a step wait
    assert (sample.handed_out, sample.runs, sample.closed) == (1, 4, 1)
    assert (sample.flows, sample.closed_flows, sample.failing) == (1, 0, 0)
    assert 0 <= sample.oldest_age_ms < 60_000
    assert sample.added >= 4
