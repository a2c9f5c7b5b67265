"""Routes of workflows: start and look (server-behaviour 3.3; sdk-wire 5.1, 5.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import orjson
from annotated_types import Ge, Le, MaxLen
from pydantic import BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

from cluster.errors import ValidationFailed
from cluster.paging import page_start
from cluster.payloads import json_view
from cluster.settings.schema import Settings
from cluster.times import iso_seconds, iso_us
from cluster.workflows.engine import StartRequest
from cluster.workflows.records import RunStatus
from cluster.workflows.visibility import HistoryPage, RunView
from nodes.api.attributes import attribute_faults, memo_too_large
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, Seconds, ShortText, Trimmed
from nodes.api.payloads import read_payload, show_envelope, show_value
from nodes.api.routes import Reply

DEFAULT_QUEUE: Final = "default"
_VERBS: Final = ("signal", "query", "update", "cancel", "terminate", "repair", "archive")


class Bucket(StrEnum):
    """The three groups of statuses a list can be filtered by."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


def bucket_of(status: RunStatus) -> Bucket:
    """The group a status belongs to."""
    if not status.closed:
        return Bucket.RUNNING
    return Bucket.COMPLETED if status is RunStatus.COMPLETED else Bucket.FAILED


def _duplicate_policy(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else value
    if text not in (None, "", "fail", "use-existing"):
        raise PydanticCustomError(
            "duplicate_policy", "The duplicate_policy field only supports fail or use-existing."
        )
    return text or None


_Policy = Annotated[str | None, BeforeValidator(_duplicate_policy)]
_WorkflowId = Annotated[
    Annotated[str, StringConstraints(max_length=128, pattern=r"^[a-zA-Z0-9._:-]+$")] | None, Trimmed
]


_REJECTED: Final = {
    "workflow_execution_timeout": "use execution_timeout_seconds.",
    "workflow_run_timeout": "use run_timeout_seconds.",
    "workflow_task_timeout": "the server decides it.",
    "retry_policy": "give one to each activity instead.",
    "idempotency_key": "use workflow_id.",
    "request_id": "use workflow_id.",
}
"""Fields of other products that would be misunderstood: refused whenever they are present."""


class _Start(Fields):
    workflow_type: ShortText
    task_queue: OptionalText = None
    workflow_id: _WorkflowId = None
    business_key: OptionalText = None
    input: Any = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    duplicate_policy: _Policy = None
    execution_timeout_seconds: Seconds = None
    run_timeout_seconds: Seconds = None
    build_id: OptionalText = None
    compatibility: OptionalText = None


class _List(Fields):
    workflow_type: OptionalText = None
    status: Annotated[Bucket | None, Trimmed] = None
    query: Annotated[Annotated[str, MaxLen(255)] | None, Trimmed] = None
    page_size: Annotated[Annotated[int, Ge(1), Le(200)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


class _History(Fields):
    wait_new_event: Annotated[bool | None, Trimmed] = None
    page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


async def start(call: Call) -> Reply:
    """``POST /api/workflows``."""
    body = call.fields(_Start, also=_faults(call.body, call.node.settings))
    started = await call.node.engine.start(
        StartRequest(
            namespace=call.namespace,
            traceparent=call.traceparent,
            workflow_type=body.workflow_type,
            workflow_id=body.workflow_id,
            task_queue=body.task_queue or DEFAULT_QUEUE,
            input=read_payload([] if body.input is None else _arguments(body.input), "input"),
            business_key=body.business_key,
            memo=body.memo or {},
            search_attributes=body.search_attributes or {},
            execution_timeout_seconds=body.execution_timeout_seconds,
            run_timeout_seconds=body.run_timeout_seconds,
            duplicate_policy=body.duplicate_policy,
            marker=body.compatibility or body.build_id or "",
            context=command_context(call, "start", workflow_id=body.workflow_id),
        )
    )
    info = started.info
    return Reply(
        {
            "workflow_id": info.workflow_id,
            "run_id": info.run_id,
            "workflow_type": info.workflow_type,
            "namespace": info.namespace,
            "status": started.status.value,
            "business_key": info.business_key,
            "payload_codec": info.payload_codec,
            "outcome": started.outcome,
        },
        201 if started.outcome == "started_new" else 200,
    )


async def list_workflows(call: Call) -> Reply:
    """``GET /api/workflows``."""
    wanted = call.query_fields(_List)
    page = await call.node.engine.list_runs(
        call.namespace,
        workflow_type=wanted.workflow_type,
        bucket=wanted.status.value if wanted.status else None,
        query=wanted.query,
        page_size=wanted.page_size or 50,
        token=wanted.next_page_token,
    )
    return Reply(
        {
            "workflows": [_item(view) for view in page.runs],
            "workflow_count": len(page.runs),
            "next_page_token": page.next_page_token,
        }
    )


async def describe(call: Call) -> Reply:
    """``GET /api/workflows/{workflow_id}``: the newest run."""
    view = await call.node.engine.describe(call.namespace, call.parameters["workflow_id"])
    return Reply(describe_view(view, call.operations))


async def describe_run(call: Call) -> Reply:
    """``GET /api/workflows/{workflow_id}/runs/{run_id}``."""
    view = await call.node.engine.describe(
        call.namespace, call.parameters["workflow_id"], call.parameters["run_id"]
    )
    return Reply(describe_view(view, call.operations))


async def history(call: Call) -> Reply:
    """``GET /api/workflows/{workflow_id}/runs/{run_id}/history``."""
    wanted = call.query_fields(_History)
    workflow_id, run_id = call.parameters["workflow_id"], call.parameters["run_id"]
    page = await _page(call, wanted)
    if wanted.wait_new_event and not page.events:
        known = page_start(wanted.next_page_token or "") or 0
        seconds = call.node.settings.worker_poll_timeout
        await call.node.history_waits.wait(run_id, known, seconds)
        page = await _page(call, wanted)
    return Reply(
        {
            "workflow_id": workflow_id,
            "run_id": run_id,
            "events": [_event(raw) for raw in page.events],
            "next_page_token": page.next_page_token,
        }
    )


async def _page(call: Call, wanted: _History) -> HistoryPage:
    return await call.node.engine.history(
        call.namespace,
        call.parameters["workflow_id"],
        call.parameters["run_id"],
        page_size=wanted.page_size or 100,
        token=wanted.next_page_token,
    )


def _arguments(value: Any) -> Any:
    if not isinstance(value, list | dict):
        raise ValidationFailed({"input": ["The input field must be a list, an object or an envelope."]})
    return value


def _faults(body: dict[str, Any], settings: Settings) -> dict[str, list[str]]:
    """Rejected fields, and sizes that depend on settings."""
    errors = {
        name: [f"The {name} field is not supported: {remedy}"]
        for name, remedy in _REJECTED.items()
        if name in body
    }
    if memo_too_large(body.get("memo"), settings):
        errors["memo"] = [f"The memo must not be larger than {settings.max_memo_bytes} bytes."]
    problems = attribute_faults(body.get("search_attributes"), settings)
    if problems:
        errors["search_attributes"] = problems
    return errors


def _event(raw: bytes) -> dict[str, Any]:
    event = orjson.loads(raw)
    return {
        "id": event["id"],
        "sequence": event["sequence"],
        "event_type": event["event_type"],
        "timestamp": event["recorded_at"],
        "recorded_at": event["recorded_at"],
        "payload": event["payload"],
        "workflow_task_id": event["workflow_task_id"],
        "workflow_command_id": event["workflow_command_id"],
    }


def _item(view: RunView) -> dict[str, Any]:
    info, state = view.run.info, view.run.state
    return {
        "workflow_id": info.workflow_id,
        "run_id": info.run_id,
        "workflow_type": info.workflow_type,
        "namespace": info.namespace,
        "business_key": info.business_key,
        "status": state.status.value,
        "status_bucket": bucket_of(state.status).value,
        "task_queue": info.task_queue,
        "is_terminal": state.status.closed,
        "started_at": iso_us(info.started_at_us),
        "closed_at": _moment(state.closed_at_us),
        "search_attributes": info.search_attributes,
    }


def describe_view(view: RunView, operations: frozenset[str]) -> dict[str, Any]:
    """A run as describe shows it; ``operations`` are those this server offers."""
    info, state = view.run.info, view.run.state
    wait_kind, wait_reason = _wait(view)
    return {
        **_item(view),
        "closed_reason": state.closed_reason,
        "run_number": info.run_number,
        "run_count": view.run_count,
        "is_current_run": view.is_current,
        "compatibility": info.marker or None,
        "payload_codec": info.payload_codec,
        "execution_timeout_seconds": info.execution_timeout_seconds,
        "run_timeout_seconds": info.run_timeout_seconds,
        "execution_deadline_at": _deadline(info.execution_deadline_ms),
        "run_deadline_at": _deadline(info.run_deadline_ms),
        "input": show_value(info.input),
        "output": show_value(state.output),
        "input_envelope": show_envelope(info.input),
        "output_envelope": show_envelope(state.output),
        "last_progress_at": _moment(state.last_progress_at_us),
        "wait_kind": wait_kind,
        "wait_reason": wait_reason,
        "memo": json_view(info.memo),
        "actions": _actions(view, operations),
    }


def _actions(view: RunView, operations: frozenset[str]) -> dict[str, bool]:
    """What can be done with the run now, by the operations this server offers."""
    closed = view.run.state.status.closed
    open_now = view.is_current and not closed
    allowed = dict.fromkeys(_VERBS, open_now) | {"archive": closed and not view.archived}
    return {f"can_{verb}": allowed[verb] and verb in operations for verb in _VERBS}


def _wait(view: RunView) -> tuple[str | None, str | None]:
    """What an open run waits for, as a kind and a sentence."""
    state = view.run.state
    if state.status.closed:
        return None, None
    if state.task_open:
        return "workflow-task", "Waiting for a worker to run the workflow."
    if state.activities:
        return "activity", f"Waiting for {len(state.activities)} activities."
    if state.children:
        return "child", f"Waiting for {len(state.children)} children."
    if state.waits:
        return "condition", "Waiting for a condition."
    if state.timers:
        return "timer", f"Waiting for {len(state.timers)} timers."
    return None, None


def _moment(microseconds: int | None) -> str | None:
    return iso_us(microseconds) if microseconds else None


def _deadline(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso_seconds(milliseconds)
