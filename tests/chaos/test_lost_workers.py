"""Workers that vanish with a task: its lease runs out and another worker gets the next attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.cluster_processes import Cluster, kill, make_cluster
from tests.waiting import eventually
from tests.wire import check_history, complete, open_wire, schedule


@pytest.fixture
def cluster(valkey_url: str, prefix: str, tmp_path: Path, short_leases: dict[str, str]) -> Iterator[Cluster]:
    with make_cluster(2, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix, **short_leases}) as made:
        yield made


async def test_a_killed_worker(cluster: Cluster) -> None:
    await cluster.start()
    events = cluster.directory / "q.events"
    worker = cluster.start_worker("q")
    async with open_wire(cluster.url) as wire:
        await wire.start("timing", "q", "w", input=["stuck_once", [60], {}])
        await eventually(lambda: events.exists() and events.read_text() != "", 20)
        kill(worker)
        cluster.start_worker("q", url=cluster.nodes[1].url)
        await wire.until_completed("w", 20)
        assert (await wire.describe("w"))["output"] == ["completed", 2]
        check_history(await wire.history("w"))
    noted = [json.loads(line) for line in events.read_text().splitlines()]
    assert [attempt["n"] for attempt in noted] == [1, 2]
    assert noted[0]["attempt_id"] != noted[1]["attempt_id"]


async def test_each_kind_of_task_comes_back_as_the_next_attempt(cluster: Cluster) -> None:
    """The late worker is refused, with a reason, whoever it asks."""
    await cluster.start()
    async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
        for worker in ("late", "next"):
            await a.register(worker, "q", workflows=["t"], activities=["x"])
        await a.start("t", "q", "w")
        lost = await a.task("workflow", "late", "q")
        with trio.fail_after(10):
            found = await b.task("workflow", "next", "q", seconds=10)
        assert (found["task_id"], found["workflow_task_attempt"]) == (lost["task_id"], 2)
        refused = await a.client.post(
            f"/api/worker/workflow-tasks/{lost['task_id']}/complete",
            json={"lease_owner": "late", "workflow_task_attempt": 1, "commands": [complete()]},
        )
        assert refused.status_code == 409
        assert refused.json()["reason"] in ("workflow_task_attempt_mismatch", "lease_owner_mismatch")
        await b.complete_workflow_task(found, schedule("x", "q"))

        late = await b.task("activity", "late", "q")
        with trio.fail_after(10):
            again = await a.task("activity", "next", "q", seconds=10)
        assert (late["attempt_number"], again["attempt_number"]) == (1, 2)
        assert late["activity_attempt_id"] != again["activity_attempt_id"]
        refused = await b.client.post(
            f"/api/worker/activity-tasks/{late['task_id']}/complete",
            json={"lease_owner": "late", "activity_attempt_id": late["activity_attempt_id"], "result": None},
        )
        assert (refused.status_code, refused.json()["reason"]) == (409, "stale_attempt")
        await a.complete_activity(again, "x")
        await b.complete_workflow_task(await b.task("workflow", "next", "q"), complete())
        check_history(await a.history("w"))
