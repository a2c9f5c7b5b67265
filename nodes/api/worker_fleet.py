"""Routes of registered workers for operators (server-behaviour 3.5)."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le

from cluster.errors import Refused
from cluster.fleet import WorkerStatus, WorkerView
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, Trimmed
from nodes.api.routes import Reply


class _List(Fields):
    task_queue: OptionalText = None
    status: Annotated[WorkerStatus | None, Trimmed] = None
    page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


async def list_workers(call: Call) -> Reply:
    """``GET /api/workers``; ``status`` filters by what is shown.

    With a ``page_size`` they come by their ids, without it all at once, the one heard of last first.
    """
    wanted = call.query_fields(_List)
    fleet, following = call.node.fleet, None
    if wanted.page_size is None:
        views = await fleet.workers(call.namespace, task_queue=wanted.task_queue, status=wanted.status)
    else:
        views, following = await fleet.page(
            call.namespace,
            wanted.page_size,
            wanted.next_page_token,
            task_queue=wanted.task_queue,
            status=wanted.status,
        )
    return Reply(
        {
            "namespace": call.namespace,
            "workers": [show_worker(view) for view in views],
            "stale_after_seconds": call.node.settings.worker_stale_after_seconds,
            "next_page_token": following,
        }
    )


async def describe_worker(call: Call) -> Reply:
    """``GET /api/workers/{worker_id}``."""
    worker_id = call.parameters["worker_id"]
    view = await call.node.fleet.describe(call.namespace, worker_id)
    if view is None:
        raise Refused("worker_not_found", "Worker not found.", status=404, worker_id=worker_id)
    updated = max(view.registration.updated_at_ms, view.last_heartbeat_ms or 0)
    return Reply({**show_worker(view), "updated_at": iso_ms(updated)})


async def deregister_worker(call: Call) -> Reply:
    """``DELETE /api/workers/{worker_id}``: an operator forgets a worker, whatever it is doing."""
    receipt = await call.node.workers.deregister(
        call.namespace, call.parameters["worker_id"], None, call.node.engine.release_workflow_tasks
    )
    return Reply(
        {
            "worker_id": receipt.worker_id,
            "outcome": "deregistered",
            "recovered_workflow_task_count": receipt.recovered_workflow_task_count,
        }
    )


def show_worker(view: WorkerView) -> dict[str, Any]:
    """A worker as lists show it."""
    worker = view.registration
    return {
        "worker_id": worker.worker_id,
        "namespace": worker.namespace,
        "task_queue": worker.task_queue,
        "runtime": worker.runtime,
        "sdk_version": worker.sdk_version,
        "build_id": worker.build_id,
        "supported_workflow_types": worker.supported_workflow_types,
        "workflow_definition_fingerprints": worker.workflow_definition_fingerprints,
        "supported_activity_types": worker.supported_activity_types,
        "max_concurrent_workflow_tasks": worker.max_concurrent_workflow_tasks,
        "max_concurrent_activity_tasks": worker.max_concurrent_activity_tasks,
        "capabilities": worker.capabilities,
        "workflow_command_contracts": worker.workflow_command_contracts,
        "heartbeat_interval_seconds": worker.heartbeat_interval_seconds,
        "task_slots": view.vitals.get("task_slots"),
        "process_metrics": view.vitals.get("process_metrics"),
        "status": view.status.value,
        "last_heartbeat_at": iso_ms(view.last_heartbeat_ms) if view.last_heartbeat_ms else None,
        "registered_at": iso_ms(worker.registered_at_ms),
    }
