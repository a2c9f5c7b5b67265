"""Long silence through HAProxy, scaled down: pings and pongs keep a stream alive, and nothing else would.

The proxy cuts what is idle for a few seconds, the node pings twice a second (R82, R83).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import h2.config
import h2.connection
import pytest
import trio

from tests.cluster_processes import TOP, Cluster, make_cluster, wait_ready
from tests.conftest import SharedServers
from tests.e2e.streams.test_streams import COMPLETE, client, start
from tests.stream_client import CARRIERS, HEADERS, connect

IDLE_SECONDS = 3
SILENCE = 2.5 * IDLE_SECONDS
USUAL = {"websocket": {"tunnel": "1h"}, "http2": {"client": "90s", "server": "90s"}}
"""The time-outs that concern a stream, and what deploy/haproxy.cfg sets them to."""


@asynccontextmanager
async def impatient(
    shared_servers: SharedServers, directory: Path, prefix: str, carrier: str, ping_interval: str
) -> AsyncIterator[Cluster]:
    """One node behind an HAProxy that cuts idle streams soon."""
    settings, rules = directory / "headrace.yaml", directory / "haproxy.cfg"
    settings.write_text(f"matching:\n  pingInterval: {ping_interval}\n")
    text = (TOP / "deploy/haproxy.cfg").read_text()
    for name, usual in USUAL[carrier].items():
        line = f"timeout {name} {usual}"
        assert text.count(line) == 1
        text = text.replace(line, f"timeout {name} {IDLE_SECONDS}s")
    # Until it has looked, the proxy takes nodes for up that are not there.
    absent = ("server node-2", "server node-3")
    rules.write_text("".join(line for line in text.splitlines(True) if not line.strip().startswith(absent)))
    environ = {"HEADRACE_KEY_PREFIX": prefix, "HEADRACE_CONFIG": str(settings)}
    with make_cluster(
        1, shared_servers.get("valkey").url, directory / "nodes", environ, balanced=True
    ) as cluster:
        assert cluster.balancer is not None
        cluster.balancer.rules = rules
        await cluster.start()
        yield cluster


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_r82_r83_streams_outlive_the_proxys_patience(
    shared_servers: SharedServers, tmp_path: Path, prefix: str, queue: str, carrier: str
) -> None:
    """One stream idles, one runs a handler that says nothing; both for longer than the proxy waits."""
    async with (
        impatient(shared_servers, tmp_path, prefix, carrier, "500ms") as cluster,
        client(cluster) as http,
        connect(cluster.url, carrier) as busy,
        connect(cluster.url, carrier) as idle,
    ):
        await busy.hello(f"b-{queue}", queue)
        await busy.open(1)
        flow_id = await start(http, queue)
        task = await busy.next("task")
        await idle.hello(f"i-{queue}", f"{queue}-other")
        await idle.open(1)
        await trio.sleep(SILENCE)
        assert not idle.ended
        assert not busy.ended
        assert (await busy.complete(task, COMPLETE))["accepted"]
        await start(http, f"{queue}-other")
        assert (await idle.next("task"))["task"]["attempt"] == 1
        assert (await http.get(f"/api/flows/{flow_id}/wait")).json()["status"] == "completed"


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_without_pings_the_proxy_does_cut_them(
    shared_servers: SharedServers, tmp_path: Path, prefix: str, queue: str, carrier: str
) -> None:
    """What the test above rests on."""
    async with (
        impatient(shared_servers, tmp_path, prefix, carrier, "1m") as cluster,
        connect(cluster.url, carrier) as worker,
    ):
        await worker.hello(f"w-{queue}", queue)
        await worker.open(1)
        await worker.wait_ended(within=4 * IDLE_SECONDS)


async def test_1100_streams_on_one_connection_do_not_hurt_the_node(cluster: Cluster, queue: str) -> None:
    """As a client that ignores how many the node allows (100); a worker's stream beside it goes on."""
    node = cluster.nodes[0]
    hostile = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    hostile.initiate_connection()
    headers = [(":method", "POST"), (":path", "/api/streams"), (":scheme", "http"), (":authority", "h")]
    for _ in range(1100):
        number = hostile.get_next_available_stream_id()
        hostile.send_headers(number, [*headers, *HEADERS.items()])
        hostile.send_data(number, b"[]\n")
    async with client(cluster, node.url) as http, connect(node.url, "http2") as worker:
        await worker.hello(f"w-{queue}", queue)
        await worker.open(1)
        for _ in range(2):
            stream = await trio.open_tcp_stream("127.0.0.1", node.port)
            async with stream:
                await stream.send_all(hostile.data_to_send() or b"")
                with trio.move_on_after(2):
                    while await stream.receive_some():
                        pass
            await start(http, queue)
            task = await worker.next("task")
            assert (await worker.complete(task, COMPLETE))["accepted"]
        await wait_ready(node.url, 5)
    assert node.child.exit_code is None
