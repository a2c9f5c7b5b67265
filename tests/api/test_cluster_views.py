"""Operators look at nodes and partitions, on any node of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from cluster.membership.sessions import NodeInfo
from cluster.roster import read_roster
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Client
from tests.waiting import eventually


async def _when(client: Client, wanted: Callable[[list[Any]], bool]) -> Any:
    """The answer about the nodes once it is as ``wanted``."""
    body: Any = None

    async def look() -> bool:
        nonlocal body
        body = await _get(client, "/api/nodes")
        return wanted(body["nodes"])

    await eventually(look, 20)
    return body


async def _get(client: Client, path: str, **headers: str) -> Any:
    answer = await client.control("GET", path, **headers)
    assert answer.status == 200, answer.body
    return answer.body


async def test_two_nodes_are_shown_alike_by_both(another_node: OpenNode) -> None:
    async with (
        another_node(node_name="alpha") as alpha,
        another_node(node_name="beta") as beta,
    ):
        seen = await _when(client_of(beta), lambda nodes: [n["partition_count"] for n in nodes] == [8, 8])
        other = await _get(client_of(alpha), "/api/nodes")
        parts = await _get(client_of(alpha), "/api/partitions")

    assert [node["name"] for node in seen["nodes"]] == ["alpha", "beta"]
    assert [node["incarnation"] for node in other["nodes"]] == [node["incarnation"] for node in seen["nodes"]]
    assert (seen["answered_by"], other["answered_by"]) == tuple(
        node["incarnation"] for node in reversed(seen["nodes"])
    )
    shown = seen["nodes"][0]
    assert (shown["status"], shown["draining"], shown["parked_polls"]) == ("alive", False, 0)
    assert (shown["streams"], shown["stream_workers"], shown["running_steps"]) == (0, 0, 0)
    assert shown["started_at"] < shown["last_heartbeat_at"] < shown["lease_expires_at"]
    assert shown["version"]
    assert (parts["partition_count"], parts["unowned_count"]) == (16, 0)
    assert [row["partition"] for row in parts["partitions"]] == list(range(16))
    owners = {row["partition"]: row["owner"] for row in parts["partitions"]}
    assert {node["incarnation"]: node["partitions"] for node in other["nodes"]} == {
        name: [number for number, owner in owners.items() if owner == name] for name in owners.values()
    }
    assert {row["owner_name"] for row in parts["partitions"]} == {"alpha", "beta"}
    assert all(row["epoch"] > 0 and row["lease_expires_at"] for row in parts["partitions"])


async def test_the_load_of_another_node_is_shown(another_node: OpenNode) -> None:
    async with (
        another_node(node_name="alpha", worker_poll_timeout=30) as alpha,
        another_node(node_name="beta") as beta,
    ):
        worker = {"worker_id": "w", "task_queue": "q", "runtime": "python", "supported_workflow_types": ["t"]}
        polling = client_of(alpha)
        await polling.worker("POST", "register", worker)
        async with trio.open_nursery() as nursery:
            poll = {"worker_id": "w", "task_queue": "q"}
            nursery.start_soon(partial(polling.worker, "POST", "workflow-tasks/poll", poll))

            await _when(client_of(beta), lambda nodes: nodes[0]["parked_polls"] == 1)
            nursery.cancel_scope.cancel()
        alpha.stopping = True
        await _when(client_of(beta), lambda nodes: nodes[0]["draining"])


async def test_a_silent_node_is_suspect_and_what_another_build_wrote_is_no_obstacle(
    node: Node, client: Client
) -> None:
    keys = node.store.keys
    await node.store.call("HSET", keys.sessions("info"), "silent~1", b"{not json")
    await node.store.call("ZADD", keys.sessions("alive"), node.clock.now_ms() - 1000, "silent~1")

    shown = {row["incarnation"]: row for row in (await _get(client, "/api/nodes"))["nodes"]}

    assert shown["silent~1"]["status"] == "suspect"
    assert (shown["silent~1"]["name"], shown["silent~1"]["address"]) == (NodeInfo().name, None)
    assert shown[node.membership.incarnation]["status"] == "alive"


async def test_partitions_show_what_waits_in_them(node: Node, client: Client) -> None:
    for number in range(3):
        body = {"workflow_type": "t", "workflow_id": f"f{number}", "task_queue": f"q{number}"}
        assert (await client.control("POST", "/api/workflows", body)).status == 201

    rows = (await _get(client, "/api/partitions"))["partitions"]

    assert sum(row["backlog"] for row in rows) == 3
    assert all(row["backlog_complete"] for row in rows)
    assert all((row["oldest_age_seconds"] is not None) == (row["backlog"] > 0) for row in rows)
    await client.worker(
        "POST",
        "register",
        {"worker_id": "w", "task_queue": "q0", "runtime": "python", "supported_workflow_types": ["t"]},
    )
    taken = await client.worker(
        "POST", "workflow-tasks/poll", {"worker_id": "w", "task_queue": "q0", "timeout_seconds": 30}
    )
    assert taken.body["task"] is not None
    rows = (await _get(client, "/api/partitions"))["partitions"]
    assert sum(row["backlog"] for row in rows) == 2
    assert sum(row["leased_tasks"] for row in rows) == 1


async def test_a_partition_whose_lease_ran_out_has_no_owner(node: Node) -> None:
    now_ms = node.clock.now_ms()

    present = await read_roster(node.store, now_ms)
    later = await read_roster(node.store, now_ms + 60_000)

    assert {view.owner for view in present.partitions} == {node.membership.incarnation}
    assert {view.owner for view in later.partitions} == {None}
    assert [member.partitions for member in later.members] == [()]


@pytest.mark.parametrize("path", ["/api/nodes", "/api/partitions"])
async def test_no_namespace_is_needed(client: Client, path: str) -> None:
    await _get(client, path, **{"x-namespace": "unknown"})


async def test_looking_takes_one_round_trip_however_many_partitions(another_node: OpenNode) -> None:
    async with another_node() as node:
        client = client_of(node)
        commands = []

        async def trace(original: Any, *args: Any, **named: Any) -> Any:
            commands.append(trio.current_time())
            return await original(*args, **named)

        node.store.call = partial(trace, node.store.call)  # type: ignore[method-assign]
        node.store.run = partial(trace, node.store.run)  # type: ignore[method-assign]
        before = node.store.statistics().pipe.round_trips
        await _get(client, "/api/partitions")
        asked, trips = len(commands), node.store.statistics().pipe.round_trips - before

    assert asked >= 5 * 16
    # What the node does for itself at the same time makes a few more.
    assert trips < 20
