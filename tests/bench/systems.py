"""Systems under measurement as real processes: a Redis of their own, nodes where it is Headrace, a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
import trio

from tests.bench.figures import noted, say
from tests.bench.measuring import Usage, usage
from tests.bench.peers.environments import install
from tests.bench.peers.peer import PROGRAMS, Peer
from tests.bench.processes import ended, last_words, started
from tests.bench.report import Section, brief
from tests.bench.session import Session
from tests.cluster_processes import TOP, Cluster, environment, make_cluster
from tests.servers import Server, run_server

APPEND_ONLY = ("--appendonly", "yes", "--appendfsync", "everysec")
SEND_SECONDS = 600
DRIVE_SECONDS = 120
LOOK_SECONDS = 0.005


class Stalled(Exception):
    """A system that made no progress, with the last words of its process."""


@dataclass
class System:
    """One peer with what it needs to run; made by :func:`running`."""

    peer: Peer
    directory: Path
    home: Path
    """Its environment."""
    server: Server
    redis: redis.Redis
    cluster: Cluster | None = None
    log: Path = field(init=False)
    notes: Path = field(init=False)
    more: dict[str, str] = field(default_factory=dict)
    """Further variables of its processes."""
    _worker: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.log = self.directory / "worker.log"
        self.notes = self.directory / "notes"

    def _command(self, line: tuple[str, ...], *more: str) -> list[str]:
        known = {"bin": str(self.home / "bin"), "python": sys.executable, "programs": str(PROGRAMS)}
        return [part.format(**known, **self.more) for part in (*line, *more)]

    def _environ(self) -> dict[str, str]:
        more = {
            "BENCH_REDIS_URL": self.server.url,
            "BENCH_NOTES": str(self.notes),
            "BENCH_MODULES": str(self.home / "node_modules"),
            "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *([] if self.peer.installed else [str(TOP)])]),
        }
        if self.cluster is not None:
            node = self.cluster.nodes[0]
            workers = node.worker_url if self.cluster.balancer is None else self.cluster.url
            last = self.cluster.nodes[-1].url
            more |= {"BENCH_URL": node.url, "BENCH_WORKER_URL": workers, "BENCH_LAST_URL": last}
        for name, value in self.peer.environ.items():
            more[name] = value.format(**more)
        return environment(**{**more, **self.more})

    async def drive(self, activities: int, at_once: int, count: int) -> tuple[float, float]:
        """Run ``count`` workflows in a closed loop; returns the seconds it took, and CPU of the client.

        Raises Stalled.
        """
        with trio.move_on_after(DRIVE_SECONDS):
            done = await trio.run_process(
                self._command(self.peer.sender, "drive", str(activities), str(at_once), str(count)),
                env=self._environ(),
                cwd=self.directory,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            if done.returncode == 0:
                seconds, used = map(float, done.stdout.split())
                return seconds, used
            words = last_words(done.stderr.decode(errors="replace"))
            raise Stalled(f"the client ended with {done.returncode}: {words}")
        raise Stalled(f"{count} workflows did not end within {DRIVE_SECONDS} s")

    async def send(self, count: int, rate: float = 0.0) -> float:
        """Enqueue ``count`` tasks in a process of its own; returns the seconds from its start to its end.

        Raises Stalled when it fails.
        """
        began = trio.current_time()
        done = None
        with trio.move_on_after(SEND_SECONDS), (self.directory / "sender.log").open("ab") as log:
            done = await trio.run_process(
                self._command(self.peer.sender, str(count), str(rate)),
                env=self._environ(),
                cwd=self.directory,
                stdout=log,
                stderr=log,
                check=False,
            )
        if done is None:
            raise Stalled(f"{count} tasks were not sent within {SEND_SECONDS} s")
        if done.returncode:
            words = last_words((self.directory / "sender.log").read_text(errors="replace"))
            raise Stalled(f"the sender ended with {done.returncode}: {words}")
        return trio.current_time() - began

    @contextmanager
    def worker(self) -> Iterator[int]:
        """A worker while the block runs, as a process group that ends with it; yields its process id.

        Raises OSError when its program is not there.
        """
        process = started(self._command(self.peer.worker), self.log, self._environ(), self.directory)
        with ended(process):
            try:
                self._worker = process
                yield process.pid
            finally:
                self._worker = None

    def ran(self) -> int:
        """How many tasks ran since the notes were cleared."""
        return self.notes.stat().st_size // 8 if self.notes.exists() else 0

    def forget(self) -> None:
        """Begin the notes anew; while no worker runs."""
        self.notes.unlink(missing_ok=True)

    def latencies(self) -> list[float]:
        """Seconds from due to begun, of every task since the notes were cleared."""
        return noted(self.notes)

    async def until(self, count: int, stall: float = 60.0) -> None:
        """Wait until so many tasks ran. Raises Stalled after ``stall`` seconds without any, or
        at once when the worker has ended."""
        seen, since = -1, trio.current_time()
        while (now := self.ran()) < count:
            if now != seen:
                seen, since = now, trio.current_time()
            elif trio.current_time() - since > stall or (self._worker and self._worker.poll() is not None):
                words = last_words(self.log.read_text(errors="replace"))
                raise Stalled(f"{now} of {count} tasks ran; the worker's last words: {words}")
            await trio.sleep(LOOK_SECONDS)

    def used(self, *workers: int) -> Usage:
        """What nodes, Redis and these workers have used so far."""
        nodes = [] if self.cluster is None else [node.child.process.pid for node in self.cluster.nodes]
        return usage(self.redis, nodes, workers)

    def beside(self, name: str, peer: Peer) -> System:
        """``peer`` over the same Redis and nodes, with notes of its own."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return System(peer, directory, self.home, self.server, self.redis, self.cluster)


@asynccontextmanager
async def running(peer: Peer, directory: Path) -> AsyncIterator[System]:
    """``peer`` with a Redis of its own, and nodes if it is Headrace. Raises NotInstalled."""
    await trio.Path(directory).mkdir(parents=True)
    home = install(peer) if peer.installed else directory
    with run_server("redis", directory, *APPEND_ONLY) as server, server.client() as client:
        if not peer.headrace:
            yield System(peer, directory, home, server, client)
            return
        made = make_cluster(
            peer.nodes, server.url, directory / "nodes", balanced=peer.balanced, listeners=True
        )
        with made as cluster:
            await cluster.start()
            yield System(peer, directory, home, server, client, cluster)


async def all_running(
    stack: AsyncExitStack, peers: Iterable[Peer], session: Session, section: Section
) -> list[System]:
    """Those of ``peers`` that can be had, until ``stack`` ends; the section says why the others cannot."""
    systems = []
    for peer in peers:
        try:
            systems.append(await stack.enter_async_context(running(peer, session.place(peer.name))))
        except Exception as error:
            leave_out(section, peer, error)
    return systems


def leave_out(section: Section, peer: Peer, error: Exception) -> None:
    """Say that ``peer`` is not measured any more, and why."""
    say("not run", f"{peer.title}: {error}")
    section.absent[peer.title] = brief(error)
