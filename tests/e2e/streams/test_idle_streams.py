"""Long silence through HAProxy: pings and pongs keep a stream alive, and nothing else would (R82, R83).

Scaled down, the proxy cuts what is idle for a few seconds and the node pings twice a second; the one test
marked ``chaos`` takes ten minutes, with the usual pings and a proxy that waits 45 s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import h2.config
import h2.connection
import pytest
import trio

from headrace import (
    Client,
    Decision,
    Flow,
    MethodOptions,
    RetryPolicy,
    StepContext,
    StepOptions,
    Worker,
    complete,
    step,
)
from tests.cluster_processes import TOP, Cluster, make_cluster, wait_ready
from tests.conftest import SharedServers
from tests.e2e.streams.test_streams import COMPLETE, client, start
from tests.stream_client import CARRIERS, HEADERS, connect
from tests.waiting import PATIENCE

IDLE_SECONDS = 3
SILENCE = 2.5 * IDLE_SECONDS
REAL_IDLE_SECONDS = 45
REAL_SILENCE = 610
USUAL = {"websocket": {"tunnel": "1h"}, "http2": {"client": "90s", "server": "90s"}}
"""The time-outs that concern a stream, and what deploy/haproxy.cfg sets them to."""


@asynccontextmanager
async def impatient(
    shared_servers: SharedServers,
    directory: Path,
    prefix: str,
    ping_interval: str,
    *carriers: str,
    patience: int = IDLE_SECONDS,
) -> AsyncIterator[Cluster]:
    """One node behind an HAProxy that cuts streams over ``carriers`` that idle for ``patience`` seconds."""
    settings, rules = directory / "headrace.yaml", directory / "haproxy.cfg"
    settings.write_text(f"matching:\n  pingInterval: {ping_interval}\n")
    text = (TOP / "deploy/haproxy.cfg").read_text()
    for name, usual in [item for carrier in carriers for item in USUAL[carrier].items()]:
        line = f"timeout {name} {usual}"
        assert text.count(line) == 1
        text = text.replace(line, f"timeout {name} {patience}s")
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
        impatient(shared_servers, tmp_path, prefix, "500ms", carrier) as cluster,
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
        impatient(shared_servers, tmp_path, prefix, "1m", carrier) as cluster,
        connect(cluster.url, carrier) as worker,
    ):
        await worker.hello(f"w-{queue}", queue)
        await worker.open(1)
        await worker.wait_ended()


ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)
PATIENT = {"execute": {"heartbeat_timeout_seconds": 3600, "retry": {"maximum_attempts": 1}}}


class Silent(Flow):
    """Its only step says nothing for as long as its input tells."""

    @step(options=StepOptions(execute=MethodOptions(heartbeat_timeout=3600, retry=ONE_ATTEMPT)))
    async def wait(self, ctx: StepContext, seconds: float) -> Decision:
        await trio.sleep(seconds)
        return complete({"attempt": ctx.attempt})


@pytest.mark.chaos
@pytest.mark.timeout(REAL_SILENCE + 120)
async def test_r82_r83_ten_minutes_of_silence_through_a_proxy_that_waits_45_seconds(
    shared_servers: SharedServers, tmp_path: Path, prefix: str, queue: str
) -> None:
    """Of streams that idle and of handlers that run, over both carriers and in the worker library."""
    silent = type("Silent", (Silent,), {"name": f"{queue}-silent"})
    async with (
        impatient(shared_servers, tmp_path, prefix, "20s", *CARRIERS, patience=REAL_IDLE_SECONDS) as cluster,
        client(cluster) as http,
        AsyncExitStack() as streams,
    ):
        library = await streams.enter_async_context(Worker(cluster.url, [silent], max_concurrent_tasks=2))
        await library.wait_pull_registered()
        handle = await streams.enter_async_context(Client(cluster.url))
        flow = await handle.start(silent, input=REAL_SILENCE)
        workers = []
        for carrier in CARRIERS:
            for kind in ("busy", "idle"):
                worker = await streams.enter_async_context(connect(cluster.url, carrier))
                await worker.hello(f"{kind}-{carrier}-{queue}", f"{queue}-{carrier}-{kind}")
                await worker.open(1)
                workers.append(worker)
        tasks = {}
        for worker, carrier in zip(workers[::2], CARRIERS, strict=True):
            await start(http, f"{queue}-{carrier}-busy", step_options=PATIENT)
            tasks[carrier] = await worker.next("task")
        await trio.sleep(REAL_SILENCE)
        assert not any(worker.ended for worker in workers)
        for busy, idle, carrier in zip(workers[::2], workers[1::2], CARRIERS, strict=True):
            assert (await busy.complete(tasks[carrier], COMPLETE))["accepted"]
            await start(http, f"{queue}-{carrier}-idle")
            assert (await idle.next("task"))["task"]["attempt"] == 1
        assert (await flow.result()) == {"attempt": 1}


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
        await wait_ready(node.url, PATIENCE)
    assert node.child.exit_code is None
