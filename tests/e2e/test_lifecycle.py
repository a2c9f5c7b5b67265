"""Nodes that leave in good order, and ``headrace dev``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis
import trio

from nodes.cli.processes import Child
from tests.cluster_processes import environment, is_ready, kill, make_cluster
from tests.ports import free_port_range
from tests.servers import run_server
from tests.waiting import LONG_PATIENCE, PATIENCE, eventually
from tests.wire import complete, metric, open_wire

POLLS = 20


async def test_sigterm_answers_polls_hands_over_and_ends(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    with make_cluster(2, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}) as cluster:
        await cluster.start()
        leaving, staying = cluster.nodes
        answers: list[object] = []
        async with open_wire(leaving.url) as a, open_wire(staying.url) as b:
            await a.register("w", "q", workflows=["t"])
            await a.start("t", "q", "before")
            task = await a.task("workflow", "w", "q")

            async def poll() -> None:
                answers.append(await a.poll("workflow", "w", "q", seconds=60))

            async def all_parked() -> bool:
                return await metric(a, "headrace_polls_parked") == POLLS

            async with trio.open_nursery() as nursery:
                for _ in range(POLLS):
                    nursery.start_soon(poll)
                await eventually(all_parked)
                began = trio.current_time()
                leaving.signal(signal.SIGTERM)
            assert answers == [None] * POLLS
            assert trio.current_time() - began < PATIENCE
            assert not await is_ready(leaving.url)
            with trio.fail_after(LONG_PATIENCE):
                assert await leaving.child.wait() == 0, leaving.log
            assert "Traceback" not in leaving.log

            async def taken_over() -> bool:
                return await metric(b, "headrace_partitions_owned") == 16

            await eventually(taken_over)
            # What the node had handed out is finished elsewhere.
            assert (await b.complete_workflow_task(task, complete("done")))["run_status"] == "completed"


@contextmanager
def running_dev(directory: Path, port: int) -> Iterator[Child]:
    arguments = ["dev", "--nodes", "2", "--port", str(port), "--data-dir", str(directory)]
    child = Child.start(
        "dev",
        "nodes.cli.main",
        arguments,
        environ=environment(),
        log=directory.with_suffix(".log"),
        pipe=True,
    )
    try:
        yield child
    finally:
        everybody = descendants(child.process.pid)
        kill(child)
        for pid in everybody:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The process ids of all children, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_dev_says_one_line_and_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    port = free_port_range(2)
    with running_dev(tmp_path / "data", port) as dev:
        lines: list[str] = []
        with trio.fail_after(LONG_PATIENCE):
            async for line in dev.lines():
                lines.append(line)
                break
        assert lines == [f"headrace: ready http://127.0.0.1:{port} http://127.0.0.1:{port + 1}"]
        for url in lines[0].split()[2:]:
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"{url}/api/health")).status_code == 200
        children = descendants(dev.process.pid)
        assert len(children) >= 3
        dev.signal(number)
        with trio.fail_after(LONG_PATIENCE):
            code = await dev.wait()
        assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
        await eventually(lambda: not any(alive(pid) for pid in children), 30)
        assert not await is_ready(f"http://127.0.0.1:{port}")
        rest = [line async for line in dev.lines()]
        assert rest == []
        assert dev.log.read_text() == ""


async def test_dev_keeps_its_data(tmp_path: Path) -> None:
    port = free_port_range(2)
    for start in (True, False):
        with running_dev(tmp_path / "data", port) as dev, trio.fail_after(LONG_PATIENCE):
            async for _ in dev.lines():
                break
            async with open_wire(f"http://127.0.0.1:{port}") as wire:
                if start:
                    await wire.start("t", "q", "kept")
                assert (await wire.describe("kept"))["status"] == "pending"
            dev.signal(signal.SIGTERM)
            assert await dev.wait() == 0


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_nodes_end_when_the_store_was_emptied(kind: str, tmp_path: Path) -> None:
    """And say so in one line; started again they begin anew."""
    with run_server(kind, tmp_path) as server, make_cluster(2, server.url, tmp_path) as cluster:
        await cluster.start()
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        for node in cluster.nodes:
            with trio.fail_after(LONG_PATIENCE):
                assert await node.child.wait() == 2, node.log
            last = node.log.splitlines()[-1]
            assert last.startswith("headrace: the record of the cluster 'hr1' is "), node.log
            assert "Traceback" not in node.log
        await cluster.start()
        async with open_wire(cluster.nodes[1].url) as wire:
            assert (await wire.start("t", "q", "anew"))["outcome"] == "started_new"
