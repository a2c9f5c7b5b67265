"""What each route is for, in a line, under which heading it stands, and what a request looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nodes.api.routes import Route

_RUN: Final = "/runs/{run_id}"

TAGS: Final[Mapping[str, str]] = {
    "Discovery": "What this server is, whether it works, and how it describes itself.",
    "Namespaces": "Tenants: names, retention.",
    "Workflows": "Start, watch, and tell workflows something.",
    "Activities": "Activities that run without a workflow.",
    "Schedules": "Workflows that start at times.",
    "Flows": "Flows of pull workers: start, watch, message, stop.",
    "Search attributes": "Names and types by which runs can be found.",
    "Task queues": "What waits, who works on it, what holds it back; limits and builds.",
    "Workers": "Workers as operators see them.",
    "Bridge adapters": "Events from elsewhere.",
    "System": "Upkeep and metrics for administrators.",
    "Cluster": "Nodes and partitions.",
    "Worker protocol": "What workers say: register, poll, answer.",
}
"""Headings in the order in which they are shown, with what stands under them."""

_HEADINGS: Final[Mapping[str, str]] = {
    "namespaces": "Namespaces",
    "storage": "Namespaces",
    "workflows": "Workflows",
    "activities": "Activities",
    "schedules": "Schedules",
    "flows": "Flows",
    "search-attributes": "Search attributes",
    "task-queues": "Task queues",
    "scaling": "Task queues",
    "admission": "Task queues",
    "workers": "Workers",
    "bridge-adapters": "Bridge adapters",
    "system": "System",
    "nodes": "Cluster",
    "partitions": "Cluster",
    "worker": "Worker protocol",
}

_SUMMARIES: Final[Mapping[str, str]] = {
    "GET /": "Where to go from here",
    "GET /metrics": "Metrics of this node in Prometheus' format",
    "GET /openapi.json": "This interface as an OpenAPI document",
    "GET /openapi.html": "This interface as a page for people",
    "GET /asyncapi.json": "The stream protocol as an AsyncAPI document",
    "GET /api/health": "Does this process serve, and see its store?",
    "GET /api/live": "Does this process answer at all?",
    "GET /api/ready": "Should this node be sent requests?",
    "GET /api/cluster/info": "What this server can do, for clients that adapt to it",
    "GET /api/nodes": "List the nodes and what they have to do",
    "GET /api/system/store": "Check again whether Redis is set up as it must be",
    "GET /api/partitions": "List the partitions, who keeps them, and what waits there",
    "GET /api/namespaces": "List namespaces",
    "POST /api/namespaces": "Create a namespace",
    "GET /api/namespaces/{namespace}": "Describe a namespace",
    "PUT /api/namespaces/{namespace}": "Change a namespace's description or retention",
    "PUT /api/namespaces/{namespace}/external-storage": "Set a policy for external storage (not offered)",
    "POST /api/storage/test": "Try the external storage (not offered)",
    "GET /api/workflows": "List runs, newest first",
    "POST /api/workflows": "Start a workflow",
    "GET /api/workflows/{workflow_id}": "Describe a workflow's newest run",
    "GET /api/workflows/{workflow_id}/runs": "List the runs of a workflow",
    "GET /api/workflows/{workflow_id}/runs/{run_id}/history": "Read a run's history, or wait for more",
    "GET /api/workflows/{workflow_id}/runs/{run_id}/history/export": "Export all that is kept of a run",
    "GET /api/workflows/{workflow_id}/debug": "Say what keeps a run from moving",
    "POST /api/workflows/{workflow_id}/repair": "Look at an open run again and put right what it lacks",
    "POST /api/workflows/{workflow_id}/archive": "Keep a closed run for good",
    "POST /api/workflows/{workflow_id}/signal/{signal_name}": "Send a signal",
    "POST /api/workflows/{workflow_id}/update/{update_name}": "Send an update; wait for its end if wanted",
    "POST /api/workflows/{workflow_id}/query/{query_name}": "Ask a worker about a workflow's state",
    "POST /api/workflows/{workflow_id}/cancel": "Cancel a workflow",
    "POST /api/workflows/{workflow_id}/terminate": "Terminate a workflow",
    "POST /api/bridge-adapters/webhook/{adapter}": "Start, signal or update a workflow once for an event",
    "GET /api/system/metrics": "Metrics of a namespace",
    "GET /api/system/operator-metrics": "Counts of a namespace's runs, tasks and workers",
    "GET /api/system/repair": "Show what a repair pass would look at",
    "POST /api/system/repair/pass": "Repair runs now",
    "GET /api/system/activity-timeouts": "Show activities with a deadline that has come",
    "POST /api/system/activity-timeouts/pass": "Enforce deadlines of activities now",
    "GET /api/system/retention": "Show runs past their retention",
    "POST /api/system/retention/pass": "Remove runs past their retention now",
    "GET /api/workers": "List workers",
    "GET /api/workers/{worker_id}": "Describe a worker",
    "DELETE /api/workers/{worker_id}": "Forget a worker",
    "GET /api/task-queues": "List task queues and what holds them back",
    "GET /api/task-queues/{task_queue}": "Describe a task queue",
    "GET /api/task-queues/{task_queue}/why": "Say why a task waits",
    "GET /api/task-queues/{task_queue}/build-ids": "List the builds of a queue's workers",
    "POST /api/task-queues/{task_queue}/build-ids/drain": "Give a build no new tasks",
    "POST /api/task-queues/{task_queue}/build-ids/resume": "Give a build tasks again",
    "GET /api/scaling": "Say how many workers each task queue needs",
    "GET /api/scaling/{task_queue}": "Say how many workers a task queue needs",
    "GET /api/admission/limits": "List limits that were set at run time",
    "GET /api/admission/limits/{task_queue}": "Show the limits of a queue and where they come from",
    "PUT /api/admission/limits/{task_queue}": "Set limits of a queue",
    "DELETE /api/admission/limits/{task_queue}": "Take back limits that were set at run time",
    "GET /api/schedules": "List schedules",
    "POST /api/schedules": "Create a schedule",
    "GET /api/schedules/{schedule_id}": "Describe a schedule",
    "PUT /api/schedules/{schedule_id}": "Change a schedule",
    "DELETE /api/schedules/{schedule_id}": "Delete a schedule; its history stays readable",
    "POST /api/schedules/{schedule_id}/pause": "Pause a schedule",
    "POST /api/schedules/{schedule_id}/resume": "Resume a schedule",
    "POST /api/schedules/{schedule_id}/trigger": "Fire a schedule now",
    "POST /api/schedules/{schedule_id}/backfill": "Fire a schedule for times that have passed",
    "GET /api/schedules/{schedule_id}/history": "Read what a schedule did and who changed it",
    "GET /api/activities": "List standalone activities, newest first",
    "POST /api/activities": "Start a standalone activity",
    "GET /api/activities/{activity_id}": "Describe a standalone activity",
    "GET /api/flows": "List flows, newest first",
    "POST /api/flows": "Start a flow",
    "GET /api/flows/{flow_id}": "Describe a flow",
    "GET /api/flows/{flow_id}/wait": "Wait until a flow has ended",
    "GET /api/flows/{flow_id}/steps": "Read a flow's step history",
    "POST /api/flows/{flow_id}/stop": "Stop a flow",
    "POST /api/flows/{flow_id}/channels/{channel}": "Publish messages to a flow's channel",
    "POST /api/flows/{flow_id}/rpc/{rpc_name}": "Call an RPC of a flow",
    "GET /api/search-attributes": "List search attributes",
    "POST /api/search-attributes": "Define a search attribute",
    "DELETE /api/search-attributes/{name}": "Remove the definition of a search attribute",
    "POST /api/worker/register": "Register a worker",
    "POST /api/worker/heartbeat": "Say that a worker is alive",
    "POST /api/worker/registrations/{worker_id}/deregister": "Deregister, with the token of the registration",
    "DELETE /api/worker/registrations/{worker_id}": "Deregister",
    "POST /api/worker/sessions": "Hold a worker session, or renew it",
    "POST /api/worker/sessions/{session_id}/heartbeat": "Renew a worker session",
    "DELETE /api/worker/sessions/{session_id}": "Close a worker session",
    "POST /api/worker/workflow-tasks/poll": "Wait for a workflow task",
    "POST /api/worker/workflow-tasks/{task_id}/history": "Read a further page of a leased task's history",
    "POST /api/worker/workflow-tasks/{task_id}/heartbeat": "Renew the lease of a workflow task",
    "POST /api/worker/workflow-tasks/{task_id}/complete": "Answer a workflow task with commands",
    "POST /api/worker/workflow-tasks/{task_id}/fail": "Say that a workflow task could not be worked on",
    "POST /api/worker/update-validation-tasks/poll": "Wait for an update to validate",
    "POST /api/worker/update-validation-tasks/{task_id}/approve": "Approve an update",
    "POST /api/worker/update-validation-tasks/{task_id}/reject": "Reject an update",
    "POST /api/worker/activity-tasks/poll": "Wait for an activity task",
    "POST /api/worker/activity-tasks/{task_id}/complete": "Report an activity's result",
    "POST /api/worker/activity-tasks/{task_id}/fail": "Report an activity's failure",
    "POST /api/worker/activity-tasks/{task_id}/heartbeat": "Renew an activity's lease and report progress",
    "POST /api/worker/query-tasks/poll": "Wait for a query",
    "POST /api/worker/query-tasks/{query_task_id}/complete": "Answer a query",
    "POST /api/worker/query-tasks/{query_task_id}/fail": "Say that a query could not be answered",
}

_POLL: Final = {"worker_id": "orders-1", "task_queue": "orders", "timeout_seconds": 30}
_CLAIM: Final = {"lease_owner": "orders-1", "workflow_task_attempt": 1}
EXAMPLES: Final[Mapping[str, dict[str, Any]]] = {
    "POST /api/namespaces": {"name": "orders-prod", "description": "production orders", "retention_days": 90},
    "POST /api/workflows": {
        "workflow_type": "orders.fulfillment",
        "workflow_id": "order-1001",
        "task_queue": "orders",
        "input": ["order-1001"],
    },
    "POST /api/workflows/{workflow_id}/signal/{signal_name}": {"input": ["paid"], "request_id": "payment-77"},
    "POST /api/workflows/{workflow_id}/update/{update_name}": {"input": [3], "wait_for": "completed"},
    "POST /api/workflows/{workflow_id}/query/{query_name}": {"input": []},
    "POST /api/workflows/{workflow_id}/cancel": {"reason": "the customer changed their mind"},
    "POST /api/workflows/{workflow_id}/terminate": {"reason": "stuck for good"},
    "POST /api/bridge-adapters/webhook/{adapter}": {
        "action": "signal_workflow",
        "idempotency_key": "evt_1",
        "target": {"workflow_id": "order-1001", "signal_name": "paid"},
    },
    "POST /api/task-queues/{task_queue}/build-ids/drain": {"build_id": "2026-04-22"},
    "POST /api/schedules": {
        "schedule_id": "nightly",
        "spec": {"cron_expressions": ["0 3 * * *"], "timezone": "Europe/Berlin"},
        "action": {"workflow_type": "cleanup", "task_queue": "orders"},
    },
    "POST /api/activities": {"activity_type": "resize", "task_queue": "images", "input": ["cat.png"]},
    "POST /api/search-attributes": {"name": "Tier", "type": "keyword"},
    "POST /api/worker/register": {
        "worker_id": "orders-1",
        "task_queue": "orders",
        "runtime": "external",
        "supported_workflow_types": ["orders.fulfillment"],
    },
    "POST /api/worker/heartbeat": {"worker_id": "orders-1"},
    "POST /api/worker/workflow-tasks/poll": _POLL,
    "POST /api/worker/activity-tasks/poll": _POLL,
    "POST /api/worker/query-tasks/poll": _POLL,
    "POST /api/worker/workflow-tasks/{task_id}/complete": {
        **_CLAIM,
        "commands": [{"type": "complete_workflow", "result": None}],
    },
    "POST /api/worker/workflow-tasks/{task_id}/fail": {**_CLAIM, "failure": {"message": "replay failed"}},
}
"""Bodies that would be accepted, were there such workflows and leases."""


def _of_any_run(route: Route) -> str:
    return f"{route.method} {route.template.replace(_RUN, '')}"


def summary(route: Route) -> str:
    """What the route is for, in a few words; "" for one that nobody described."""
    named = _SUMMARIES.get(f"{route.method} {route.template}")
    if named is not None or _RUN not in route.template:
        return named or ""
    general = _SUMMARIES.get(_of_any_run(route), "")
    return f"{general}, by its run" if general else ""


def heading(route: Route) -> str:
    """The tag a route stands under."""
    area = route.segments[1] if len(route.segments) > 1 else ""
    return _HEADINGS.get(area, "Discovery")


def example(route: Route) -> dict[str, Any] | None:
    """A body that fits the route, where one helps."""
    return EXAMPLES.get(f"{route.method} {route.template}") or EXAMPLES.get(_of_any_run(route))
