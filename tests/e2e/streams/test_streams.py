"""Streams of workers on real nodes: both carriers, through HAProxy, and when nodes go."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.cluster_processes import Cluster, make_cluster
from tests.conftest import SharedServers
from tests.servers import run_server
from tests.stream_client import CARRIERS, Frame, connect
from tests.waiting import PATIENCE

CLIENT_HEADERS = {"x-durable-workflow-control-plane-version": "2"}
COMPLETE: Frame = {"decision": {"complete": {"done": True}}}
RETRY_SOON = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
ONCE = {"execute": {"retry": {"maximum_attempts": 1}}}
BURIED_WITHIN = 30.0
"""A dead node's attempts fail within 10 s; the retry, the hand-out and a busy machine come on top."""


@asynccontextmanager
async def client(cluster: Cluster, url: str = "") -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=url or cluster.url, headers=CLIENT_HEADERS, timeout=20, trust_env=False
    ) as http:
        yield http


async def start(http: httpx.AsyncClient, flow_type: str, **fields: Any) -> str:
    answer = await http.post("/api/flows", json={"flow_type": flow_type, "start_step": "a", **fields})
    assert answer.status_code == 201, answer.text
    flow_id: str = answer.json()["flow_id"]
    return flow_id


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_flow_and_its_rpcs_through_the_balancer(cluster: Cluster, carrier: str, queue: str) -> None:
    async with client(cluster) as http, connect(cluster.url, carrier) as worker:
        await worker.hello(f"w-{queue}", queue)
        await worker.open(1, 2, 3)
        await worker.open(4, kind="rpc_only")
        flow_id = await start(http, queue, input={"n": "é" * 40_000})
        task = await worker.next("task")
        assert task["task"]["input"] == {"n": "é" * 40_000}
        asked: list[Any] = []

        async def ask(value: int) -> None:
            answer = await http.post(f"/api/flows/{flow_id}/rpc/look", json={"input": value})
            asked.append(answer.json()["result"])

        for number in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, number)
                rpc = await worker.next("task")
                await worker.complete(rpc, {"result": rpc["task"]["input"]})
        assert asked == [0, 1, 2]
        await worker.complete(task, {"decision": {"next": [{"step_type": "b"}, {"step_type": "b"}]}})
        first, second = await worker.next("task"), await worker.next("task")
        await worker.complete(first, {"decision": {"dead_end": True}})
        await worker.complete(second, COMPLETE)
        closed = (await http.get(f"/api/flows/{flow_id}/wait")).json()
        assert (closed["status"], closed["result"]) == ("completed", {"done": True})


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_half_closing_returns_the_task_unconsumed(cluster: Cluster, carrier: str, queue: str) -> None:
    async with (
        client(cluster) as http,
        connect(cluster.nodes[0].url, carrier) as first,
        connect(cluster.nodes[1].url, carrier) as second,
    ):
        await first.hello(f"w1-{queue}", queue)
        await first.open(1)
        await start(http, queue, step_options=ONCE)
        task = await first.next("task")
        await second.hello(f"w2-{queue}", queue)
        await second.open(1)
        await first.send({"type": "half_close", "slot": 1})
        again = await second.next("task", within=20)
        assert (again["task"]["task_id"], again["task"]["attempt"]) == (task["task"]["task_id"], 1)
        assert again["task"]["attempt_id"] != task["task"]["attempt_id"]
        assert (await second.complete(again, COMPLETE))["accepted"]


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_broken_connection_fails_the_attempt_at_once(
    cluster: Cluster, carrier: str, queue: str
) -> None:
    async with client(cluster) as http, connect(cluster.nodes[0].url, carrier) as first:
        await first.hello(f"w1-{queue}", queue)
        await first.open(1)
        await start(http, queue, step_options=RETRY_SOON)
        await first.next("task")
        async with connect(cluster.nodes[1].url, carrier) as second:
            await second.hello(f"w2-{queue}", queue)
            await second.open(1)
            await first.drop()
            assert (await second.next("task", within=20))["task"]["attempt"] == 2


async def test_breaking_the_protocol_ends_the_connection(cluster: Cluster) -> None:
    for carrier, code in (("websocket", 1008), ("http2", 0)):
        async with connect(cluster.url, carrier) as worker:
            await worker.send({"type": "nonsense"})
            assert (await worker.next("error"))["reason"] == "unknown_frame"
            await worker.wait_ended()
            assert worker.carrier.closed == code


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_welcome_is_the_first_frame_though_hello_came_with_others(
    cluster: Cluster, carrier: str, queue: str
) -> None:
    hello = {"type": "hello", "worker_id": f"w-{queue}", "flow_types": [{"name": queue}]}
    slots = [{"type": "open", "slot": slot, "kind": "step_and_rpc"} for slot in (1, 2)]
    closed, odd = {"type": "half_close", "slot": 1}, {"type": "half_close", "slot": 9}
    async with connect(cluster.url, carrier) as worker:
        await worker.send(hello | {"task_limit": 2, "reserved_rpc_slots": 0}, slots[0], closed, slots[1], odd)
        await worker.wait_ended()
        told = [frame["type"] for frame in worker.frames]
        assert told == ["welcome", "closed", "registered", "error"]


async def test_rpcs_without_workers_are_unavailable(cluster: Cluster, queue: str) -> None:
    async with client(cluster) as http:
        flow_id = await start(http, queue)
        answer = await http.post(f"/api/flows/{flow_id}/rpc/look", json={"timeout_seconds": 0.5})
        assert (answer.status_code, answer.json()["reason"]) == (503, "rpc_unavailable")
        async with connect(cluster.nodes[2].url) as worker:
            await worker.hello(f"w-{queue}", {"name": queue, "step_types": [], "rpc_names": ["other"]})
            await worker.open(1)
            answer = await http.post(f"/api/flows/{flow_id}/rpc/look", json={"timeout_seconds": 5})
            assert (answer.status_code, answer.json()["reason"]) == (404, "unknown_rpc")


@pytest.fixture
def two_nodes(shared_servers: SharedServers, tmp_path: Path, prefix: str) -> Any:
    """Nodes that a test may kill."""
    with make_cluster(2, shared_servers.get("valkey").url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}) as made:
        yield made


async def test_attempts_of_a_killed_node_fail_into_the_retry_policy(two_nodes: Cluster, queue: str) -> None:
    await two_nodes.start()
    killed, other = two_nodes.nodes
    async with client(two_nodes, other.url) as http, connect(other.url) as second:
        async with connect(killed.url) as first:
            await first.hello("w1", queue)
            await first.open(*range(1, 9))
            flows = [await start(http, queue, step_options=RETRY_SOON) for _ in range(8)]
            assert len([await first.next("task") for _ in flows]) == 8
            await second.hello("w2", queue)
            await second.open(*range(1, 9))
            killed.kill()
            with trio.fail_after(BURIED_WITHIN):
                tasks = [await second.next("task", within=BURIED_WITHIN) for _ in flows]
        assert {task["task"]["flow_id"] for task in tasks} == set(flows)
        assert {task["task"]["attempt"] for task in tasks} == {2}
        for task in tasks:
            assert (await second.complete(task, COMPLETE))["accepted"]


async def test_r78_a_node_that_stops_lets_its_tasks_finish(two_nodes: Cluster, queue: str) -> None:
    await two_nodes.start()
    stopping, other = two_nodes.nodes
    async with client(two_nodes, other.url) as http, connect(stopping.url) as worker:
        await worker.hello("w1", queue)
        await worker.open(1, 2)
        flow_id = await start(http, queue, step_options=ONCE)
        task = await worker.next("task")
        stopping.signal(signal.SIGTERM)
        await worker.next("reconnect")
        async with connect(other.url) as elsewhere:
            await elsewhere.hello("w1", queue)
            await elsewhere.open(1)
            await start(http, queue)
            await elsewhere.next("task")
            assert (await worker.complete(task, COMPLETE))["accepted"]
            await worker.wait_ended()
        with trio.fail_after(PATIENCE):
            assert await stopping.child.wait() == 0
        assert (await http.get(f"/api/flows/{flow_id}/wait")).json()["status"] == "completed"


async def test_e2_outputs_are_held_while_redis_is_away(tmp_path: Path, queue: str) -> None:
    """A frozen Redis costs no attempt: the output is confirmed when it is back."""
    with run_server("valkey", tmp_path) as server, make_cluster(1, server.url, tmp_path / "n") as made:
        await made.start()
        async with client(made) as http, connect(made.url) as worker:
            await worker.hello("w1", queue)
            await worker.open(1, 2)
            flow_id = await start(http, queue, step_options=ONCE)
            task = await worker.next("task")
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                output = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"], "output": COMPLETE}
                await worker.send({"type": "output", **output})
                await worker.quiet(8.0, "confirmed")
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert (await worker.next("confirmed"))["accepted"]
            assert (await http.get(f"/api/flows/{flow_id}/wait")).json()["status"] == "completed"
            await start(http, queue)
            await worker.next("task")
            assert not [frame for frame in worker.frames if frame["type"] == "closed"]
