"""The public SDK, unmodified, against three nodes behind HAProxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from durable_workflow import Client, WorkflowAlreadyStarted, WorkflowFailed, WorkflowTimedOut

from nodes.cli.processes import Child
from tests.cluster_processes import Cluster, kill, worker_ready
from tests.sdk_client import execute, with_client
from tests.waiting import PATIENCE, eventually
from tests.wire import check_history, open_wire

StartWorker = Callable[..., Child]


@pytest.fixture
async def start_worker(cluster: Cluster, queue: str) -> AsyncIterator[StartWorker]:
    """Starts workers for the test's queue; they are killed with the test."""
    started: list[Child] = []

    def start(**options: Any) -> Child:
        started.append(cluster.start_worker(queue, **options))
        return started[-1]

    yield start
    for worker in started:
        kill(worker)


def attempts(cluster: Cluster, queue: str) -> list[dict[str, Any]]:
    """What the worker noted about the activity attempts it ran."""
    path = cluster.directory / f"{queue}.events"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_start_here_work_there_result_from_a_third(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    one, two, three = cluster.nodes
    start_worker(url=two.url)

    async def start(client: Client) -> None:
        await client.start_workflow(workflow_type="greet", task_queue=queue, workflow_id=queue, input=["you"])

    async def result(client: Client) -> Any:
        return await client.get_result(client.get_workflow_handle(queue), poll_interval=0.05, timeout=120)

    await with_client(one.url, start)
    assert await with_client(three.url, result) == "hello you"


async def test_activities_retries_timers_and_parallel_lists(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    start_worker()
    results: dict[str, Any] = {}

    async def run(name: str, *arguments: Any) -> None:
        results[name] = await execute(cluster.url, name, queue, *arguments, workflow_id=f"{queue}-{name}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "steps", 5)
        nursery.start_soon(run, "retry", 2, 3)
        nursery.start_soon(run, "timer", 1)
        nursery.start_soon(run, "parallel", 5)
    assert results == {
        "steps": [0, 1, 2, 3, 4],
        "retry": 3,
        "timer": "rang",
        "parallel": [[0, 1, 2, 3, 4], 10],
    }
    noted = attempts(cluster, queue)
    assert len({attempt["attempt_id"] for attempt in noted}) == len(noted)
    assert [attempt["n"] for attempt in noted if attempt["type"] == "flaky"] == [1, 2, 3]
    async with open_wire(cluster.url) as wire:
        for name in results:
            check_history(await wire.history(f"{queue}-{name}"))


async def test_failures_reach_the_client(cluster: Cluster, queue: str, start_worker: StartWorker) -> None:
    start_worker()
    with pytest.raises(WorkflowFailed, match="too bad"):
        await execute(cluster.url, "failing", queue, "too bad", workflow_id=queue)
    with pytest.raises(WorkflowAlreadyStarted):
        await execute(cluster.url, "failing", queue, "too bad", workflow_id=queue)
    with pytest.raises(WorkflowFailed, match="attempt 2 fails"):
        await execute(cluster.url, "retry", queue, 5, 2)
    with pytest.raises(WorkflowTimedOut):
        await execute(cluster.url, "timer", queue, 30, run_timeout_seconds=1)


@pytest.mark.parametrize(
    ("activity_type", "arguments", "options", "kind"),
    [
        ("stuck_once", [20], {"start_to_close_timeout": 1}, "start_to_close"),
        ("stuck_once", [20], {"schedule_to_close_timeout": 1}, "schedule_to_close"),
        ("stuck_once", [20], {"heartbeat_timeout": 1}, "heartbeat"),
        ("nobody_knows", [], {"schedule_to_start_timeout": 1}, "schedule_to_start"),
    ],
)
async def test_each_timeout_ends_the_activity(
    cluster: Cluster,
    queue: str,
    start_worker: StartWorker,
    activity_type: str,
    arguments: list[Any],
    options: dict[str, int],
    kind: str,
) -> None:
    start_worker()
    outcome, _ = await execute(
        cluster.url, "timing", queue, activity_type, arguments, options, workflow_id=queue
    )
    assert outcome == "failed"
    async with open_wire(cluster.url) as wire:
        events = await wire.history(queue)
    ended = next(event for event in events if event["event_type"] == "ActivityTimedOut")
    assert ended["payload"]["timeout_kind"] == kind


async def test_a_timed_out_attempt_is_tried_again(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    start_worker()
    options = {"start_to_close_timeout": 3, "attempts": 2}
    assert await execute(cluster.url, "timing", queue, "stuck_once", [20], options) == ["completed", 2]


async def test_heartbeats_keep_an_activity_alive(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    start_worker()
    options = {"heartbeat_timeout": 3}
    assert await execute(cluster.url, "timing", queue, "beating", [9, 0.5], options) == ["completed", 9]


async def test_large_payloads_and_long_histories(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    """The nodes give the worker two events per page."""
    start_worker()
    text = "x" * 700_000
    assert await execute(cluster.url, "greet", queue, text) == f"hello {text}"
    assert await execute(cluster.url, "steps", queue, 20, workflow_id=queue) == list(range(20))
    async with open_wire(cluster.url) as wire:
        check_history(await wire.history(queue))


async def test_a_type_nobody_supports_waits_and_blocks_nobody(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    worker = start_worker(only="greet,echo")
    await worker_ready(worker)
    async with open_wire(cluster.url) as wire:
        await wire.start("parallel", queue, queue, input=[2])
        assert await execute(cluster.url, "greet", queue, "you") == "hello you"
        assert (await wire.describe(queue))["status"] == "pending"
        start_worker(only="parallel")
        await wire.until_completed(queue)


async def test_wrong_arguments_are_no_hot_loop(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    worker = start_worker(only="greet,echo")
    await worker_ready(worker)
    async with open_wire(cluster.url) as wire:
        await wire.start("greet", queue, queue, input=[])
        await eventually(lambda: "/fail" in worker.log.read_text())
        # Long enough for a hot loop to show: what is wrong with it is how often it asks.
        await trio.sleep(3)
        described = await wire.describe(queue)
        assert not described["is_terminal"]
        failures = worker.log.read_text().count("/fail")
        assert 1 <= failures <= 4, worker.log.read_text()[-3000:]


async def test_a_restarted_worker_finishes_what_the_first_began(
    cluster: Cluster, queue: str, start_worker: StartWorker
) -> None:
    """The same worker id registers again; the second process replays and goes on."""
    first = start_worker(id=queue, poll="1")
    async with open_wire(cluster.url) as wire:
        await wire.start("steps", queue, queue, input=[6, 0.2])

        async def half_done() -> bool:
            return len(attempts(cluster, queue)) >= 3

        await eventually(half_done, 20)
        first.process.terminate()
        with trio.fail_after(PATIENCE):
            assert await first.wait() == 0, first.log.read_text()[-3000:]
        start_worker(id=queue)
        await wire.until_completed(queue)
        assert (await wire.describe(queue))["output"] == list(range(6))
        check_history(await wire.history(queue))
