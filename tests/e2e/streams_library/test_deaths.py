"""Workers and nodes that die under running attempts, and nodes that leave in good order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from headrace import (
    Client,
    Decision,
    Flow,
    MethodOptions,
    NotAuthorized,
    PullRegistrationError,
    RetryPolicy,
    StepContext,
    StepOptions,
    TaskLimitTooHigh,
    Worker,
    complete,
    step,
)
from nodes.cli.processes import Child
from tests.cluster_processes import Cluster, environment, kill, make_cluster
from tests.conftest import SharedServers
from tests.flow_worker import Patient
from tests.waiting import LONG_PATIENCE, eventually

BURIED_WITHIN = 30.0
"""A dead node's attempts fail within 10 s; the retry, the hand-out and a busy machine come on top."""


@pytest.fixture
def pair(shared_servers: SharedServers, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes of one test's own."""
    environ = {"HEADRACE_KEY_PREFIX": f"d{uuid4().hex[:8]}"}
    with make_cluster(2, shared_servers.get("valkey").url, tmp_path, environ) as made:
        trio.run(made.start)
        yield made


@asynccontextmanager
async def worker_process(flow_type: str, urls: Sequence[str], directory: Path) -> AsyncIterator[Child]:
    """``tests/flow_worker.py``, ready to work."""
    child = Child.start(
        "worker",
        "tests.flow_worker",
        [str(os.getpid()), flow_type, *urls],
        environ=environment(),
        log=directory / f"{uuid4().hex}.log",
        pipe=True,
    )
    try:
        with trio.fail_after(LONG_PATIENCE):
            async for line in child.lines():
                if line == "ready":
                    break
        yield child
    finally:
        kill(child)


async def begun(child: Child, attempt: int) -> None:
    """Wait until a worker process has begun an attempt."""
    with trio.fail_after(LONG_PATIENCE):
        async for line in child.lines():
            if line.split()[-1] == str(attempt):
                return


def listening_ports(process_id: int) -> set[str]:
    """Inodes of the sockets on which a process accepts connections."""
    sockets = {link.readlink().name for link in Path(f"/proc/{process_id}/fd").iterdir() if link.is_symlink()}
    rows = [
        row.split()
        for family in ("tcp", "tcp6")
        for row in Path(f"/proc/{process_id}/net/{family}").read_text().splitlines()[1:]
    ]
    return {row[9] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


async def test_r84_a_worker_listens_nowhere(cluster: Cluster, queue: str, tmp_path: Path) -> None:
    async with worker_process(queue, [cluster.url], tmp_path) as child:
        assert listening_ports(child.process.pid) == set()
    assert listening_ports(cluster.nodes[0].child.process.pid)


async def test_r49_a_killed_worker_fails_its_attempt(cluster: Cluster, queue: str, tmp_path: Path) -> None:
    flow = type("Patient", (Patient,), {"name": queue})
    async with Client(cluster.url) as client:
        async with worker_process(queue, [cluster.url], tmp_path) as child:
            handle = await client.start(flow)
            await begun(child, 1)

            async def checkpoint_is_stored() -> bool:
                (step,) = (await handle.describe())["open_steps"]
                return step["last_heartbeat_at"] is not None

            await eventually(checkpoint_is_stored)
            child.process.kill()
            async with worker_process(queue, [cluster.url], tmp_path):
                result = await handle.result(timeout_seconds=60)
        assert result["attempt"] == 2
        assert result["checkpoint"] == {"seen": True}
        steps = (await handle.steps())["steps"]
        assert [(s["event"], s["attempt"]) for s in steps] == [("lost", 1), ("completed", 2)]


async def test_r11_r49_a_worker_of_a_killed_node_goes_to_another(pair: Cluster) -> None:
    flow = type("Patient", (Patient,), {"name": "survivor"})
    first, second = (node.url for node in pair.nodes)
    async with (
        Client([second, first]) as client,
        Worker([first, second], [flow], max_concurrent_tasks=2) as worker,
    ):
        await worker.wait_pull_registered()
        handle = await client.start(flow)

        async def runs() -> bool:
            return any(s["state"] == "running" for s in (await handle.describe())["open_steps"])

        await eventually(runs)
        pair.nodes[0].kill()
        result = await handle.result(timeout_seconds=BURIED_WITHIN + 9)
        assert result["attempt"] == 2
        assert result["worker"] == worker.worker_id
        assert worker.is_ready


class Released(Flow, name="released"):
    """All its attempts end once it is released."""

    def __init__(self) -> None:
        self.began = 0
        self.release = trio.Event()

    @step(options=StepOptions(execute=MethodOptions(retry=RetryPolicy(initial_interval=0.05))))
    async def work(self, ctx: StepContext) -> Decision:
        self.began += 1
        await self.release.wait()
        return complete(ctx.attempt)


async def test_a_worker_behind_the_balancer_survives_its_node(
    shared_servers: SharedServers, tmp_path: Path
) -> None:
    environ = {"HEADRACE_KEY_PREFIX": f"d{uuid4().hex[:8]}"}
    url = shared_servers.get("valkey").url
    with make_cluster(2, url, tmp_path, environ, balanced=True) as balanced:
        await balanced.start()
        flow = Released()
        async with (
            Client(balanced.url) as client,
            Worker(balanced.url, [flow], max_concurrent_tasks=40) as worker,
        ):
            await worker.wait_pull_registered()
            handles = [await client.start(Released) for _ in range(12)]
            await eventually(lambda: flow.began == 12, 20)
            balanced.nodes[0].kill()
            flow.release.set()
            attempts = [await h.result(timeout_seconds=BURIED_WITHIN + 15) for h in handles]
            assert set(attempts) <= {1, 2}
            assert worker.is_ready


class Held(Flow, name="held"):
    def __init__(self) -> None:
        self.began = trio.Event()
        self.release = trio.Event()

    @step(options=StepOptions(execute=MethodOptions(retry=RetryPolicy(maximum_attempts=1))))
    async def work(self, ctx: StepContext) -> Decision:
        self.began.set()
        await self.release.wait()
        return complete(ctx.attempt)


async def test_r78_a_node_that_leaves_lets_the_attempt_finish(pair: Cluster) -> None:
    held = Held()
    first, second = (node.url for node in pair.nodes)
    async with Client(second) as client, Worker([first, second], [held], max_concurrent_tasks=2) as worker:
        await worker.wait_pull_registered()
        handle = await client.start(Held)
        await held.began.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.nodes[0].stop)

            async def answers_rpcs_elsewhere() -> bool:
                return pair.nodes[0].log.count("leaving") > 0

            await eventually(answers_rpcs_elsewhere)
            held.release.set()
        assert await handle.result(timeout_seconds=60) == 1
        again = await client.start(Held)
        assert await again.result(timeout_seconds=60) == 1


async def test_r25_r100_limits_and_credentials(shared_servers: SharedServers, tmp_path: Path) -> None:
    settings = tmp_path / "headrace.yaml"
    settings.write_text("matching:\n  maxConcurrentTasksCap: 3\n")
    environ = {
        "HEADRACE_KEY_PREFIX": f"d{uuid4().hex[:8]}",
        "HEADRACE_CONFIG": str(settings),
        "DW_AUTH_DRIVER": "token",
        "DW_WORKER_TOKEN": "w0rker",
        "DW_OPERATOR_TOKEN": "0perator",
    }
    with make_cluster(1, shared_servers.get("valkey").url, tmp_path / "nodes", environ) as guarded:
        await guarded.start()
        url = guarded.url
        with pytest.raises(TaskLimitTooHigh):
            await Worker(url, [Held], max_concurrent_tasks=4, token="w0rker").run()
        with pytest.raises(PullRegistrationError) as caught:
            await Worker(
                url,
                [Held],
                max_concurrent_tasks=2,
                token="0perator",
                stop_on_permanent_stream_rejection=True,
            ).run()
        assert caught.value.queue in ("step_and_rpc", "rpc_only")
        file = tmp_path / "token"
        file.write_text("w0rker\n")
        held = Held()
        held.release.set()
        async with Client(url, token="w0rker") as client:
            with pytest.raises(NotAuthorized):
                await client.start(Held)
        async with (
            Worker(url, [held], max_concurrent_tasks=3, token_file=str(file)) as worker,
            Client(url, token="0perator") as client,
        ):
            await worker.wait_pull_registered()
            assert await (await client.start(Held)).result(timeout_seconds=60) == 1
