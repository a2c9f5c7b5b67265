"""Schedules, standalone activities, builds, namespaces, archives and many workflows at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from durable_workflow import WorkflowFailed
from durable_workflow.client import ScheduleAction, ScheduleSpec
from durable_workflow.errors import (
    DurableWorkflowError,
    ScheduleAlreadyExists,
    ScheduleNotFound,
    ServerError,
    WorkflowCancelled,
    WorkflowNotFound,
)
from durable_workflow.history_bundle_verify import verify_bundle

from tests.e2e.scenarios.stage import Scenario, Stage, planned
from tests.e2e.scenarios.steps import echo, every, sleep, until
from tests.e2e.scenarios.worker import BUILD

YEARLY = ScheduleSpec(cron_expressions=["0 0 1 1 *"])
EVERY_SECOND = ScheduleSpec(intervals=[{"every": "PT1S"}])


async def create(stage: Stage, spec: ScheduleSpec, *steps: Any, **options: Any) -> None:
    action = ScheduleAction(workflow_type="plan", task_queue=stage.queue, input=[list(steps)])
    with suppress(ScheduleAlreadyExists):  # a lost answer
        await stage.here.create_schedule(schedule_id=stage.id, spec=spec, action=action, **options)


async def fired(stage: Stage, count: int) -> list[str]:
    """Wait until the schedule has fired; the workflows it started."""
    found: list[str] = []

    async def look() -> bool:
        events = [event async for event in stage.there.iter_schedule_history(stage.id, limit=50)]
        triggered = [event for event in events if event.event_type == "ScheduleTriggered"]
        found[:] = [event.workflow_instance_id or "" for event in triggered]
        return len(found) >= count

    await stage.eventually(look, f"{count} fires")
    return found


async def finish(stage: Stage, ids: list[str], expected: Any) -> None:
    assert len(set(ids)) == len(ids)
    for workflow_id in ids:
        stage.ids.append(workflow_id)
        assert await stage.outcome(workflow_id) == expected


async def trigger(stage: Stage) -> None:
    await create(stage, YEARLY, echo("now"))
    answer = await stage.here.trigger_schedule(stage.id)
    assert answer.outcome == "triggered"
    await finish(stage, await fired(stage, 1), ["now"])
    await stage.here.delete_schedule(stage.id)


async def backfill(stage: Stage) -> None:
    await create(
        stage, ScheduleSpec(cron_expressions=["0 0 * * *"]), echo("past"), overlap_policy="allow_all"
    )
    await stage.here.backfill_schedule(
        stage.id, start_time="2026-01-01T00:00:00Z", end_time="2026-01-05T00:00:00Z"
    )
    await finish(stage, await fired(stage, 4), ["past"])


async def interval(stage: Stage) -> None:
    await create(stage, EVERY_SECOND, echo("tick"), max_runs=3)
    await finish(stage, await fired(stage, 3), ["tick"])
    with suppress(ScheduleNotFound):
        await stage.there.describe_schedule(stage.id)
        raise AssertionError("is still there when its runs are used up")


async def pause(stage: Stage) -> None:
    await create(stage, EVERY_SECOND, echo("tick"), max_runs=50)
    await fired(stage, 1)
    await stage.here.pause_schedule(stage.id, note="rest")
    before = (await stage.there.describe_schedule(stage.id)).fires_count
    await asyncio.sleep(2.2)
    shown = await stage.there.describe_schedule(stage.id)
    assert (shown.fires_count, shown.status) == (before, "paused")
    await stage.here.resume_schedule(stage.id)
    await finish(stage, await fired(stage, before + 1), ["tick"])
    with suppress(ScheduleNotFound):
        await stage.here.delete_schedule(stage.id)


async def skip(stage: Stage) -> None:
    """While the first one is open, the others are skipped."""
    await create(stage, EVERY_SECOND, until(1), overlap_policy="skip")
    (workflow_id,) = await fired(stage, 1)
    await asyncio.sleep(2.5)
    assert await fired(stage, 1) == [workflow_id]
    await stage.here.pause_schedule(stage.id)
    await stage.signal("put", 1, workflow_id=workflow_id)
    await finish(stage, [workflow_id], [True])


SCHEDULES = [
    Scenario("a triggered schedule", meanwhile=trigger),
    Scenario("a backfilled schedule", meanwhile=backfill),
    Scenario("an interval", meanwhile=interval),
    Scenario("a paused schedule", meanwhile=pause),
    Scenario("a skipping schedule", meanwhile=skip),
]


async def alone(stage: Stage, name: str, *arguments: Any, **options: Any) -> Any:
    """Run a standalone activity; its result or the error."""
    with suppress(DurableWorkflowError):  # a repetition after a lost answer
        await stage.here.start_activity(
            activity_type=name,
            task_queue=stage.queue,
            activity_id=stage.id,
            input=list(arguments),
            **options,
        )
    stage.ids.append(stage.id)
    handle = stage.there.get_activity_handle(stage.id)
    try:
        return await stage.there.get_activity_result(handle, poll_interval=0.2, timeout=120)
    except WorkflowFailed as error:
        return error


async def alone_succeeds(stage: Stage) -> None:
    value = {"deep": [1, {"x": None}]}
    assert await alone(stage, "echo", value) == value
    shown = await stage.there.describe_activity(stage.id)
    assert (shown.status, shown.activity_type) == ("completed", "echo")


async def alone_is_retried(stage: Stage) -> None:
    assert await alone(stage, "flaky", 2, retry_policy={"max_attempts": 5, "backoff_seconds": [0]}) == 3


async def alone_fails(stage: Stage) -> None:
    policy = {"max_attempts": 2, "backoff_seconds": [0]}
    assert isinstance(await alone(stage, "flaky", 9, retry_policy=policy), WorkflowFailed)


async def alone_times_out(stage: Stage) -> None:
    assert isinstance(await alone(stage, "stuck_once", 5, start_to_close_timeout_seconds=1), WorkflowFailed)


async def alone_is_cancelled(stage: Stage) -> None:
    with suppress(DurableWorkflowError):
        await stage.here.start_activity(activity_type="nobody", task_queue=stage.queue, activity_id=stage.id)
    with suppress(DurableWorkflowError if stage.dying else ()):  # type: ignore[arg-type]
        await stage.here.cancel_workflow(stage.id)
    try:
        await stage.there.get_activity_result(
            stage.there.get_activity_handle(stage.id), poll_interval=0.2, timeout=120
        )
    except WorkflowCancelled:
        return
    raise AssertionError("was not cancelled")


STANDALONE = [
    Scenario("an activity alone", meanwhile=alone_succeeds),
    Scenario("an activity alone is retried", meanwhile=alone_is_retried),
    Scenario("an activity alone fails", meanwhile=alone_fails),
    Scenario("an activity alone times out", meanwhile=alone_times_out),
    Scenario("an activity alone is cancelled", meanwhile=alone_is_cancelled),
]


async def is_archived(stage: Stage) -> None:
    outcome = (await stage.here.archive_workflow(stage.id, reason="kept")).outcome
    assert outcome == "archived" or (stage.dying and outcome == "archive_not_needed")
    assert (await stage.there.archive_workflow(stage.id)).outcome == "archive_not_needed"
    await is_exported(stage)


async def is_exported(stage: Stage) -> None:
    """What is exported passes the SDK's own verification."""
    for run in (await stage.there.list_workflow_runs(stage.id)).runs:
        bundle = await stage.here.export_history(stage.id, run.run_id)
        report = verify_bundle(bundle)
        assert report["status"] == "ok", report["findings"]
        assert report["bundle"]["run_id"] == run.run_id


async def repair(stage: Stage) -> None:
    await stage.happened("ConditionWaitOpened")
    repaired = await stage.here.repair_workflow(stage.id)
    assert repaired.outcome in ("repair_not_needed", "repair_dispatched"), repaired
    await stage.signal("put", 1)


async def is_beyond_repair(stage: Stage) -> None:
    try:
        await stage.here.repair_workflow(stage.id)
    except ServerError:
        return
    raise AssertionError("repaired what is closed")


async def drain(stage: Stage) -> None:
    queue = f"{stage.queue}-builds"

    async def rollout() -> dict[str | None, str | None]:
        listed = await stage.there.list_task_queue_build_ids(queue)
        return {entry.build_id: entry.drain_intent for entry in listed.build_ids}

    async def known() -> bool:
        return BUILD in await rollout()

    await stage.eventually(known, "build")
    await stage.here.drain_task_queue_build_id(queue, BUILD)
    assert (await rollout())[BUILD] == "draining"
    await stage.start("plan", [echo(1)], task_queue=queue)
    await asyncio.sleep(1.5)
    assert (await stage.there.describe_workflow(stage.id)).status == "pending"
    await stage.here.resume_task_queue_build_id(queue, BUILD)
    assert (await rollout())[BUILD] == "active"
    assert await stage.outcome() == [1]


async def live_elsewhere(stage: Stage) -> None:
    """The worker serves a namespace named like its queue; an id belongs to one namespace."""
    elsewhere = stage.in_namespace(stage.queue)
    await stage.start("plan", [echo("here")])
    try:
        await elsewhere.start("plan", [])
    except ServerError as error:
        assert error.reason() == "workflow_id_reserved_in_namespace"  # noqa: PT017 - the rest follows
    else:
        raise AssertionError("an id in two namespaces")
    other = await elsewhere.start("plan", [echo("there")], suffix="-other")
    assert await stage.outcome() == ["here"]
    assert await elsewhere.outcome(other) == ["there"]
    await elsewhere.check()
    with suppress(WorkflowNotFound):
        await stage.there.describe_workflow(other)
        raise AssertionError("seen through a namespace")


CROWD = 40


async def start_a_crowd(stage: Stage) -> None:
    limit = asyncio.Semaphore(10)

    async def run(number: int) -> None:
        async with limit:
            await stage.start("plan", [echo(number), every(echo(-number), sleep(0))], suffix=f"-{number}")

    async with asyncio.TaskGroup() as group:
        for number in range(CROWD):
            group.create_task(run(number))
    for number in range(CROWD):
        assert await stage.outcome(f"{stage.id}-{number}") == [number, [-number, None]]


OPERATIONS = [
    planned("archived", echo(1), expected=[1], afterwards=is_archived),
    Scenario("exported", "notes", (), [7, 2, True], afterwards=is_exported),
    Scenario("a chain exported", "count_down", (3,), "done", afterwards=is_exported),
    planned("repaired while open", until(1), meanwhile=repair, expected=[True]),
    planned("no repair when closed", expected=[], afterwards=is_beyond_repair),
    Scenario("a drained build", meanwhile=drain),
    Scenario("another namespace", meanwhile=live_elsewhere),
    Scenario("forty at once", meanwhile=start_a_crowd),
]
