"""A cluster of real processes: ``headrace serve`` nodes, HAProxy in front, SDK workers beside.

Everything is started from the test process and killed with the ``with`` block that made it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trio

from nodes.cli.processes import Child
from tests.ports import free_ports
from tests.waiting import LONG_PATIENCE, eventually

READY_SECONDS = 120.0
COMMAND_SECONDS = 180.0
HOST = "127.0.0.1"
TOP = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: ours without what the shell says about Headrace."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DW_", "HEADRACE_", "DURABLE_WORKFLOW_")) and name != "REDIS_URL"
    }
    return {**ours, "PYTHONPATH": str(TOP), **more}


def kill(child: Child) -> None:
    """End a process at once and reap it."""
    with suppress(ProcessLookupError):
        child.process.kill()
    child.process.wait()
    if child.process.stdout is not None:
        child.process.stdout.close()


@dataclass
class NodeProcess:
    """One ``headrace serve`` that can be killed, stopped, frozen and started again."""

    name: str
    redis_url: str
    directory: Path
    port: int
    environ: Mapping[str, str] = field(default_factory=dict)
    worker_port: int | None = None
    starts: int = 0
    _child: Child | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def worker_url(self) -> str:
        """Where workers go: the worker listener, or the other port when there is none."""
        return f"http://{HOST}:{self.worker_port or self.port}"

    @property
    def child(self) -> Child:
        assert self._child is not None, f"{self.name} was never started"
        return self._child

    @property
    def log(self) -> str:
        """What the present process wrote so far."""
        return self.child.log.read_text(errors="replace")

    def start(self) -> None:
        """Start without waiting for it."""
        self.starts += 1
        arguments = ["serve", "--parent", str(os.getpid()), "--listen", f"{HOST}:{self.port}"]
        arguments += ["--node-name", self.name, "--redis-url", self.redis_url]
        listener = (
            {} if self.worker_port is None else {"HEADRACE_WORKER_LISTEN": f"{HOST}:{self.worker_port}"}
        )
        self._child = Child.start(
            self.name,
            "nodes.cli.main",
            arguments,
            environ=environment(**{"DW_AUTH_DRIVER": "none", **listener, **self.environ}),
            log=self.directory / f"{self.name}-{self.starts}.log",
        )

    async def ready(self, within: float = READY_SECONDS) -> None:
        """Wait until it says so; fails at once when it ended instead."""
        await wait_ready(self.url, within, self._check_alive)

    def _check_alive(self) -> None:
        code = self.child.exit_code
        if code is not None:
            raise AssertionError(f"{self.name} ended with code {code}: {self.log[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        self.child.signal(number)

    async def stop(self, within: float = LONG_PATIENCE) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        with trio.fail_after(within):
            return await self.child.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._child is not None:
            kill(self._child)

    async def restart(self) -> None:
        """Kill, start again on the same port, wait until ready."""
        self.kill()
        self.start()
        await self.ready()


async def is_ready(url: str) -> bool:
    """Whether ``url``/api/ready answers 200."""
    async with _looking() as client:
        return await _answers(client, url)


def _looking() -> httpx.AsyncClient:
    """Made once for many looks: what a client costs would keep a core from the node that starts."""
    return httpx.AsyncClient(timeout=5, trust_env=False, verify=False)


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/api/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def wait_ready(url: str, within: float, check: object = None) -> None:
    """Wait until whatever listens on ``url`` is ready; ``check`` may raise to give up early."""
    async with _looking() as client:

        async def look() -> bool:
            if callable(check):
                check()
            return await _answers(client, url)

        await eventually(look, within)


def targets(nodes: Sequence[NodeProcess]) -> dict[str, str]:
    """The variables that name nodes in the balancers' configurations; missing nodes are ports nobody has."""
    missing = [NodeProcess("", "", Path(), port) for port in free_ports(3 - len(nodes))]
    named: dict[str, str] = {}
    for number, node in enumerate([*nodes, *missing], 1):
        named[f"NODE_{number}"] = f"{HOST}:{node.port}"
        if nodes[0].worker_port is not None:
            named[f"NODE_{number}_WORKERS"] = f"{HOST}:{node.worker_port or node.port}"
    return named


@dataclass
class Balancer:
    """Real HAProxy with the rules of ``deploy/haproxy.cfg``, or those of ``rules``."""

    port: int
    nodes: Sequence[NodeProcess]
    directory: Path
    rules: Path = TOP / "deploy/haproxy.cfg"
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """One line for each request, with the backend and the node it went to."""
        return self.directory / "haproxy.log"

    def start(self) -> None:
        program = shutil.which("haproxy") or "/usr/sbin/haproxy"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "-db", "-n", "4000", "-f", str(self.rules)],
                env=environment(LISTEN=f"{HOST}:{self.port}", **targets(self.nodes)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Cluster:
    """Nodes over one store, and perhaps a balancer; ``workers`` are killed with it."""

    nodes: list[NodeProcess]
    directory: Path
    balancer: Balancer | None = None
    workers: list[Child] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where clients go: the balancer, or the first node when there is none."""
        return self.balancer.url if self.balancer else self.nodes[0].url

    async def start(self) -> None:
        """Start everything and wait until it serves."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            await node.ready()
        if self.balancer is not None:
            self.balancer.start()
            await wait_ready(self.balancer.url, READY_SECONDS)

    async def revive(self) -> None:
        """Start the nodes that are dead, as an earlier test may have left them."""
        for node in self.nodes:
            if node.child.exit_code is not None:
                await node.restart()

    def start_worker(
        self, queue: str, *, url: str | None = None, module: str = "tests.sdk_worker", **options: str
    ) -> Child:
        """An SDK worker process for ``queue``; see :func:`worker_ready`."""
        number = len(self.workers)
        arguments = [url or self.url, queue, str(os.getpid()), str(self.directory / f"{queue}.events")]
        arguments += [f"--{key}={value}" for key, value in options.items()]
        child = Child.start(
            f"worker-{number}",
            module,
            arguments,
            environ=environment(),
            log=self.directory / f"{queue}-worker-{number}.log",
            pipe=True,
        )
        self.workers.append(child)
        return child

    def kill(self) -> None:
        for worker in self.workers:
            kill(worker)
        if self.balancer is not None:
            self.balancer.kill()
        for node in self.nodes:
            if node.starts:
                node.kill()


async def worker_ready(worker: Child, within: float = LONG_PATIENCE) -> None:
    """Wait until an SDK worker has registered and polls."""
    with trio.move_on_after(within):
        async for line in worker.lines():
            if line == "ready":
                return
    raise AssertionError(f"the worker did not become ready: {worker.log.read_text()[-2000:]}")


@contextmanager
def make_cluster(
    count: int,
    redis_url: str,
    directory: Path,
    environ: Mapping[str, str] | None = None,
    *,
    balanced: bool = False,
    listeners: bool = False,
) -> Iterator[Cluster]:
    """``count`` nodes that are not started yet; killed when the block ends.

    ``environ`` is what their environment has beyond ours; authentication is off. With ``listeners``
    each has a worker listener too, and the balancer sends workers there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ports = iter(free_ports(2 * count + balanced))
    nodes = [
        NodeProcess(
            f"node-{number}",
            redis_url,
            directory,
            next(ports),
            environ or {},
            next(ports) if listeners else None,
        )
        for number in range(1, count + 1)
    ]
    cluster = Cluster(nodes, directory, Balancer(next(ports), nodes, directory) if balanced else None)
    try:
        yield cluster
    finally:
        cluster.kill()


def run_command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``headrace`` with ``arguments`` to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "nodes.cli.main", *arguments],
        env=environment(**environ),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
