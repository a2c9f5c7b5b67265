"""Real nodes with limits are killed: what they held is completed elsewhere, and the counters go to zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_processes import make_cluster
from tests.servers import run_server
from tests.waiting import eventually
from tests.wire import Wire, complete, open_wire, schedule

LIMIT = 2
ACTIVITIES = 8
OVERRIDES = {"*": {"activity_tasks": {"max_active_leases_per_queue": LIMIT}}}


async def counted(wire: Wire) -> tuple[str, int, int]:
    """Status, tickets and leases of the queue's activities."""
    body = await wire.get("/task-queues/q")
    section: dict[str, Any] = body["admission"]["activity_tasks"]
    return section["status"], section["server_active_lease_count"], section["leased_count"]


@pytest.mark.timeout(180)
async def test_a_killed_node_leaks_no_capacity(tmp_path: Path, short_leases: dict[str, str]) -> None:
    environ = {**short_leases, "DW_TASK_QUEUE_ADMISSION_OVERRIDES": json.dumps(OVERRIDES)}
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(2, server.url, tmp_path, environ) as cluster,
    ):
        await cluster.start()
        doomed, other = cluster.nodes
        async with open_wire(doomed.url) as there, open_wire(other.url) as here:
            await here.register("w", "q", workflows=["t"], activities=["x"])
            await here.start("t", "q", "wf")
            task = await here.task("workflow", "w", "q")
            await here.complete_workflow_task(task, *(schedule("x", "q") for _ in range(ACTIVITIES)))
            held = [await there.task("activity", "w", "q") for _ in range(LIMIT)]
            assert await there.poll("activity", "w", "q", seconds=0) is None
            assert await counted(here) == ("throttled", LIMIT, LIMIT)

            doomed.kill()
            # One worker finishes through the other node, the other one died with its node.
            await here.complete_activity(held[0])
            done = 1
            while done < ACTIVITIES:
                task = await here.task("activity", "w", "q", seconds=30)
                await here.complete_activity(task)
                done += 1

            async def nothing_left() -> bool:
                return (await counted(here))[1:] == (0, 0)

            await eventually(nothing_left, within=20)
            await here.complete_workflow_task(await here.task("workflow", "w", "q"), complete("out"))
            await here.until_completed("wf")
