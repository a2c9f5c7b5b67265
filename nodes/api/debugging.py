"""What keeps a run from moving, on one page (server-behaviour 3.3, debug)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from cluster.fleet import WorkerStatus
from cluster.times import iso_ms, iso_us
from cluster.workflows.records import ActivityState, Run
from cluster.workflows.repairing import Findings
from cluster.workflows.visibility import RunView
from nodes.api import documents
from nodes.api.call import Call
from nodes.api.fields import Fields, Trimmed
from nodes.api.queue_views import gather, pollers, summary
from nodes.api.routes import Reply
from nodes.api.workflows import describe_view

MOST_ITEMS: Final = 25
MOST_FAILURES: Final = 10
RECENT_EVENTS: Final = 100
PREVIEW_BYTES: Final = 4096

_FAILURES: Final = frozenset(
    {"ActivityFailed", "ActivityTimedOut", "ActivityRetryScheduled", "WorkflowFailed", "WorkflowTimedOut"}
)


class _Debug(Fields):
    include_last_event_payload: Annotated[bool | None, Trimmed] = None


async def debug(call: Call) -> Reply:
    """``GET /api/workflows/{workflow_id}[/runs/{run_id}]/debug``."""
    wanted = call.query_fields(_Debug)
    view = await call.node.engine.describe(
        call.namespace, call.parameters["workflow_id"], call.parameters.get("run_id")
    )
    info = view.run.info
    found = await call.node.engine.inspect(call.namespace, info.run_id)
    run, findings = found or (view.run, Findings(call.node.clock.now_ms(), {}, {}))
    events = await call.node.engine.last_events(info.run_id, RECENT_EVENTS)
    queue = await _queue(call, info.task_queue)
    return Reply(
        {
            "workflow_id": info.workflow_id,
            "run_id": info.run_id,
            "diagnostic_status": _diagnosis(view, findings, queue),
            "execution": describe_view(view, call.operations),
            "pending_workflow_tasks": _workflow_tasks(view, findings),
            "pending_activities": _activities(run, findings),
            "task_queue": queue,
            "recent_failures": _recent_failures(events),
            "last_event": _last_event(events, with_payload=bool(wanted.include_last_event_payload)),
        }
    )


async def _queue(call: Call, name: str) -> dict[str, Any]:
    settings = call.node.settings
    views = await call.node.fleet.workers(call.namespace, task_queue=name)
    facts = await gather(call.node, call.namespace, [name], views)
    stale_after = max(1, settings.worker_stale_after_seconds)
    shown = summary(facts, name, stale_after, settings.query_task_max_pending_per_queue)
    return {
        "name": name,
        "stats": shown["stats"],
        "admission": shown["admission"],
        "pollers": pollers(views, stale_after)[:MOST_ITEMS],
        "active_pollers": sum(view.status is WorkerStatus.ACTIVE for view in views),
    }


def _diagnosis(view: RunView, found: Findings, queue: dict[str, Any]) -> str:
    """One word for where the run stands; the first that applies."""
    state = view.run.state
    if state.status.closed:
        return "closed"
    if any(not task.state for task in found.tasks.values()) or None in found.timers.values():
        return "needs_repair"
    if state.task_failures:
        return "workflow_task_failing"
    if view.task is not None and view.task.state == "l":
        return "workflow_task_running"
    if state.task_open:
        return "workflow_task_ready" if queue["active_pollers"] else "no_active_workers"
    return "waiting"


def _workflow_tasks(view: RunView, found: Findings) -> list[dict[str, Any]]:
    """The open workflow task; a run has at most one."""
    state, task = view.run.state, view.task
    if not state.task_open:
        return []
    task_id = f"{view.run.info.run_id}-w{state.task_index}"
    status = "delayed" if state.task_waiting else "missing"
    if task is not None:
        status = "leased" if task.state == "l" else "ready"
    expires = found.tasks[task_id].expires_at_ms if task_id in found.tasks else 0
    return [
        {
            "task_id": task_id,
            "status": status,
            "attempt": task.attempt if task else state.task_attempt,
            "lease_owner": task.owner or None if task else None,
            "lease_expires_at": iso_ms(expires) if expires else None,
            "consecutive_failures": state.task_failures,
            "last_error": state.last_task_failure,
        }
    ]


def _activities(run: Run, found: Findings) -> list[dict[str, Any]]:
    return [_activity(run, activity, found) for activity in list(run.activities.values())[:MOST_ITEMS]]


def _activity(run: Run, activity: ActivityState, found: Findings) -> dict[str, Any]:
    execution_id = f"{run.info.run_id}-a{activity.step}"
    task = found.tasks.get(execution_id)
    status = "retrying" if activity.waiting else "missing"
    if task is not None and task.state:
        status = "running" if task.state == "l" else "pending"
    return {
        "activity_execution_id": execution_id,
        "activity_type": activity.activity_type,
        "task_queue": activity.task_queue,
        "status": status,
        "attempt": activity.attempt,
        "scheduled_at": iso_us(activity.scheduled_at_us),
        "available_at": iso_ms(activity.ready_at_ms),
        "lease_expires_at": iso_ms(task.expires_at_ms) if task and task.expires_at_ms else None,
        "last_failure": activity.last_failure,
    }


def _recent_failures(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest first."""
    failures = [event for event in reversed(events) if event["event_type"] in _FAILURES]
    return [
        {
            "sequence": event["sequence"],
            "event_type": event["event_type"],
            "timestamp": event["recorded_at"],
            "message": event["payload"].get("message"),
            "exception_type": event["payload"].get("exception_type"),
        }
        for event in failures[:MOST_FAILURES]
    ]


def _last_event(events: list[dict[str, Any]], *, with_payload: bool) -> dict[str, Any] | None:
    """The newest event; its payload only as size and keys unless it is asked for."""
    if not events:
        return None
    event = events[-1]
    raw = documents.write(event["payload"])
    shown = {
        "sequence": event["sequence"],
        "event_type": event["event_type"],
        "timestamp": event["recorded_at"],
        "payload_summary": {"size_bytes": len(raw), "keys": sorted(event["payload"])},
    }
    if with_payload:
        shown["payload_preview"] = raw[:PREVIEW_BYTES].decode("utf-8", "replace")
        shown["payload_truncated"] = len(raw) > PREVIEW_BYTES
    return shown
