"""What a mountain of dead work costs others: 200,000 queued steps whose flows are stopped."""

from __future__ import annotations

import statistics
from pathlib import Path

import httpx
import pytest
import trio

from tests.bench.figures import say
from tests.cluster_processes import make_cluster
from tests.e2e.streams.test_streams import CLIENT_HEADERS, COMPLETE
from tests.servers import run_server
from tests.stream_client import StreamClient, connect

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

FLOWS = 201
FAN = {"decision": {"next": [{"step_type": "odd"}] * 999}}
ROUNDS = 150
MOST = 4.0
"""By how much the median may grow, with room for a busy machine. While the dead are cleared away, too."""


async def test_stopped_flows_slow_nobody_down(tmp_path: Path) -> None:
    with run_server("redis", tmp_path) as server, make_cluster(2, server.url, tmp_path) as cluster:
        await cluster.start()
        first, second = (node.url for node in cluster.nodes)
        async with (
            httpx.AsyncClient(base_url=first, headers=CLIENT_HEADERS, timeout=60, trust_env=False) as http,
            connect(second) as worker,
        ):
            await worker.hello("w", {"name": "live", "step_types": ["a"]})
            await worker.open(1)
            before = await _hand_out_time(http, worker)
            flows = await _fill(http, first)
            queued = await _hand_out_time(http, worker)
            began = trio.current_time()
            for flow_id in flows:
                await http.post(f"/api/flows/{flow_id}/stop", json={"type": "terminate"})
            stopping = trio.current_time() - began
            with server.client() as client:
                left = sum(client.llen(key) for key in client.keys("*:work"))
            clearing = await _hand_out_time(http, worker)
        say("start to hand-out, median", f"{before * 1000:.2f} ms with nothing else")
        say(f"  beside {len(flows) * 999:,} queued steps", f"{queued * 1000:.2f} ms")
        say("  their flows are stopped", f"{clearing * 1000:.2f} ms, {stopping:.0f} s, {left} chunks left")
        assert queued < MOST * before
        assert clearing < MOST * before


async def _start(http: httpx.AsyncClient, flow_type: str, step: str) -> str:
    answer = await http.post("/api/flows", json={"flow_type": flow_type, "start_step": step})
    flow_id: str = answer.json()["flow_id"]
    return flow_id


async def _hand_out_time(http: httpx.AsyncClient, worker: StreamClient) -> float:
    """Median seconds from asking one node for a flow to its first task on the other."""
    times = []
    for _ in range(ROUNDS):
        began = trio.current_time()
        await _start(http, "live", "a")
        task = await worker.next("task")
        times.append(trio.current_time() - began)
        await worker.complete(task, COMPLETE)
    return statistics.median(times)


async def _fill(http: httpx.AsyncClient, url: str) -> list[str]:
    """Flows with 999 queued steps each that nobody serves."""
    flows = [await _start(http, "dead", "many") for _ in range(FLOWS)]
    async with connect(url) as filler:
        await filler.hello("filler", {"name": "dead", "step_types": ["many"]})
        await filler.open(1)
        for _ in flows:
            confirmed = await filler.complete(await filler.next("task", within=30), FAN, within=30)
            assert confirmed["accepted"], confirmed
    return flows
