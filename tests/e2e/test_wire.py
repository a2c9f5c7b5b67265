"""Raw HTTP against several nodes: any node answers any request."""

from __future__ import annotations

from typing import Any

import trio

from tests.cluster_processes import Cluster
from tests.waiting import PATIENCE, eventually
from tests.wire import Wire, check_history, complete, metric, open_wire, schedule


async def test_each_step_on_another_node(cluster: Cluster, queue: str, worker_id: str) -> None:
    one, two, three = cluster.nodes
    async with open_wire(one.url) as a, open_wire(two.url) as b, open_wire(three.url) as c:
        await a.register(worker_id, queue, workflows=["t"], activities=["x"])
        started = await b.start("t", queue, queue, input=["in"])
        task = await c.task("workflow", worker_id, queue)
        assert task["workflow_id"] == queue
        done = await a.complete_workflow_task(task, schedule("x", queue, 1))
        assert done["recorded"] is True
        activity = await b.task("activity", worker_id, queue)
        await c.complete_activity(activity, {"out": 1})
        task = await a.task("workflow", worker_id, queue)
        done = await b.complete_workflow_task(task, complete("result"))
        assert done["run_status"] == "completed"
        described = await c.describe(queue)
        assert (described["status"], described["output"]) == ("completed", "result")
        assert described["run_id"] == started["run_id"]
        check_history(await a.history(queue))


async def _parked(node: Wire, count: int) -> None:
    """Wait until exactly ``count`` polls wait on a node."""

    async def look() -> bool:
        return await metric(node, "headrace_polls_parked") == count

    await eventually(look)


async def test_a_parked_poll_is_woken_by_another_node(cluster: Cluster, queue: str, worker_id: str) -> None:
    """The own look of a parked poll comes once a minute here: only the wake can be in time."""
    delays: list[float] = []
    async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
        await a.register(worker_id, queue, workflows=["t"], activities=["x"])
        await _parked(a, 0)

        async def poll(kind: str) -> None:
            tasks.append(await a.task(kind, worker_id, queue, seconds=40))
            delays.append(trio.current_time() - created)

        for number in range(5):
            tasks: list[dict[str, Any]] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll, "workflow")
                await _parked(a, 1)
                created = trio.current_time()
                await b.start("t", queue, f"{queue}-{number}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll, "activity")
                await _parked(a, 1)
                created = trio.current_time()
                await b.complete_workflow_task(tasks[0], schedule("x", queue))
    # How fast a wake is, `make bench` tells; here it must only have come.
    assert max(delays) < PATIENCE


async def test_a_repeated_poll_gets_the_same_lease_from_any_node(
    cluster: Cluster, queue: str, worker_id: str
) -> None:
    async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
        await a.register(worker_id, queue, workflows=["t"])
        await a.start("t", queue, queue)
        first = await a.task("workflow", worker_id, queue, poll_request_id="p1")
        second = await b.task("workflow", worker_id, queue, poll_request_id="p1")
        assert (first["task_id"], first["workflow_task_attempt"]) == (
            second["task_id"],
            second["workflow_task_attempt"],
        )
        assert await b.poll("workflow", worker_id, queue, seconds=0) is None


async def test_history_comes_in_pages(cluster: Cluster, queue: str, worker_id: str) -> None:
    """Pages of two events show the frozen snapshot, complete and in order, from any node."""
    async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[2].url) as c:
        await a.register(worker_id, queue, workflows=["t"], activities=["x"])
        await a.start("t", queue, queue)
        for number in range(3):
            task = await a.task("workflow", worker_id, queue)
            await a.complete_workflow_task(task, schedule("x", queue, number))
            await a.complete_activity(await a.task("activity", worker_id, queue), number)
        task = await a.task("workflow", worker_id, queue, history_page_size=2)
        events, token = task["history_events"], task["next_history_page_token"]
        assert len(events) == 2
        while token:
            page = await c.post(
                f"/worker/workflow-tasks/{task['task_id']}/history",
                {
                    "lease_owner": worker_id,
                    "workflow_task_attempt": task["workflow_task_attempt"],
                    "next_history_page_token": token,
                },
            )
            assert 0 < len(page["history_events"]) <= 2
            events, token = events + page["history_events"], page["next_history_page_token"]
        assert [event["sequence"] for event in events] == list(range(1, task["total_history_events"] + 1))
        assert [event["event_type"] for event in events].count("ActivityCompleted") == 3


async def test_a_worker_registers_anew_on_another_queue(cluster: Cluster, queue: str, worker_id: str) -> None:
    async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
        await a.register(worker_id, queue, workflows=["t"])
        await b.start("t", f"{queue}-2", queue)
        await b.register(worker_id, f"{queue}-2", workflows=["t"])
        refused = await a.client.post(
            "/api/worker/workflow-tasks/poll", json={"worker_id": worker_id, "task_queue": queue}
        )
        assert (refused.status_code, refused.json()["reason"]) == (409, "task_queue_mismatch")
        assert (await a.task("workflow", worker_id, f"{queue}-2"))["workflow_id"] == queue
