"""Schedules, standalone activities and search attributes through the public SDK and three nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from durable_workflow import Client, ServerError
from durable_workflow.client import ScheduleAction, ScheduleSpec
from durable_workflow.errors import ScheduleAlreadyExists, ScheduleNotFound

from tests.cluster_processes import Cluster, kill, worker_ready
from tests.sdk_client import with_client


@pytest.fixture
async def worker(cluster: Cluster, queue: str) -> AsyncIterator[None]:
    """A worker for the test's queue, ready to work."""
    child = cluster.start_worker(queue)
    try:
        await worker_ready(child)
        yield
    finally:
        kill(child)


async def create(client: Client, queue: str, **options: Any) -> Any:
    action = ScheduleAction(workflow_type="greet", task_queue=queue, input=["you"])
    spec = options.pop("spec", ScheduleSpec(cron_expressions=["0 0 1 1 *"], timezone="Europe/Kyiv"))
    return await client.create_schedule(schedule_id=queue, spec=spec, action=action, **options)


async def test_the_life_of_a_schedule(cluster: Cluster, queue: str) -> None:
    async def live(client: Client) -> None:
        await create(client, queue, note="hello", memo={"team": "a"}, max_runs=9, overlap_policy="allow_all")
        with pytest.raises(ScheduleAlreadyExists):
            await create(client, queue)
        shown = await client.describe_schedule(queue)
        assert (shown.schedule_id, shown.status, shown.note) == (queue, "active", "hello")
        assert shown.spec is not None
        assert shown.spec["timezone"] == "Europe/Kyiv"
        assert (shown.memo, shown.max_runs, shown.remaining_actions) == ({"team": "a"}, 9, 9)
        assert shown.next_fire_at is not None
        await client.update_schedule(queue, note="changed", spec=ScheduleSpec(intervals=[{"every": "PT24H"}]))
        await client.pause_schedule(queue, note="wait")
        paused = await client.describe_schedule(queue)
        assert (paused.status, paused.note, paused.next_fire_at) == ("paused", "wait", None)
        assert paused.paused_at is not None
        await client.resume_schedule(queue)
        triggered = await client.trigger_schedule(queue)
        assert triggered.outcome == "triggered"
        assert triggered.workflow_id is not None
        run = await client.describe_workflow(triggered.workflow_id)
        assert (run.run_id, run.task_queue) == (triggered.run_id, queue)
        filled = await client.backfill_schedule(
            queue, start_time="2026-01-01T00:00:00Z", end_time="2026-01-03T00:00:00Z"
        )
        assert (filled.outcome, filled.fires_attempted) == ("backfill_started", 2)
        shown = await client.describe_schedule(queue)
        assert (shown.fires_count, shown.failures_count) == (3, 0)
        assert shown.last_fired_at is not None
        listed = await client.list_schedules(query=queue, status="active", workflow_type="greet")
        assert [item.schedule_id for item in listed.schedules] == [queue]
        events = [event.event_type async for event in client.iter_schedule_history(queue, limit=2)]
        assert events[:2] == ["ScheduleCreated", "ScheduleUpdated"]
        assert events.count("ScheduleTriggered") == 3
        await client.delete_schedule(queue)
        with pytest.raises(ScheduleNotFound):
            await client.describe_schedule(queue)
        assert (await client.list_schedules(query=queue)).schedules == []

    await with_client(cluster.url, live)


async def test_a_schedule_fires_and_its_workflow_runs(cluster: Cluster, queue: str, worker: None) -> None:
    async def fire(client: Client) -> Any:
        await create(client, queue, spec=ScheduleSpec(intervals=[{"every": "PT1S"}]), max_runs=1)
        while True:
            page = await client.get_schedule_history(queue)
            fired = [event for event in page.events if event.event_type == "ScheduleTriggered"]
            if fired:
                break
            await asyncio.sleep(0.1)
        workflow_id = fired[0].workflow_instance_id or ""
        handle = client.get_workflow_handle(workflow_id)
        return await client.get_result(handle, poll_interval=0.05, timeout=120)

    assert await with_client(cluster.url, fire) == "hello you"


async def test_a_standalone_activity(cluster: Cluster, queue: str, worker: None) -> None:
    async def run(client: Client) -> None:
        handle = await client.start_activity(
            activity_type="echo",
            task_queue=queue,
            activity_id=queue,
            input=[{"n": 1}],
            start_to_close_timeout_seconds=30,
        )
        assert await client.get_activity_result(handle, poll_interval=0.05, timeout=120) == {"n": 1}
        shown = await client.describe_activity(queue)
        assert (shown.status, shown.activity_type) == ("completed", "echo")
        again = await client.start_activity(
            activity_type="flaky",
            task_queue=queue,
            input=[1],
            retry_policy={"max_attempts": 3, "backoff_seconds": [0]},
        )
        assert await client.get_activity_result(again, poll_interval=0.05, timeout=120) == 2
        listed = await client.list_activities(status="completed", page_size=200)
        assert queue in {item.activity_id for item in listed.activities}

    await with_client(cluster.url, run)


async def test_a_standalone_activity_is_cancelled(cluster: Cluster, queue: str) -> None:
    async def run(client: Client) -> str | None:
        await client.start_activity(activity_type="echo", task_queue=queue, activity_id=queue)
        await client.cancel_workflow(queue)
        return (await client.describe_activity(queue)).status

    assert await with_client(cluster.url, run) == "cancelled"


async def test_search_attributes(cluster: Cluster, queue: str) -> None:
    name = f"A{queue}"

    async def define(client: Client) -> None:
        await client.create_search_attribute(name, "keyword")
        found = await client.list_search_attributes()
        assert found.custom_attributes[name] == "keyword"
        assert found.system_attributes["RunId"] == "keyword"
        with pytest.raises(ServerError):
            await client.create_search_attribute(name, "int")
        await client.delete_search_attribute(name)
        assert name not in (await client.list_search_attributes()).custom_attributes

    await with_client(cluster.url, define)
