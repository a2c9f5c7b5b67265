"""The routing table: every route this server answers, and who may use it."""

from __future__ import annotations

from typing import Final

from nodes.api import (
    activity_tasks,
    admission,
    bridges,
    build_ids,
    care,
    cluster_views,
    debugging,
    discovery,
    external_storage,
    flows,
    front,
    namespaces,
    openapi,
    queries,
    scaling,
    schedules,
    search_attributes,
    standalone,
    store_view,
    system,
    system_metrics,
    task_queues,
    update_validations,
    worker_fleet,
    worker_sessions,
    workers,
    workflow_commands,
    workflow_tasks,
    workflows,
)
from nodes.api.call import Call
from nodes.api.metrics import CONTENT_TYPE
from nodes.api.openapi import page
from nodes.api.routes import ADMINS, ANYONE, OPERATORS, WORKERS, Handler, Plane, Reply, Role, Route
from nodes.streams import asyncapi


async def _metrics(call: Call) -> Reply:
    return Reply(call.metrics.render(), content_type=CONTENT_TYPE)


async def _openapi(_call: Call) -> Reply:
    """This interface as an OpenAPI document."""
    return Reply(openapi.render(ROUTES))


async def _reference(_call: Call) -> Reply:
    """This interface as a page for people."""
    return Reply(page.render(ROUTES), content_type=b"text/html; charset=utf-8")


async def _asyncapi(_call: Call) -> Reply:
    """The stream protocol as an AsyncAPI document."""
    return Reply(asyncapi.render())


def _public(template: str, handler: Handler, *, for_workers: bool = False) -> Route:
    return Route(
        "GET",
        template,
        Plane.CONTROL,
        handler,
        public=True,
        versioned=False,
        scoped=False,
        for_workers=for_workers,
    )


def _namespaces(method: str, path: str, roles: frozenset[Role], handler: Handler) -> Route:
    return Route(method, f"/api/namespaces{path}", Plane.CONTROL, handler, roles, scoped=False)


def _workflows(
    method: str, path: str, operation: str, handler: Handler, *, for_workers: bool = False
) -> Route:
    return Route(
        method,
        f"/api/workflows{path}",
        Plane.CONTROL,
        handler,
        OPERATORS,
        operation=operation,
        for_workers=for_workers,
    )


def _control(
    method: str, path: str, roles: frozenset[Role], handler: Handler, *, for_workers: bool = False
) -> Route:
    return Route(method, f"/api/{path}", Plane.CONTROL, handler, roles, for_workers=for_workers)


def _cluster(path: str, handler: Handler) -> Route:
    return Route("GET", f"/api/{path}", Plane.CONTROL, handler, OPERATORS, scoped=False)


def _commands(path: str, operation: str, handler: Handler) -> tuple[Route, Route]:
    """A command to a workflow's current run, and the same to a run that is named."""
    return (
        _workflows("POST", f"/{{workflow_id}}/{path}", operation, handler),
        _workflows("POST", f"/{{workflow_id}}/runs/{{run_id}}/{path}", operation, handler),
    )


def _unversioned(path: str, roles: frozenset[Role], handler: Handler) -> Route:
    """A route for programs that cannot send the version header, such as autoscalers."""
    return Route("GET", path, Plane.CONTROL, handler, roles, versioned=False)


def _worker(method: str, path: str, handler: Handler, *, polls: bool = False) -> Route:
    return Route(method, f"/api/worker/{path}", Plane.WORKER, handler, WORKERS, polls=polls, for_workers=True)


ROUTES: Final = (
    _public("/", front.front),
    _public("/metrics", _metrics),
    _public("/openapi.json", _openapi),
    _public("/openapi.html", _reference),
    _public("/asyncapi.json", _asyncapi),
    _public("/api/health", discovery.health, for_workers=True),
    _public("/api/live", discovery.live, for_workers=True),
    _public("/api/ready", discovery.ready, for_workers=True),
    Route(
        "GET",
        "/api/cluster/info",
        Plane.CONTROL,
        discovery.cluster_info,
        ANYONE,
        versioned=False,
        scoped=False,
        for_workers=True,
    ),
    _cluster("nodes", cluster_views.list_nodes),
    _cluster("partitions", cluster_views.list_partitions),
    _namespaces("GET", "", OPERATORS, namespaces.list_namespaces),
    _namespaces("POST", "", ADMINS, namespaces.create_namespace),
    _namespaces("GET", "/{namespace}", OPERATORS, namespaces.describe_namespace),
    _namespaces("PUT", "/{namespace}", ADMINS, namespaces.update_namespace),
    _namespaces("PUT", "/{namespace}/external-storage", ADMINS, external_storage.set_policy),
    _control("POST", "storage/test", ADMINS, external_storage.probe),
    _workflows("GET", "", "list", workflows.list_workflows),
    _workflows("POST", "", "start", workflows.start, for_workers=True),
    _workflows("GET", "/{workflow_id}", "describe", workflows.describe),
    _workflows("GET", "/{workflow_id}/runs/{run_id}", "describe_run", workflows.describe_run),
    _workflows("GET", "/{workflow_id}/runs/{run_id}/history", "history", workflows.history),
    _workflows("GET", "/{workflow_id}/runs", "list_runs", care.list_runs),
    _workflows("GET", "/{workflow_id}/debug", "debug_workflow", debugging.debug),
    _workflows("GET", "/{workflow_id}/runs/{run_id}/debug", "debug_workflow", debugging.debug),
    _workflows("POST", "/{workflow_id}/repair", "repair", care.repair),
    _workflows("POST", "/{workflow_id}/archive", "archive", care.archive),
    _control("GET", "workflows/{workflow_id}/runs/{run_id}/history/export", OPERATORS, care.export_history),
    *_commands("signal/{signal_name}", "signal", workflow_commands.signal),
    *_commands("update/{update_name}", "update", workflow_commands.update),
    *_commands("cancel", "cancel", workflow_commands.cancel),
    *_commands("terminate", "terminate", workflow_commands.terminate),
    _workflows("POST", "/{workflow_id}/query/{query_name}", "query", queries.query),
    _workflows("POST", "/{workflow_id}/runs/{run_id}/query/{query_name}", "query", queries.query),
    _control("POST", "bridge-adapters/webhook/{adapter}", OPERATORS, bridges.webhook),
    _control("GET", "system/metrics", ADMINS, system_metrics.metrics),
    _control("GET", "system/operator-metrics", ADMINS, system_metrics.operator_metrics),
    Route("GET", "/api/system/store", Plane.CONTROL, store_view.show_store, ADMINS, scoped=False),
    _control("GET", "system/repair", ADMINS, system.repair_status),
    _control("POST", "system/repair/pass", ADMINS, system.repair_pass),
    _control("GET", "system/activity-timeouts", ADMINS, system.timeout_status),
    _control("POST", "system/activity-timeouts/pass", ADMINS, system.timeout_pass),
    _control("GET", "system/retention", ADMINS, system.retention_status),
    _control("POST", "system/retention/pass", ADMINS, system.retention_pass),
    _control("GET", "workers", OPERATORS, worker_fleet.list_workers),
    _control("GET", "workers/{worker_id}", OPERATORS, worker_fleet.describe_worker),
    _control("DELETE", "workers/{worker_id}", ADMINS, worker_fleet.deregister_worker),
    _control("GET", "task-queues/{task_queue}/build-ids", OPERATORS, build_ids.list_build_ids),
    _control("POST", "task-queues/{task_queue}/build-ids/drain", OPERATORS, build_ids.drain),
    _control("POST", "task-queues/{task_queue}/build-ids/resume", OPERATORS, build_ids.resume),
    _control("GET", "schedules", OPERATORS, schedules.list_schedules),
    _control("POST", "schedules", OPERATORS, schedules.create),
    _control("GET", "schedules/{schedule_id}", OPERATORS, schedules.describe),
    _control("PUT", "schedules/{schedule_id}", OPERATORS, schedules.update),
    _control("DELETE", "schedules/{schedule_id}", OPERATORS, schedules.delete),
    _control("POST", "schedules/{schedule_id}/pause", OPERATORS, schedules.pause),
    _control("POST", "schedules/{schedule_id}/resume", OPERATORS, schedules.resume),
    _control("POST", "schedules/{schedule_id}/trigger", OPERATORS, schedules.trigger),
    _control("POST", "schedules/{schedule_id}/backfill", OPERATORS, schedules.backfill),
    _control("GET", "schedules/{schedule_id}/history", OPERATORS, schedules.history),
    _control("GET", "activities", OPERATORS, standalone.list_activities),
    _control("POST", "activities", OPERATORS, standalone.start),
    _control("GET", "activities/{activity_id}", OPERATORS, standalone.describe),
    _control("GET", "flows", OPERATORS, flows.list_flows),
    _control("POST", "flows", OPERATORS, flows.start, for_workers=True),
    _control("GET", "flows/{flow_id}", OPERATORS, flows.describe),
    _control("GET", "flows/{flow_id}/wait", OPERATORS, flows.wait),
    _control("GET", "flows/{flow_id}/steps", OPERATORS, flows.steps),
    _control("POST", "flows/{flow_id}/stop", OPERATORS, flows.stop),
    _control("POST", "flows/{flow_id}/channels/{channel}", OPERATORS, flows.publish),
    _control("POST", "flows/{flow_id}/rpc/{rpc_name}", OPERATORS, flows.rpc),
    _control("GET", "search-attributes", OPERATORS, search_attributes.list_attributes),
    _control("POST", "search-attributes", OPERATORS, search_attributes.define),
    _control("DELETE", "search-attributes/{name}", OPERATORS, search_attributes.remove),
    _control("GET", "task-queues", OPERATORS, task_queues.list_task_queues),
    _control("GET", "task-queues/{task_queue}", OPERATORS, task_queues.describe_task_queue),
    _control("GET", "task-queues/{task_queue}/why", OPERATORS, task_queues.why),
    _unversioned("/api/scaling", OPERATORS, scaling.scaling),
    _unversioned("/api/scaling/{task_queue}", OPERATORS, scaling.scaling_of_queue),
    _control("GET", "admission/limits", OPERATORS, admission.list_limits),
    _control("GET", "admission/limits/{task_queue}", OPERATORS, admission.show_limits),
    _control("PUT", "admission/limits/{task_queue}", ADMINS, admission.set_limits),
    _control("DELETE", "admission/limits/{task_queue}", ADMINS, admission.remove_limits),
    _worker("POST", "register", workers.register),
    _worker("POST", "heartbeat", workers.heartbeat),
    _worker("POST", "registrations/{worker_id}/deregister", workers.deregister),
    _worker("DELETE", "registrations/{worker_id}", workers.remove),
    _worker("POST", "sessions", worker_sessions.create),
    _worker("POST", "sessions/{session_id}/heartbeat", worker_sessions.heartbeat),
    _worker("DELETE", "sessions/{session_id}", worker_sessions.close),
    _worker("POST", "workflow-tasks/poll", workflow_tasks.poll, polls=True),
    _worker("POST", "update-validation-tasks/poll", update_validations.poll, polls=True),
    _worker("POST", "update-validation-tasks/{task_id}/approve", update_validations.approve),
    _worker("POST", "update-validation-tasks/{task_id}/reject", update_validations.reject),
    _worker("POST", "workflow-tasks/{task_id}/history", workflow_tasks.history),
    _worker("POST", "workflow-tasks/{task_id}/heartbeat", workflow_tasks.heartbeat),
    _worker("POST", "workflow-tasks/{task_id}/complete", workflow_tasks.complete),
    _worker("POST", "workflow-tasks/{task_id}/fail", workflow_tasks.fail),
    _worker("POST", "activity-tasks/poll", activity_tasks.poll, polls=True),
    _worker("POST", "activity-tasks/{task_id}/complete", activity_tasks.complete),
    _worker("POST", "activity-tasks/{task_id}/fail", activity_tasks.fail),
    _worker("POST", "activity-tasks/{task_id}/heartbeat", activity_tasks.heartbeat),
    _worker("POST", "query-tasks/poll", queries.poll, polls=True),
    _worker("POST", "query-tasks/{query_task_id}/complete", queries.complete),
    _worker("POST", "query-tasks/{query_task_id}/fail", queries.fail),
)
