"""A namespace with something of everything for pages to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.wire import Wire, complete, envelope, schedule

EVIL: Final = '<script>alert("x")</script>&\'"'
"""What must come out as text wherever it went in."""


@dataclass(frozen=True)
class Seeded:
    """The ids that pages are opened with."""

    queue: str
    done: dict[str, Any]
    failed: dict[str, Any]
    waiting: dict[str, Any]
    stuck: dict[str, Any]
    flow: str
    schedule: str
    activity: str
    worker: str
    build: str


async def seed(wire: Wire, queue: str) -> Seeded:
    """Make it, on ``queue`` of the default namespace; everything has the queue in its id."""
    worker = f"w-{queue}"
    await wire.post(
        "/worker/register",
        {
            "worker_id": worker,
            "task_queue": queue,
            "runtime": "python",
            "sdk_version": "durable-workflow-python/2.12.0",
            "build_id": "build-7",
            "supported_workflow_types": ["order", "greeter"],
            "supported_activity_types": ["charge", "ship"],
            "max_concurrent_workflow_tasks": 10,
            "max_concurrent_activity_tasks": 20,
        },
    )
    return Seeded(
        queue=queue,
        done=await _done(wire, queue, worker),
        failed=await _failed(wire, queue, worker),
        waiting=await _waiting(wire, queue, worker),
        stuck=await wire.start("nobody-serves-this", f"{queue}-idle", f"stuck-{queue}"),
        flow=await _flow(wire, queue),
        schedule=await _schedule(wire, queue),
        activity=await _activity(wire, queue),
        worker=worker,
        build="build-7",
    )


async def _done(wire: Wire, queue: str, worker: str) -> dict[str, Any]:
    started = await wire.start("order", queue, f"done-{queue}", input=[{"parcel": EVIL}], business_key=EVIL)
    task = await wire.task("workflow", worker, queue)
    await wire.complete_workflow_task(task, schedule("charge", queue, 42))
    await wire.complete_activity(await wire.task("activity", worker, queue), {"paid": True})
    task = await wire.task("workflow", worker, queue)
    await wire.complete_workflow_task(task, schedule("ship", queue, "rue", 7))
    await wire.complete_activity(await wire.task("activity", worker, queue), EVIL)
    await wire.complete_workflow_task(await wire.task("workflow", worker, queue), complete({"total": 49.0}))
    return started


async def _waiting(wire: Wire, queue: str, worker: str) -> dict[str, Any]:
    started = await wire.start("order", queue, f"waiting-{queue}", input=["x"], memo={"customer": EVIL})
    task = await wire.task("workflow", worker, queue)
    retry = {"retry_policy": {"max_attempts": 5, "backoff_seconds": [3600]}}
    timer = {"type": "start_timer", "delay_seconds": 3600}
    await wire.complete_workflow_task(task, schedule("charge", queue, 1, **retry), timer)
    activity = await wire.task("activity", worker, queue)
    await wire.fail_activity(activity, EVIL)
    await wire.post(f"/workflows/waiting-{queue}/signal/hurry", {"input": [1]})
    return started


async def _failed(wire: Wire, queue: str, worker: str) -> dict[str, Any]:
    started = await wire.start("order", queue, f"failed-{queue}")
    failure = {"type": "fail_workflow", "message": "out of stock", "exception_type": "OutOfStock"}
    await wire.complete_workflow_task(await wire.task("workflow", worker, queue), failure)
    return started


async def _flow(wire: Wire, queue: str) -> str:
    flow = f"flow-{queue}"
    await wire.post(
        "/flows",
        {
            "flow_type": "parcel",
            "start_step": "pack",
            "flow_id": flow,
            "input": {"to": EVIL},
            "attributes": {"stock": {"left": 3}},
        },
    )
    await wire.post(f"/flows/{flow}/channels/news", {"value": EVIL})
    return flow


async def _schedule(wire: Wire, queue: str) -> str:
    name = f"nightly-{queue}"
    spec = {"cron_expressions": ["0 3 * * *"], "timezone": "Europe/Berlin"}
    action = {"workflow_type": "order", "task_queue": f"{queue}-idle", "input": [1]}
    await wire.post("/schedules", {"schedule_id": name, "spec": spec, "action": action, "note": EVIL})
    await wire.post(f"/schedules/{name}/trigger", {})
    return name


async def _activity(wire: Wire, queue: str) -> str:
    name = f"mail-{queue}"
    body = {"activity_type": "mail", "task_queue": f"{queue}-idle", "activity_id": name}
    await wire.post("/activities", body | {"input": envelope(["hello"])})
    return name
