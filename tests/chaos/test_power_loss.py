"""The machine of Redis loses power: what was not on disk is gone, what was acknowledged must not be.

The append-only file is cut back to what it was when the last acknowledgement came, as if nothing written
later had reached the disk. With ``appendfsync always`` the server writes, syncs and answers in that
order (rule A2), so all of that was on disk. Cut back further, to a moment before the last
acknowledgements, it is what `memory` promises: a consistent earlier state, in which work goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
import trio

from tests.cluster_processes import Cluster, make_cluster
from tests.servers import Server, run_server
from tests.waiting import eventually
from tests.wire import Wire, complete, open_wire

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")


class Disk:
    """The append-only file of a server, and how long it was at each acknowledgement."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.acknowledged: list[tuple[int, str]] = []

    @property
    def file(self) -> Path:
        """The part that grows."""
        (found,) = (self._server.directory / "appendonlydir").glob("*.incr.aof")
        return found

    def note(self, workflow_id: str) -> None:
        """An answer came: whatever it confirms was written before."""
        self.acknowledged.append((self.file.stat().st_size, workflow_id))

    def lose_power(self, length: int) -> None:
        """Kill the server and keep so many bytes of its file."""
        self._server.kill()
        os.truncate(self.file, length)


async def start_forever(wire: Wire, name: str, disk: Disk) -> None:
    number = 0
    while True:
        number += 1
        workflow_id = f"{name}-{number}"
        body = {"workflow_type": "t", "task_queue": "q", "workflow_id": workflow_id}
        try:
            response = await wire.client.post("/api/workflows", json=body)
        except httpx.TransportError:
            continue
        if response.status_code == httpx.codes.CREATED:
            disk.note(workflow_id)
        else:
            await trio.sleep(0.05)


async def start_until(cluster: Cluster, disk: Disk, least: int) -> None:
    """Start workflows through all nodes until so many are acknowledged; stops in the middle of it."""
    async with (
        open_wire(cluster.nodes[0].url) as a,
        open_wire(cluster.nodes[1].url) as b,
        trio.open_nursery() as nursery,
    ):
        for number in range(6):
            nursery.start_soon(start_forever, (a, b)[number % 2], f"w{number}", disk)
        await eventually(lambda: len(disk.acknowledged) >= least, 30)
        nursery.cancel_scope.cancel()


async def found(wire: Wire, workflow_id: str) -> bool:
    response = await wire.client.get(f"/api/workflows/{workflow_id}")
    assert response.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND), response.text
    return response.status_code == httpx.codes.OK


async def work_off(wire: Wire) -> int:
    """Do everything that waits; how much that was."""
    await wire.register("w", "q", workflows=["t"])
    done = 0
    while (task := await wire.poll("workflow", "w", "q", seconds=4)) is not None:
        assert (await wire.complete_workflow_task(task, complete()))["run_status"] == "completed"
        done += 1
    return done


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_fsync_survives_a_loss_of_power(kind: str, tmp_path: Path) -> None:
    with (
        run_server(kind, tmp_path, *ALWAYS) as server,
        make_cluster(2, server.url, tmp_path, {"HEADRACE_DURABILITY": "fsync"}) as cluster,
    ):
        await cluster.start()
        disk = Disk(server)
        await start_until(cluster, disk, 150)
        disk.lose_power(max(length for length, _ in disk.acknowledged))
        server.start()
        for node in cluster.nodes:
            await node.ready()
        async with open_wire(cluster.nodes[1].url) as wire:
            for _, workflow_id in disk.acknowledged:
                assert await found(wire, workflow_id), workflow_id
            assert await work_off(wire) >= len(disk.acknowledged)


@pytest.mark.timeout(240)
async def test_memory_loses_the_last_moment_and_goes_on(tmp_path: Path) -> None:
    """What was lost is lost whole; what is there is there whole, and nothing is stuck."""
    with (
        run_server("valkey", tmp_path, *EVERY_SECOND) as server,
        make_cluster(2, server.url, tmp_path) as cluster,
    ):
        await cluster.start()
        disk = Disk(server)
        await start_until(cluster, disk, 150)
        # In the middle of what was acknowledged, and most likely in the middle of a command.
        kept, _ = disk.acknowledged[99]
        disk.lose_power(kept + 7)
        server.start()
        for node in cluster.nodes:
            await node.ready()
        async with open_wire(cluster.nodes[0].url) as wire:
            there = [workflow_id for _, workflow_id in disk.acknowledged if await found(wire, workflow_id)]
            assert {workflow_id for _, workflow_id in disk.acknowledged[:90]} <= set(there)
            assert len(there) < len(disk.acknowledged)
            assert len(there) <= await work_off(wire) <= len(there) + 12
            lost = {workflow_id for _, workflow_id in disk.acknowledged} - set(there)
            await wire.start("t", "q", lost.pop())
            assert await work_off(wire) == 1
