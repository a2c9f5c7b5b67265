"""What routes answer: members of good answers, and the reasons of refusals that are their own.

A refusal that follows from what a route is (no credential, wrong role, missing version, unknown
namespace, bad field ...) is not listed; see ``document``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Answers:
    """``good`` maps a status to the members that are always there, ``refused`` one to its reasons."""

    good: Mapping[int, tuple[str, ...]]
    refused: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def _ok(members: str, status: int = 200, *, refused: Mapping[int, str] | None = None) -> Answers:
    """One good status. Several members, and several reasons, are parted by blanks."""
    reasons = {code: tuple(text.split()) for code, text in (refused or {}).items()}
    return Answers({status: tuple(members.split())}, reasons)


UNKNOWN: Final = Answers({200: (), 201: (), 202: ()}, dict.fromkeys((404, 409, 422), ()))
"""A route that is not described."""

_NAMESPACE = "name description retention_days status external_payload_storage"
_RUN = (
    "workflow_id run_id workflow_type namespace business_key status status_bucket is_terminal task_queue "
    "run_number run_count is_current_run payload_codec input output input_envelope output_envelope "
    "started_at closed_at memo search_attributes actions"
)
_COMMAND = "workflow_id run_id outcome command_id command_status"
_DEBUG: Final = (
    "workflow_id run_id diagnostic_status execution pending_workflow_tasks pending_activities task_queue "
    "recent_failures last_event"
)
_NO_RUN = "instance_not_found run_not_found"
_NOT_ACTIVE = "run_not_active historical_run_command_rejected"
_SESSION = "session_id worker_id lease_owner status lease_expires_at ttl_expires_at"
_SIGNAL_CONFLICTS = f"{_NOT_ACTIVE} request_id_conflict structural_limit_exceeded"
_POLL_REFUSALS = {
    409: "task_queue_mismatch build_id_mismatch worker_draining",
    412: "worker_not_registered",
}
_TASK_CONFLICTS = (
    "task_not_leased task_mismatch lease_owner_mismatch lease_expired workflow_task_attempt_mismatch "
    "run_closed stale_attempt run_cancelled run_terminated run_already_closed run_timed_out invalid_commands"
)
_TASK = {404: "task_not_found attempt_not_found", 409: _TASK_CONFLICTS}
_SCHEDULE = "schedule_not_found"
_FLOW = "flow_not_found run_not_found"
_FLOW_VIEW = "flow_id flow_type namespace run_id run_number status started_at closed_at is_terminal"
_STARTED = "workflow_id run_id workflow_type namespace status business_key payload_codec outcome"
_LIMITS = "namespace task_queue version runtime effective"
_CHECKED = "status timestamp checks"
_SCALING: Final = (
    "namespace task_queue backlog oldest_age_seconds slots_in_use registered_slots active_workers "
    "desired_workers"
)


def _bridge() -> Answers:
    members = ["schema", "version", "adapter", "action", "accepted", "outcome", "idempotency_key", "reason"]
    return Answers({200: tuple(members), 202: tuple(members), 422: tuple(members)})


def _signal() -> Answers:
    return _ok(
        _COMMAND,
        202,
        refused={404: f"{_NO_RUN} unknown_signal", 409: _SIGNAL_CONFLICTS, 422: "invalid_signal_arguments"},
    )


def _update() -> Answers:
    members = tuple(f"{_COMMAND} update_id update_status".split())
    refused = {
        404: (*_NO_RUN.split(), "unknown_update"),
        409: (),  # a validator in the worker may name its own reason
        422: ("update_failed", "invalid_update_arguments", "update_validator_rejected"),
        504: ("update_validation_execution_timeout",),
    }
    return Answers({200: members, 202: members}, refused)


def _query() -> Answers:
    return _ok(
        "workflow_id run_id query_name result result_envelope",
        refused={
            404: f"{_NO_RUN} rejected_unknown_query query_not_found",
            409: "query_rejected query_worker_unavailable query_payload_decode_failed "
            "historical_run_command_rejected query_workflow_state_unavailable run_not_active",
            422: "invalid_query_arguments",
            429: "query_task_queue_full",
            503: "query_task_queue_unavailable",
            504: "query_worker_timeout",
        },
    )


def _stop() -> Answers:
    return _ok(_COMMAND, refused={404: _NO_RUN, 409: f"{_NOT_ACTIVE} request_id_conflict"})


def _validated() -> Answers:
    conflicts = (
        "update_validation_task_not_leased stale_update_validation_completion update_validation_lease_expired"
    )
    return _ok(
        "update_validation_task_id update_validation_attempt outcome recorded",
        refused={404: "update_validation_task_not_found", 409: conflicts},
    )


def _on_run(verb: str, answers: Answers) -> dict[str, Answers]:
    """The same operation on a workflow and on one of its runs."""
    return {
        f"POST /api/workflows/{{workflow_id}}/{verb}": answers,
        f"POST /api/workflows/{{workflow_id}}/runs/{{run_id}}/{verb}": answers,
    }


ANSWERS: Final[Mapping[str, Answers]] = {
    "PUT /api/namespaces/{namespace}/external-storage": Answers(
        {}, {404: ("namespace_not_found",), 422: ("storage_driver_unavailable",)}
    ),
    "POST /api/storage/test": Answers({}, {422: ("external_storage_not_configured",)}),
    "GET /": _ok("name version links"),
    "GET /metrics": Answers({200: ()}),
    "GET /openapi.json": _ok("openapi info paths components"),
    "GET /openapi.html": Answers({200: ()}),
    "GET /asyncapi.json": _ok("asyncapi info servers channels operations components"),
    "GET /api/live": Answers({200: ("status", "timestamp")}),
    "GET /api/health": Answers({200: tuple(_CHECKED.split()), 503: tuple(_CHECKED.split())}),
    "GET /api/ready": Answers({200: tuple(_CHECKED.split()), 503: tuple(_CHECKED.split())}),
    "GET /api/cluster/info": _ok(
        "server_id version default_namespace capabilities limits client_compatibility "
        "auth_composition_contract control_plane worker_protocol"
    ),
    "GET /api/nodes": _ok("generated_at answered_by nodes"),
    "GET /api/partitions": _ok("generated_at partition_count unowned_count partitions"),
    "GET /api/namespaces": _ok("namespaces next_page_token"),
    "POST /api/namespaces": _ok(f"{_NAMESPACE} created_at", 201, refused={409: "namespace_already_exists"}),
    "GET /api/namespaces/{namespace}": _ok(
        f"{_NAMESPACE} created_at updated_at", refused={404: "namespace_not_found"}
    ),
    "PUT /api/namespaces/{namespace}": _ok(f"{_NAMESPACE} updated_at", refused={404: "namespace_not_found"}),
    "GET /api/workflows": _ok("workflows workflow_count next_page_token"),
    "POST /api/workflows": Answers(
        {200: tuple(_STARTED.split()), 201: tuple(_STARTED.split())},
        {409: ("duplicate_not_allowed", "workflow_id_reserved_in_namespace")},
    ),
    "GET /api/workflows/{workflow_id}": _ok(_RUN, refused={404: "instance_not_found"}),
    "GET /api/workflows/{workflow_id}/runs": _ok(
        "workflow_id run_count runs", refused={404: "instance_not_found"}
    ),
    "GET /api/workflows/{workflow_id}/runs/{run_id}": _ok(_RUN, refused={404: "run_not_found"}),
    "GET /api/workflows/{workflow_id}/runs/{run_id}/history": _ok(
        "workflow_id run_id events next_page_token", refused={404: "run_not_found"}
    ),
    "GET /api/workflows/{workflow_id}/runs/{run_id}/history/export": _ok(
        "schema schema_version exported_at workflow history_events integrity", refused={404: "run_not_found"}
    ),
    "GET /api/workflows/{workflow_id}/debug": _ok(_DEBUG, refused={404: "instance_not_found"}),
    "GET /api/workflows/{workflow_id}/runs/{run_id}/debug": _ok(_DEBUG, refused={404: "run_not_found"}),
    "POST /api/workflows/{workflow_id}/repair": _ok(_COMMAND, refused={404: _NO_RUN, 409: "run_not_active"}),
    "POST /api/workflows/{workflow_id}/archive": _ok(_COMMAND, refused={404: _NO_RUN, 409: "run_not_closed"}),
    **_on_run("signal/{signal_name}", _signal()),
    **_on_run("update/{update_name}", _update()),
    **_on_run("query/{query_name}", _query()),
    **_on_run("cancel", _stop()),
    **_on_run("terminate", _stop()),
    "GET /api/schedules": _ok("schedules next_page_token"),
    "POST /api/schedules": _ok(
        "schedule_id outcome", 201, refused={409: "schedule_already_exists", 422: "memo_too_large"}
    ),
    "GET /api/schedules/{schedule_id}": _ok(
        "schedule_id spec action overlap_policy state info memo search_attributes status next_fire_at "
        "last_fired_at fires_count failures_count created_at updated_at",
        refused={404: _SCHEDULE},
    ),
    "PUT /api/schedules/{schedule_id}": _ok(
        "schedule_id outcome", refused={404: _SCHEDULE, 422: "memo_too_large"}
    ),
    "DELETE /api/schedules/{schedule_id}": _ok("schedule_id outcome", refused={404: _SCHEDULE}),
    "POST /api/schedules/{schedule_id}/pause": _ok("schedule_id outcome", refused={404: _SCHEDULE}),
    "POST /api/schedules/{schedule_id}/resume": _ok(
        "schedule_id outcome", refused={404: _SCHEDULE, 409: "schedule_not_paused"}
    ),
    "POST /api/schedules/{schedule_id}/trigger": Answers(
        {200: ("schedule_id", "outcome"), 500: ("schedule_id", "outcome")}, {404: (_SCHEDULE,)}
    ),
    "POST /api/schedules/{schedule_id}/backfill": _ok(
        "schedule_id outcome fires_attempted results", refused={404: _SCHEDULE, 422: "invalid_time_range"}
    ),
    "GET /api/schedules/{schedule_id}/history": _ok(
        "schedule_id namespace events next_cursor has_more",
        refused={404: _SCHEDULE, 422: "invalid_after_sequence"},
    ),
    "GET /api/activities": _ok("activities activity_count next_page_token"),
    "POST /api/activities": _ok(
        "activity_id workflow_run_id activity_execution_id workflow_type activity_type",
        201,
        refused={409: "duplicate_not_allowed workflow_id_reserved_in_namespace"},
    ),
    "GET /api/activities/{activity_id}": _ok(
        "activity_id workflow_run_id activity_type status activity_status result payload_codec attempt_count",
        refused={404: "activity_not_found"},
    ),
    "GET /api/search-attributes": _ok("system_attributes custom_attributes"),
    "POST /api/search-attributes": _ok(
        "name type outcome",
        201,
        refused={409: "name_reserved attribute_already_exists", 422: "search_attribute_limit_reached"},
    ),
    "DELETE /api/search-attributes/{name}": _ok(
        "name outcome", refused={404: "attribute_not_found", 409: "system_attribute"}
    ),
    "GET /api/workers": _ok("namespace workers stale_after_seconds"),
    "GET /api/workers/{worker_id}": _ok(
        "worker_id namespace task_queue runtime status updated_at", refused={404: "worker_not_found"}
    ),
    "DELETE /api/workers/{worker_id}": _ok("worker_id outcome", refused={404: "worker_not_found"}),
    "GET /api/task-queues": _ok("namespace task_queues"),
    "GET /api/task-queues/{task_queue}": _ok("name namespace stats admission pollers current_leases"),
    "GET /api/task-queues/{task_queue}/why": _ok(
        "namespace task_queue task_id waiting reasons",
        refused={404: "task_not_found", 409: "task_queue_mismatch"},
    ),
    "GET /api/task-queues/{task_queue}/build-ids": _ok("namespace task_queue stale_after_seconds build_ids"),
    "POST /api/task-queues/{task_queue}/build-ids/drain": _ok(
        "namespace task_queue build_id drain_intent drained_at"
    ),
    "POST /api/task-queues/{task_queue}/build-ids/resume": _ok(
        "namespace task_queue build_id drain_intent drained_at"
    ),
    "GET /api/scaling": _ok("namespace generated_at total task_queues"),
    "GET /api/scaling/{task_queue}": _ok(_SCALING),
    "GET /api/admission/limits": _ok("namespace version limits"),
    "GET /api/admission/limits/{task_queue}": _ok(_LIMITS),
    "PUT /api/admission/limits/{task_queue}": _ok(_LIMITS),
    "DELETE /api/admission/limits/{task_queue}": _ok(_LIMITS, refused={404: "admission_limits_not_found"}),
    "POST /api/bridge-adapters/webhook/{adapter}": _bridge(),
    "GET /api/system/metrics": _ok("namespace generated_at metrics cardinality"),
    "GET /api/system/operator-metrics": _ok("namespace operator_metrics"),
    "GET /api/system/store": _ok("status durability findings"),
    "GET /api/system/repair": _ok("policy candidates"),
    "POST /api/system/repair/pass": _ok(
        "selected_total_candidates dispatched_tasks", refused={404: "instance_not_found"}
    ),
    "GET /api/system/activity-timeouts": _ok("expired_count expired_execution_ids scan_limit scan_pressure"),
    "POST /api/system/activity-timeouts/pass": _ok("processed enforced skipped failed results"),
    "GET /api/system/retention": _ok(
        "namespace retention_days cutoff expired_run_count expired_run_ids scan_limit scan_pressure"
    ),
    "POST /api/system/retention/pass": Answers(
        dict.fromkeys((200, 207), ("processed", "pruned", "skipped", "failed", "results"))
    ),
    "GET /api/flows": _ok("flows flow_count next_page_token"),
    "POST /api/flows": Answers(
        dict.fromkeys((200, 201), ("flow_id", "run_id", "flow_type", "namespace", "outcome")),
        {409: ("flow_already_started",), 422: ("structural_limit_exceeded",)},
    ),
    "GET /api/flows/{flow_id}": _ok(_FLOW_VIEW, refused={404: _FLOW}),
    "GET /api/flows/{flow_id}/wait": Answers(
        dict.fromkeys((200, 202), tuple(_FLOW_VIEW.split())), {404: tuple(_FLOW.split())}
    ),
    "GET /api/flows/{flow_id}/steps": _ok("flow_id steps next_page_token", refused={404: _FLOW}),
    "POST /api/flows/{flow_id}/stop": Answers(
        dict.fromkeys((200, 202), tuple(_FLOW_VIEW.split())),
        {404: tuple(_FLOW.split()), 409: ("flow_closed", "flow_closing")},
    ),
    "POST /api/flows/{flow_id}/channels/{channel}": Answers(
        dict.fromkeys((200, 202), ("flow_id", "channel", "outcome")),
        {
            404: tuple(_FLOW.split()),
            409: ("flow_closed", "flow_closing"),
            422: ("structural_limit_exceeded",),
        },
    ),
    "POST /api/flows/{flow_id}/rpc/{rpc_name}": _ok(
        "result",
        refused={
            404: f"{_FLOW} unknown_rpc",
            409: "flow_closed flow_closing rpc_lock_conflict rpc_in_progress",
            422: "rpc_failed invalid_output",
            503: "rpc_unavailable",
            504: "rpc_timed_out rpc_worker_lost",
        },
    ),
    "POST /api/worker/register": _ok(
        "worker_id registered heartbeat_interval_seconds stale_after_seconds registration_token",
        201,
        refused={409: "workflow_definition_changed"},
    ),
    "POST /api/worker/heartbeat": _ok(
        "worker_id acknowledged heartbeat_interval_seconds stale_after_seconds",
        refused={404: "worker_not_registered"},
    ),
    "POST /api/worker/registrations/{worker_id}/deregister": _ok(
        "worker_id outcome recovered_workflow_task_count",
        refused={404: "worker_not_found", 409: "registration_token_mismatch"},
    ),
    "DELETE /api/worker/registrations/{worker_id}": _ok(
        "worker_id outcome recovered_workflow_task_count", refused={404: "worker_not_found"}
    ),
    "POST /api/worker/sessions": _ok(
        _SESSION,
        201,
        refused={
            404: "worker_not_registered worker_session_not_found",
            409: "task_queue_mismatch worker_session_held worker_session_lost worker_session_limit_reached",
        },
    ),
    "POST /api/worker/sessions/{session_id}/heartbeat": _ok(
        f"{_SESSION} renewed",
        refused={404: "worker_not_registered worker_session_not_found", 409: "worker_session_held"},
    ),
    "DELETE /api/worker/sessions/{session_id}": _ok(
        f"{_SESSION} outcome", refused={404: "worker_session_not_found", 409: "worker_session_held"}
    ),
    "POST /api/worker/workflow-tasks/poll": _ok("task poll_status", refused={**_POLL_REFUSALS}),
    "POST /api/worker/activity-tasks/poll": _ok("task poll_status", refused={**_POLL_REFUSALS}),
    "POST /api/worker/query-tasks/poll": _ok(
        "task poll_status", refused={**_POLL_REFUSALS, 503: "query_task_queue_unavailable"}
    ),
    "POST /api/worker/update-validation-tasks/poll": _ok("task poll_status", refused=_POLL_REFUSALS),
    "POST /api/worker/update-validation-tasks/{task_id}/approve": _validated(),
    "POST /api/worker/update-validation-tasks/{task_id}/reject": _validated(),
    "POST /api/worker/workflow-tasks/{task_id}/history": _ok(
        "task_id history_events total_history_events next_history_page_token",
        refused={400: "invalid_page_token", **_TASK},
    ),
    "POST /api/worker/workflow-tasks/{task_id}/heartbeat": _ok(
        "task_id renewed lease_expires_at", refused={**_TASK}
    ),
    "POST /api/worker/workflow-tasks/{task_id}/complete": _ok(
        "task_id outcome recorded run_id run_status created_task_ids",
        refused={**_TASK, 422: "structural_limit_exceeded payload_too_large"},
    ),
    "POST /api/worker/workflow-tasks/{task_id}/fail": _ok(
        "task_id outcome recorded next_task_id", refused={**_TASK}
    ),
    "POST /api/worker/activity-tasks/{task_id}/complete": _ok(
        "outcome recorded next_task_id", refused={**_TASK}
    ),
    "POST /api/worker/activity-tasks/{task_id}/fail": _ok("outcome recorded next_task_id", refused={**_TASK}),
    "POST /api/worker/activity-tasks/{task_id}/heartbeat": _ok(
        "cancel_requested can_continue heartbeat_recorded", refused={**_TASK}
    ),
    "POST /api/worker/query-tasks/{query_task_id}/complete": _ok(
        "query_task_id outcome",
        refused={
            404: "query_task_not_found",
            409: "query_task_not_leased query_task_attempt_mismatch lease_owner_mismatch",
        },
    ),
    "POST /api/worker/query-tasks/{query_task_id}/fail": _ok(
        "query_task_id outcome",
        refused={
            404: "query_task_not_found",
            409: "query_task_not_leased query_task_attempt_mismatch lease_owner_mismatch",
        },
    ),
}
