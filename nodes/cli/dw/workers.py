"""``dw worker:...``: registered workers."""

from __future__ import annotations

from typing import Annotated

from nodes.cli.dw.arguments import argument, option
from nodes.cli.dw.choices import WorkerStatus
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.views import Result, facts, table

WorkerId = Annotated[str, argument("WORKER_ID", "the worker")]
Types = list[str] | None


@command(
    "worker:list",
    table("workers", "worker_id status task_queue build_id runtime last_heartbeat_at"),
    json="namespace workers",
    examples=("dw worker:list", "dw worker:list --task-queue orders --status active"),
    watch=True,
)
def list_workers(
    dw: Dw,
    task_queue: Annotated[
        str | None, option("--task-queue", metavar="QUEUE", text="only of this queue")
    ] = None,
    status: Annotated[WorkerStatus | None, option("--status", text="only those that are so")] = None,
) -> Result:
    """List registered workers, the one heard of last first."""
    return dw.get("workers", query={"task_queue": task_queue, "status": status})


@command(
    "worker:describe",
    facts(),
    json="worker_id namespace task_queue runtime status task_slots process_metrics",
    examples=("dw worker:describe payments-1",),
    watch=True,
)
def describe(dw: Dw, worker_id: WorkerId) -> Result:
    """Show one worker."""
    return dw.get("workers", worker_id)


@command(
    "worker:register",
    facts("worker_id registered heartbeat_interval_seconds stale_after_seconds"),
    json="worker_id registered",
    examples=("dw worker:register payments-2 --task-queue payments --workflow-type pay --build-id 2026-04",),
)
def register(
    dw: Dw,
    worker_id: Annotated[str | None, argument("WORKER_ID", "drawn by the server when none is given")] = None,
    task_queue: Annotated[
        str, option("--task-queue", metavar="QUEUE", text="the task queue (default)")
    ] = "default",
    runtime: Annotated[
        str, option("--runtime", metavar="NAME", text="python, php, external ... (external)")
    ] = "external",
    sdk_version: Annotated[str | None, option("--sdk-version", metavar="TEXT", text="its SDK")] = None,
    build_id: Annotated[str | None, option("--build-id", metavar="BUILD", text="its build")] = None,
    workflow_type: Annotated[
        Types, option("--workflow-type", metavar="TYPE", text="it runs; repeatable")
    ] = None,
    activity_type: Annotated[
        Types, option("--activity-type", metavar="TYPE", text="it runs; repeatable")
    ] = None,
    max_workflow_tasks: Annotated[
        int | None, option("--max-workflow-tasks", metavar="N", text="slots for workflow tasks", min=1)
    ] = None,
    max_activity_tasks: Annotated[
        int | None, option("--max-activity-tasks", metavar="N", text="slots for activities", min=1)
    ] = None,
) -> Result:
    """Register a worker, to try the worker's side by hand; needs a worker's token."""
    body = {
        "worker_id": worker_id,
        "task_queue": task_queue,
        "runtime": runtime,
        "sdk_version": sdk_version,
        "build_id": build_id,
        "supported_workflow_types": workflow_type or None,
        "supported_activity_types": activity_type or None,
        "max_concurrent_workflow_tasks": max_workflow_tasks,
        "max_concurrent_activity_tasks": max_activity_tasks,
    }
    return dw.post("worker", "register", body=body)


@command(
    "worker:deregister",
    facts("worker_id outcome recovered_workflow_task_count"),
    json="worker_id outcome",
    examples=("dw worker:deregister payments-9",),
)
def deregister(dw: Dw, worker_id: WorkerId) -> Result:
    """Forget a worker and give its workflow tasks to others; needs an administrator's token."""
    return dw.delete("workers", worker_id)
