"""Redis is killed and comes back with its append-only file."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import trio

from tests.cluster_processes import make_cluster
from tests.servers import run_server
from tests.waiting import eventually
from tests.wire import Wire, check_history, complete, open_wire

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
BACKLOG = 20


class Ledger:
    """What servers acknowledged."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.completed: set[str] = set()

    def reached(self, started: int, completed: int) -> bool:
        return len(self.started) >= started and len(self.completed) >= completed


async def start_forever(wire: Wire, name: str, ledger: Ledger) -> None:
    number = 0
    while True:
        number += 1
        body = {"workflow_type": "t", "task_queue": "q", "workflow_id": f"{name}-{number}"}
        try:
            response = await wire.client.post("/api/workflows", json=body)
        except httpx.TransportError:
            continue
        if response.status_code == 201:
            ledger.started.add(body["workflow_id"])
        else:
            assert response.status_code == 503, response.text
            await trio.sleep(0.05)


async def complete_forever(wire: Wire, worker: str, ledger: Ledger) -> None:
    await wire.register(worker, "q", workflows=["t"])
    number = 0
    while True:
        number += 1
        try:
            task = await wire.poll("workflow", worker, "q", seconds=2, poll_request_id=f"{worker}-{number}")
            if task is not None:
                done = await wire.complete_workflow_task(task, complete("ok"))
                assert done["run_status"] == "completed"
                ledger.completed.add(task["workflow_id"])
        except httpx.TransportError:
            continue
        except AssertionError as error:
            # The task's lease may have been answered by the attempt whose reply was lost.
            if " 503 " not in str(error) and " 409 " not in str(error):
                raise
            await trio.sleep(0.05)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_acknowledged_work_survives(kind: str, tmp_path: Path) -> None:
    ledger = Ledger()
    with (
        run_server(kind, tmp_path, *ALWAYS) as server,
        make_cluster(2, server.url, tmp_path, {"HEADRACE_DURABILITY": "fsync"}) as cluster,
    ):
        await cluster.start()
        async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(start_forever, a, f"a{number}", ledger)
                    nursery.start_soon(start_forever, b, f"b{number}", ledger)
                    nursery.start_soon(complete_forever, a, f"wa{number}", ledger)
                    nursery.start_soon(complete_forever, b, f"wb{number}", ledger)
                await eventually(lambda: ledger.reached(100, 50), 20)
                server.kill()
                server.start()
                seen = len(ledger.started), len(ledger.completed)
                await eventually(lambda: ledger.reached(seen[0] + 50, seen[1] + 50), 20)
                nursery.cancel_scope.cancel()
            limit = trio.CapacityLimiter(8)

            async def check(workflow_id: str) -> None:
                async with limit:
                    described = await b.describe(workflow_id)
                    if workflow_id in ledger.completed:
                        assert described["status"] == "completed", described
                        check_history(await b.history(workflow_id, described["run_id"]))

            async with trio.open_nursery() as nursery:
                for workflow_id in ledger.started | ledger.completed:
                    nursery.start_soon(check, workflow_id)


@pytest.mark.timeout(240)
async def test_the_backlog_is_served_within_five_seconds(tmp_path: Path) -> None:
    """Polls parked before the crash bring the work that was there before it."""
    with (
        run_server("valkey", tmp_path, *ALWAYS) as server,
        make_cluster(2, server.url, tmp_path, {"HEADRACE_DURABILITY": "fsync"}) as cluster,
    ):
        await cluster.start()
        async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
            await a.register("w", "q", workflows=["t"])
            for number in range(BACKLOG):
                await b.start("t", "q", f"w{number}")
            server.kill()
            server.start()
            served: set[str] = set()

            async def serve(wire: Wire, number: int) -> None:
                while True:
                    try:
                        task = await wire.task("workflow", "w", "q", seconds=5, poll_request_id=f"p{number}")
                    except (httpx.TransportError, AssertionError):
                        continue
                    served.add(task["workflow_id"])
                    return

            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    for number in range(BACKLOG):
                        nursery.start_soon(serve, (a, b)[number % 2], number)
            assert len(served) == BACKLOG
