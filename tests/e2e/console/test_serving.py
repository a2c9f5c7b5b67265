"""The console as a node serves it: live updates over a real connection, the end of a node, switched off."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import trio

from tests.cluster_processes import make_cluster
from tests.waiting import PATIENCE
from tests.wire import open_wire


async def test_a_leaving_node_ends_live_updates(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    with make_cluster(1, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}) as cluster:
        await cluster.start()
        (node,) = cluster.nodes
        got: list[str] = []
        async with httpx.AsyncClient(base_url=node.url, trust_env=False, timeout=30) as client:
            async with client.stream("GET", "/console/live?page=overview") as answer:
                assert answer.headers["content-type"] == "text/event-stream"
                assert answer.headers["x-accel-buffering"] == "no"
                async for line in answer.aiter_lines():
                    got.append(line)
                    if line.startswith("event: part"):
                        node.signal(signal.SIGTERM)
            with trio.fail_after(PATIENCE):
                assert await node.child.wait() == 0, node.log
        assert got[0] == "retry: 3000"
        assert any("Open workflows" in line for line in got)
        assert "Traceback" not in node.log


async def test_a_browser_at_the_root_is_led_to_it(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    with make_cluster(1, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}) as cluster:
        await cluster.start()
        async with open_wire(cluster.url) as wire:
            led = await wire.client.get("/", headers={"accept": "text/html,*/*"})
            assert (led.status_code, led.headers["location"]) == (303, "console/")
            assert not (await wire.client.get("/")).is_redirect
            assert (await wire.client.get("/console")).headers["location"] == "console/"
            large = await wire.client.post("/console/do", content=b"a=" + b"x" * (3 << 20))
            assert large.status_code == 413
            assert "text/html" in large.headers["content-type"]


async def test_it_can_be_left_out(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    environ = {"HEADRACE_KEY_PREFIX": prefix, "HEADRACE_CONSOLE": "false"}
    with make_cluster(1, valkey_url, tmp_path, environ) as cluster:
        await cluster.start()
        async with open_wire(cluster.url) as wire:
            for path in ("/console", "/console/", "/console/live?page=overview"):
                answer = await wire.client.get(path, headers={"accept": "text/html"})
                assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")
            assert not (await wire.client.get("/", headers={"accept": "text/html"})).is_redirect
