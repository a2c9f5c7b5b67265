"""A fail-over to a replica that missed the last hand-outs: what runs goes on, and is not run again (E5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from headrace import Client, Decision, Flow, StepContext, Worker, complete, step
from tests.chaos.arrangements import Arrangement, run_sentinel
from tests.cluster_processes import Cluster, make_cluster
from tests.ports import free_port
from tests.waiting import eventually
from tests.wire import complete as close
from tests.wire import metric, open_wire, schedule

NODES = 2


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[tuple[Arrangement, Cluster]]:
    """Nodes over a primary and its replica, which promises nothing about fail-overs."""
    async with run_sentinel("valkey", directory / "redis") as store:
        with make_cluster(NODES, store.url, directory) as cluster:
            await cluster.start()
            yield store, cluster


def leave_behind(store: Arrangement) -> None:
    """From now on the replica hears nothing."""
    with store.replica().client() as client:
        client.replicaof("127.0.0.1", free_port())


async def fail_over(store: Arrangement) -> None:
    """Kill the primary and wait until the replica has its place."""
    (old,) = store.primaries()
    other = store.replica()
    old.kill()
    await eventually(lambda: store.primaries() == [other], 30)


async def reasserted(cluster: Cluster, outcome: str) -> float:
    """How many tasks the nodes said they run, with that outcome, since they started."""
    found = 0.0
    for node in cluster.nodes:
        async with open_wire(node.url) as wire:
            text = (await wire.client.get("/metrics")).text
        line = f'headrace_hand_outs_reasserted_total{{outcome="{outcome}"}} '
        found += sum(float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(line))
    return found


@pytest.mark.timeout(240)
async def test_steps_that_run_are_kept(tmp_path: Path) -> None:
    begun: list[tuple[str, int]] = []
    released = trio.Event()

    class Long(Flow, name="long"):
        @step
        async def work(self, ctx: StepContext) -> Decision:
            begun.append((ctx.flow_id, ctx.attempt))
            await released.wait()
            return complete(ctx.attempt)

    async with site(tmp_path) as (store, cluster):
        urls = [node.url for node in cluster.nodes]
        async with Client(urls) as client:
            handles = [await client.start(Long, flow_id=f"f{number}") for number in range(6)]
            await store.in_sync()
            leave_behind(store)
            async with Worker(urls, [Long], max_concurrent_tasks=8, reserved_rpc_slots=0) as worker:
                await worker.wait_pull_registered()
                await eventually(lambda: len(begun) == len(handles), 20)
                await fail_over(store)
                for node in cluster.nodes:
                    await node.ready()

                async def all_taken_back() -> bool:
                    return await reasserted(cluster, "taken") >= len(handles)

                await eventually(all_taken_back, 30)
                # What was not started before the fail-over is handed out, beside what still runs.
                after = await client.start(Long, flow_id="after")
                await eventually(lambda: ("after", 1) in begun, 20)
                released.set()
                results = [await handle.result(timeout_seconds=30) for handle in [*handles, after]]
        assert results == [1] * 7
        assert sorted(begun) == sorted([*((f"f{number}", 1) for number in range(6)), ("after", 1)])


@pytest.mark.timeout(240)
async def test_leases_of_polls_are_kept(tmp_path: Path) -> None:
    async with site(tmp_path) as (store, cluster):
        first, second = cluster.nodes
        async with open_wire(first.url) as a, open_wire(second.url) as b:
            await a.register("w", "q", workflows=["t"], activities=["x"])
            await a.start("t", "q", "wf")
            await a.start("t", "q", "other")
            await a.complete_workflow_task(await a.task("workflow", "w", "q"), schedule("x", "q"))
            await store.in_sync()
            leave_behind(store)
            activity = await a.task("activity", "w", "q")
            workflow_task = await b.task("workflow", "w", "q")
            await fail_over(store)
            for node in cluster.nodes:
                await node.ready()

            async def all_taken_back() -> bool:
                return await reasserted(cluster, "taken") >= 2

            await eventually(all_taken_back, 30)
            for wire, kind in ((a, "activity"), (b, "activity"), (a, "workflow"), (b, "workflow")):
                assert await wire.poll(kind, "w", "q", seconds=1) is None
            await b.complete_activity(activity, "done")
            done = await a.complete_workflow_task(workflow_task, close())
            assert done["run_status"] == "completed"
            assert await metric(a, "headrace_hand_outs_reasserted_total") >= 0
            last = await b.task("workflow", "w", "q", seconds=10)
            await a.complete_workflow_task(last, close())
            await a.until_completed("wf")
