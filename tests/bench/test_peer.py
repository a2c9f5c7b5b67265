"""The same Redis under dramatiq: what a task costs where nothing but the task is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.bench.reporting import RUNS, cpu_seconds, say, spread
from tests.cluster_processes import TOP, environment
from tests.servers import Server

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

MESSAGES = 3_000
PROGRAM = Path(__file__).parent / "dramatiq_peer.py"


class Drain:
    """Runs of one dramatiq worker process with 8 threads (its default), which works off what is there."""

    def __init__(self, server: Server) -> None:
        dramatiq = pytest.importorskip(
            "dramatiq", reason="the peer is not installed: pip install 'dramatiq[redis]'"
        )
        self.version: str = dramatiq.__version__
        self._server = server
        self._environ = environment(
            BENCH_REDIS_URL=server.url, PYTHONPATH=os.pathsep.join([str(TOP), *sys.path])
        )
        self.per_core: list[float] = []
        """Messages in a second of the worker's CPU, of each run."""

    def run(self) -> float:
        """Messages a second."""
        program = [sys.executable, str(PROGRAM), str(MESSAGES)]
        subprocess.run(program, env=self._environ, check=True, timeout=60)
        command = [sys.executable, "-m", "dramatiq", "-p", "1", "tests.bench.dramatiq_peer"]
        quiet = subprocess.DEVNULL
        with (
            self._server.client() as client,
            subprocess.Popen(command, env=self._environ, cwd=TOP, stdout=quiet, stderr=quiet) as worker,
        ):
            try:
                _until(client, 1)
                pids = [worker.pid, *_children(worker.pid)]
                cpu, began = sum(map(cpu_seconds, pids)), time.monotonic()
                first = _done(client)
                _until(client, MESSAGES)
                seconds = time.monotonic() - began
                self.per_core.append((MESSAGES - first) / (sum(map(cpu_seconds, pids)) - cpu))
                return (MESSAGES - first) / seconds
            finally:
                worker.terminate()


def test_dramatiq(server: Server, durability: str) -> None:
    drain = Drain(server)
    rates = [drain.run() for _ in range(RUNS + 1)][1:]
    say(f"dramatiq {drain.version} [{durability}]", spread(rates, "messages/s"))
    say(f"  per second of worker CPU [{durability}]", spread(drain.per_core[1:], "messages"))


def _done(client: redis.Redis) -> int:
    found = client.get("done")
    return int(found) if isinstance(found, bytes) else 0


def _until(client: redis.Redis, count: int) -> None:
    deadline = time.monotonic() + 60
    while _done(client) < count:
        assert time.monotonic() < deadline, "dramatiq did not finish"
        time.sleep(0.005)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [found for child in map(int, text.split()) for found in (child, *_children(child))]
