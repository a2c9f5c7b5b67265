"""An embedded store and node processes on this machine, for ``headrace dev`` and ``headrace demo``."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from cluster.errors import StartupError
from cluster.settings import load_settings
from nodes.cli.processes import Child, stopping

HOST = "127.0.0.1"
READY_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.05
# Set for each node by its parent; what the user's environment says about them is meant for one node.
_OWN_VARIABLES = (
    "HEADRACE_LISTEN",
    "HEADRACE_WORKER_LISTEN",
    "HEADRACE_NODE_NAME",
    "DW_SERVER_ID",
    "REDIS_URL_FILE",
)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node process on this machine."""

    child: Child
    port: int

    @property
    def name(self) -> str:
        return self.child.name

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def check_ports(ports: Sequence[int]) -> None:
    """Raises StartupError when a port cannot be listened on."""
    for port in ports:
        if port > 65535:
            raise StartupError(f"port {port} does not exist; choose a lower --port")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                raise StartupError(
                    f"cannot listen on {HOST}:{port}: {reason}; choose another with --port"
                ) from error


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@asynccontextmanager
async def running_store(directory: Path, logs: Path, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """An embedded Valkey on ``directory``; yields its URL and stops it when the block ends."""
    child = Child.start(
        "the embedded store",
        "nodes.cli.keeper",
        [str(directory), str(os.getpid())],
        environ=environ,
        log=logs / "keeper.log",
        pipe=True,
    )
    async with stopping([child]):
        async with aclosing(child.lines()) as lines:
            url = await anext(lines, None)
        if url is None:
            await child.wait()
            raise StartupError(child.last_words().removeprefix("headrace: "))
        yield url


@asynccontextmanager
async def running_nodes(
    ports: Sequence[int], redis_url: str, logs: Path, environ: Mapping[str, str]
) -> AsyncIterator[list[LocalNode]]:
    """One node process for each port, all ready; stopped when the block ends.

    Authentication is off, which is safe because they listen on loopback only. Raises StartupError
    for settings in ``environ`` that a node would refuse and for a node that does not become ready.
    """
    shared = {name: value for name, value in environ.items() if name not in _OWN_VARIABLES}
    shared |= {"DW_AUTH_DRIVER": "none", "REDIS_URL": redis_url}
    load_settings(environ=shared)

    children: list[Child] = []
    local: list[LocalNode] = []
    async with stopping(children):
        for number, port in enumerate(ports, 1):
            name = f"node-{number}"
            arguments = ["serve", "--parent", str(os.getpid())]
            arguments += ["--listen", f"{HOST}:{port}", "--node-name", name]
            log = logs / f"{name}.log"
            children.append(Child.start(name, "nodes.cli.main", arguments, environ=shared, log=log))
            local.append(LocalNode(children[-1], port))
        await _wait_ready(local, logs)
        yield local


async def _wait_ready(local: Sequence[LocalNode], logs: Path) -> None:
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        with trio.move_on_after(READY_SECONDS) as limit:
            for node in local:
                await _until_ready(node, client)
    if limit.cancelled_caught:
        raise StartupError(f"the nodes were not ready within {READY_SECONDS:.0f} s; their logs are in {logs}")


async def _until_ready(node: LocalNode, client: httpx.AsyncClient) -> None:
    while True:
        if await _is_ready(node, client):
            return
        await trio.sleep(_LOOK_AGAIN_SECONDS)


async def _is_ready(node: LocalNode, client: httpx.AsyncClient) -> bool:
    code = node.child.exit_code
    if code is not None:
        words = node.child.last_words().removeprefix("headrace: ")
        raise StartupError(f"{node.name} ended at start with code {code}: {words} (log: {node.child.log})")
    try:
        response = await client.get(f"{node.url}/api/ready")
    except httpx.TransportError:
        return False
    return response.status_code == httpx.codes.OK
