"""The servers of workflow engines: each as real processes with data of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import trio

from tests.bench.peers.environments import NotInstalled
from tests.bench.processes import ended, last_words, started
from tests.cluster_processes import HOST, environment
from tests.ports import free_port
from tests.waiting import eventually

START_SECONDS = 60
_POSTGRESQL = Path("/usr/lib/postgresql")
"""Where Debian has every version of it."""


@dataclass(frozen=True)
class Server:
    """A server that runs; ``environ`` is what the programs of its peer need to know."""

    process: int
    environ: Mapping[str, str]
    settled: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    """Waits until it does no start-up work and knows the worker, which runs already."""


Serving = Callable[[Path, Path], AbstractAsyncContextManager[Server]]
"""Takes the environment of the peer and a directory for data and logs; raises NotInstalled."""


@asynccontextmanager
async def temporal(home: Path, directory: Path) -> AsyncIterator[Server]:
    """Temporal's development server with its database in a file."""
    port = free_port()
    command = [str(home / "bin/temporal"), "server", "start-dev", "--headless", "--port", str(port)]
    command += ["--db-filename", str(directory / "temporal.db"), "--log-level", "error"]
    process = started(command, directory / "server.log", environment())
    with ended(process):
        yield Server(process.pid, {"BENCH_URL": f"{HOST}:{port}"}, partial(trio.sleep, 3))


@asynccontextmanager
async def restate(home: Path, directory: Path) -> AsyncIterator[Server]:
    """Restate's server on its own; the worker is a service that it calls and has to be told of."""
    node, ingress, admin, service = (free_port() for _ in range(4))
    environ = environment(
        RESTATE_BASE_DIR=str(directory / "restate"),
        RESTATE_LISTEN_MODE="tcp",
        RESTATE_BIND_IP=HOST,
        RESTATE_BIND_PORT=str(node),
        RESTATE_INGRESS__BIND_PORT=str(ingress),
        RESTATE_ADMIN__BIND_PORT=str(admin),
        RESTATE_NODE_NAME="bench",
        RESTATE_LOG_FILTER="error",
    )
    command = [str(home / "node_modules/.bin/restate-server"), "--no-logo"]
    process = started(command, directory / "server.log", environ)

    async def registered() -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                body = {"uri": f"http://{HOST}:{service}"}
                answer = await client.post(f"http://{HOST}:{admin}/deployments", json=body)
            except httpx.TransportError:
                return False
        return answer.is_success

    with ended(process):
        more = {"BENCH_URL": f"http://{HOST}:{ingress}", "BENCH_SERVICE": f"{HOST}:{service}"}
        yield Server(process.pid, more, partial(eventually, registered, START_SECONDS))


@asynccontextmanager
async def postgresql(_home: Path, directory: Path) -> AsyncIterator[Server]:
    """Debian's PostgreSQL with its default settings, so with fsync. Root has it run by ``postgres``."""
    programs = newest(_POSTGRESQL)
    user = "postgres" if os.geteuid() == 0 else None
    port, log = free_port(), directory / "server.log"
    with tempfile.TemporaryDirectory(prefix="headrace-bench-postgresql-") as place:
        data = Path(place) / "data"
        if user is not None:
            shutil.chown(place, user, user)
        making = [str(programs / "initdb"), "-D", str(data), "-U", "bench", "--auth", "trust", "-E", "UTF8"]
        making_process = started(making, log, environment(), Path(place), user)
        if await trio.to_thread.run_sync(making_process.wait):
            raise NotInstalled(f"initdb: {last_words(log.read_text(errors='replace'))}")
        serving = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-h", HOST, "-k", ""]
        process = started(serving, log, environment(), Path(place), user)
        with ended(process, signal.SIGINT):
            ask = [str(programs / "pg_isready"), "--quiet", "--host", HOST, "--port", str(port)]

            async def accepts() -> bool:
                return (await trio.run_process(ask, check=False)).returncode == 0

            await eventually(accepts, START_SECONDS)
            yield Server(process.pid, {"BENCH_URL": f"postgresql://bench@{HOST}:{port}/bench"})


def newest(versions: Path) -> Path:
    """The programs of the newest version below ``versions``. Raises NotInstalled when there is none."""
    found = [path for path in versions.glob("*/bin") if path.parent.name.isdigit()]
    if not found:
        raise NotInstalled(f"no PostgreSQL below {versions}")
    return max(found, key=lambda path: int(path.parent.name))


SERVERS: Mapping[str, Serving] = {"temporal": temporal, "dbos": postgresql, "restate": restate}
"""By the name of the peer."""
