"""Routes of standalone activities (sdk-wire 5.5): an activity that a client starts without a workflow."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, MaxLen
from pydantic import StringConstraints

from cluster.errors import ValidationFailed
from cluster.times import iso_ms, iso_us
from cluster.workflows.commands import ScheduleActivity
from cluster.workflows.deadlines import LEASED
from cluster.workflows.engine import StartRequest
from cluster.workflows.hosting import HOST_TYPE, ONLY_STEP
from cluster.workflows.records import RetryPolicy, RunStatus
from cluster.workflows.visibility import ActivityView, RunView
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.fields import LONGEST_SECONDS, Fields, Integer, OptionalText, Seconds, ShortText, Trimmed
from nodes.api.payloads import read_payload, show_envelope
from nodes.api.routes import Reply

_ID = Annotated[
    Annotated[str, StringConstraints(max_length=128, pattern=r"^[a-zA-Z0-9._:-]+$")] | None, Trimmed
]
_Backoff = Annotated[int, Ge(0), Le(LONGEST_SECONDS), Integer]


class ActivityStatus(StrEnum):
    """Statuses of a hosting run that a list can be filtered by."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


class _Retry(Fields):
    max_attempts: Annotated[Annotated[int, Ge(1), Le((1 << 53) - 1)] | None, Integer] = None
    backoff_seconds: Annotated[list[_Backoff], MaxLen(1000)] | None = None
    non_retryable_error_types: Annotated[list[str], MaxLen(1000)] | None = None


class Start(Fields):
    activity_type: ShortText
    task_queue: ShortText
    activity_id: _ID = None
    business_key: OptionalText = None
    input: Any = None
    retry_policy: _Retry | None = None
    start_to_close_timeout_seconds: Seconds = None
    schedule_to_start_timeout_seconds: Seconds = None
    schedule_to_close_timeout_seconds: Seconds = None
    heartbeat_timeout_seconds: Seconds = None


class Listed(Fields):
    status: Annotated[ActivityStatus | None, Trimmed] = None
    page_size: Annotated[Annotated[int, Ge(1), Le(200)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


_ORDERED: Final = (
    ("heartbeat_timeout_seconds", "start_to_close_timeout_seconds"),
    ("start_to_close_timeout_seconds", "schedule_to_close_timeout_seconds"),
    ("schedule_to_start_timeout_seconds", "schedule_to_close_timeout_seconds"),
)
_BUCKETS: Final = {
    ActivityStatus.RUNNING: "running",
    ActivityStatus.COMPLETED: "completed",
}


async def start(call: Call) -> Reply:
    """``POST /api/activities``."""
    body = call.fields(Start)
    _check_order(body)
    arguments = [] if body.input is None else body.input
    if not isinstance(arguments, list | dict):
        raise ValidationFailed({"input": ["The input field must be a list, an object or an envelope."]})
    payload = read_payload(arguments, "input")
    started = await call.node.engine.start(
        StartRequest(
            namespace=call.namespace,
            traceparent=call.traceparent,
            workflow_type=HOST_TYPE,
            workflow_id=body.activity_id,
            task_queue=body.task_queue,
            input=payload,
            business_key=body.business_key,
            context=command_context(call, "start_activity", workflow_id=body.activity_id),
        ),
        hosts=ScheduleActivity(
            activity_type=body.activity_type,
            queue=body.task_queue,
            arguments=payload,
            retry=_retry(body.retry_policy),
            start_to_close_seconds=body.start_to_close_timeout_seconds,
            schedule_to_start_seconds=body.schedule_to_start_timeout_seconds,
            schedule_to_close_seconds=body.schedule_to_close_timeout_seconds,
            heartbeat_seconds=body.heartbeat_timeout_seconds,
        ),
    )
    info = started.info
    return Reply(
        {
            "activity_id": info.workflow_id,
            "workflow_id": info.workflow_id,
            "workflow_run_id": info.run_id,
            "activity_execution_id": _execution(info.run_id),
            "workflow_type": info.workflow_type,
            "activity_type": info.standalone_activity,
            "task_queue": info.task_queue,
            "status": "running",
            "outcome": started.outcome,
        },
        201,
    )


async def describe(call: Call) -> Reply:
    """``GET /api/activities/{activity_id}``."""
    view = await call.node.engine.describe_activity(call.namespace, call.parameters["activity_id"])
    info, state = view.host.run.info, view.host.run.state
    status, attempts = _activity_status(view)
    failure = state.failure or (view.activity.last_failure if view.activity else None)
    return Reply(
        {
            **_item(view.host),
            "activity_status": status,
            "attempt_count": attempts,
            "input_envelope": show_envelope(info.input),
            "result": show_envelope(state.output),
            "payload_codec": (state.output.codec if state.output else info.payload_codec),
            "failure": failure,
            "last_heartbeat_at": iso_ms(view.lease.heartbeat_at_ms) if view.lease.heartbeat_at_ms else None,
            "last_progress_at": iso_us(state.last_progress_at_us) if state.last_progress_at_us else None,
        }
    )


async def list_activities(call: Call) -> Reply:
    """``GET /api/activities``."""
    wanted = call.query_fields(Listed)
    page = await call.node.engine.list_runs(
        call.namespace,
        workflow_type=HOST_TYPE,
        bucket=_BUCKETS.get(wanted.status, "failed") if wanted.status else None,
        query=None,
        page_size=wanted.page_size or 50,
        token=wanted.next_page_token,
        keep=lambda view: _belongs(view, wanted.status),
    )
    items = [_item(view) for view in page.runs]
    return Reply({"activities": items, "activity_count": len(items), "next_page_token": page.next_page_token})


def _check_order(body: Start) -> None:
    errors = {
        smaller: [f"{smaller} cannot exceed {larger}."]
        for smaller, larger in _ORDERED
        if (getattr(body, smaller) or 0) > (getattr(body, larger) or LONGEST_SECONDS)
    }
    if errors:
        raise ValidationFailed(errors)


def _retry(policy: _Retry | None) -> RetryPolicy | None:
    if policy is None:
        return None
    return RetryPolicy(
        max_attempts=policy.max_attempts or 1,
        backoff_seconds=tuple(policy.backoff_seconds or ()),
        non_retryable_error_types=tuple(policy.non_retryable_error_types or ()),
    )


def _execution(run_id: str) -> str:
    return f"{run_id}-a{ONLY_STEP}"


def _belongs(view: RunView, status: ActivityStatus | None) -> bool:
    """Whether a run hosts an activity, and one in the wanted status."""
    if view.run.info.standalone_activity is None:
        return False
    return status is None or _status(view) == status


def _status(view: RunView) -> str:
    status = view.run.state.status
    return status.value if status.closed else ActivityStatus.RUNNING.value


def _item(view: RunView) -> dict[str, Any]:
    info, state = view.run.info, view.run.state
    return {
        "activity_id": info.workflow_id,
        "workflow_id": info.workflow_id,
        "workflow_run_id": info.run_id,
        "activity_execution_id": _execution(info.run_id),
        "workflow_type": info.workflow_type,
        "activity_type": info.standalone_activity,
        "business_key": info.business_key,
        "task_queue": info.task_queue,
        "status": _status(view),
        "closed_reason": state.closed_reason,
        "started_at": iso_us(info.started_at_us),
        "closed_at": iso_us(state.closed_at_us) if state.closed_at_us else None,
    }


def _activity_status(view: ActivityView) -> tuple[str, int]:
    """The activity's own status, and how often it was handed out."""
    run = view.host.run.state
    if view.activity is not None:
        running = view.lease.state == LEASED
        return ("running" if running else "pending"), view.activity.attempt - (0 if running else 1)
    number = view.ended.get("attempt_number", 0)
    attempts = number if "activity_attempt_id" in view.ended or not number else number - 1
    if run.status is RunStatus.FAILED and run.closed_reason == "timed_out":
        return "timed_out", attempts
    return run.status.value, attempts
