"""Two releases side by side in one cluster under load: every node upgraded in turn, and back again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
import trio

from cluster.version import VERSION
from nodes.cli.processes import Child
from tests.chaos.load import check_attempts, check_histories, start_all, wait_all
from tests.cluster_processes import (
    HOST,
    TOP,
    Cluster,
    NodeProcess,
    environment,
    make_cluster,
    worker_ready,
)
from tests.servers import run_server
from tests.wire import Wire, complete, open_wire

NEWER = "99.0.0"
PER_PHASE = 12


def _edit(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text(), count=1)
    assert count == 1, (path, pattern)
    path.write_text(text)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """Sources of a later release: other scripts, and a field that every decision about a run counts up."""
    source = tmp_path / "newer"
    for package in ("cluster", "nodes"):
        shutil.copytree(TOP / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    _edit(source / "cluster/version.py", re.escape(f'"{VERSION}"'), f'"{NEWER}"')
    for script in ("commit", "claim"):
        _edit(source / f"cluster/store/lua/{script}.lua", r"\Z", "\n-- of a later release\n")
    _edit(
        source / "cluster/workflows/records.py",
        r'(class RunState\(.*\n    """.*"""\n)',
        r"\1\n    counted: int = 0\n",
    )
    planning = source / "cluster/workflows/planning.py"
    _edit(
        planning,
        r"    state = changes\.state\n",
        "    from msgspec.structs import replace\n"
        "    state = replace(changes.state, counted=run.state.counted + 1)\n",
    )
    return source


class Upgradable(NodeProcess):
    """A node whose next start may be of another release."""

    source = TOP

    def start(self) -> None:
        self.starts += 1
        log = self.directory / f"{self.name}-{self.starts}.log"
        arguments = ["serve", "--parent", str(os.getpid()), "--listen", f"{HOST}:{self.port}"]
        arguments += ["--node-name", self.name, "--redis-url", self.redis_url]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "nodes.cli.main", *arguments],
                cwd=self.source,
                env=environment(**{"DW_AUTH_DRIVER": "none", **self.environ, "PYTHONPATH": str(self.source)}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        self._child = Child(self.name, process, log)

    async def become(self, source: Path) -> None:
        """Leave in good order and come back as the release in ``source``."""
        assert await self.stop() == 0, self.log
        assert "Traceback" not in self.log, self.log
        self.source = source
        self.start()
        await self.ready()


async def _versions(wire: Wire) -> set[str]:
    return {node["version"] for node in (await wire.get("/nodes"))["nodes"]}


class LongRun:
    """A run that lives through all of it: each signal makes one decision, on whichever node gets it."""

    def __init__(self, wire: Wire, client: redis.Redis) -> None:
        self._wire = wire
        self._client = client

    async def begin(self) -> None:
        await self._wire.register("long", "long", workflows=["long"])
        await self._wire.start("long", "long", "long-1")
        await self._decide({"type": "open_condition_wait", "condition_key": "forever"})

    async def move(self) -> None:
        await self._wire.post("/workflows/long-1/signal/go", {"input": []})
        await self._decide({"type": "open_condition_wait", "condition_key": "forever"})

    async def end(self) -> None:
        await self._wire.post("/workflows/long-1/signal/end", {"input": []})
        await self._decide(complete("done"))
        assert (await self._wire.describe("long-1"))["status"] == "completed"

    async def _decide(self, command: dict[str, Any]) -> None:
        task = await self._wire.task("workflow", "long", "long")
        await self._wire.complete_workflow_task(task, command)

    @property
    def state(self) -> dict[str, Any]:
        """Its record as it lies in Redis."""
        for key in self._client.scan_iter("hr1:{p*}:run:*"):
            if self._client.hget(key, "wid") == b"long-1":
                raw = self._client.hget(key, "s")
                assert isinstance(raw, bytes)
                found: dict[str, Any] = msgspec.msgpack.decode(raw)
                return found
        raise AssertionError("the run is gone")


@pytest.mark.timeout(240)
async def test_nodes_are_upgraded_in_turn_and_back_under_load(
    tmp_path: Path, newer: Path, short_leases: dict[str, str]
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with (
        run_server("redis", store) as server,
        make_cluster(3, server.url, tmp_path, short_leases, balanced=True) as cluster,
        server.client() as client,
    ):
        for number, node in enumerate(cluster.nodes):
            cluster.nodes[number] = Upgradable(
                node.name, node.redis_url, node.directory, node.port, node.environ
            )
        await cluster.start()
        await worker_ready(cluster.start_worker("chaos", poll="2"))
        started: list[str] = []
        async with open_wire(cluster.url) as wire:
            run = LongRun(wire, client)
            await run.begin()

            async def under_load(job: Callable[[], Awaitable[None]]) -> None:
                ids = [f"w{len(started) + number}" for number in range(PER_PHASE)]
                started.extend(ids)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(start_all, wire, "chaos", ids, 0.1)
                    await job()

            await under_load(lambda: _replace(cluster, newer, wire, run))
            assert await _versions(wire) == {NEWER}
            await run.move()
            counted = run.state["counted"]
            assert counted > 0
            await under_load(lambda: _replace(cluster, TOP, wire, run))
            assert await _versions(wire) == {VERSION}
            after = run.state["counted"]
            assert after >= counted
            await run.move()
            assert run.state["counted"] == after, "a node of this release lost what a newer one had written"
            await run.end()
            await wait_all(wire, started, within=60)
            await check_histories(wire, started)
        check_attempts(tmp_path / "chaos.events", 3 * len(started))


async def _replace(cluster: Cluster, source: Path, wire: Wire, run: LongRun) -> None:
    """Replace the nodes one after the other; in between both releases serve."""
    for node in cluster.nodes[:-1]:
        assert isinstance(node, Upgradable)
        await node.become(source)
        assert await _versions(wire) == {VERSION, NEWER}
        await run.move()
    last = cluster.nodes[-1]
    assert isinstance(last, Upgradable)
    await last.become(source)
