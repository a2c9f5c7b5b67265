"""Routes of workflow tasks (server-behaviour 5.2 to 5.6; sdk-wire 2.4 to 2.6)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import orjson
from annotated_types import Ge, Le
from pydantic import Field

from cluster.errors import ValidationFailed
from cluster.ids import TaskKind
from cluster.queues.model import PollStatus, WorkflowTask
from cluster.times import iso_ms
from cluster.workflows.commands import check_fields
from cluster.workflows.kept_histories import Keeping
from nodes.api import update_validations
from nodes.api.call import Call
from nodes.api.compression import ENCODINGS, compress
from nodes.api.discovery import HISTORY_COMPRESSION_THRESHOLD
from nodes.api.fields import Attempt, Fields, Integer, OptionalText, ShortText, Text
from nodes.api.polls import WorkflowPollFields, find_task, reply
from nodes.api.routes import Reply

LONGEST_KEPT_SECONDS: Final = 3600
"""So long a worker may say that it keeps a history."""

RESUME_KEYS: Final = (
    "workflow_wait_kind",
    "open_wait_id",
    "resume_source_kind",
    "resume_source_id",
    "workflow_update_id",
    "workflow_signal_id",
    "signal_name",
    "signal_wait_id",
    "workflow_command_id",
    "activity_execution_id",
    "activity_attempt_id",
    "activity_type",
    "child_call_id",
    "child_workflow_run_id",
    "workflow_sequence",
    "workflow_event_type",
    "timer_id",
    "condition_wait_id",
    "condition_key",
    "condition_definition_fingerprint",
)
"""Why the task exists; always present, null when unknown."""


class _Claimed(Fields):
    lease_owner: ShortText
    workflow_task_attempt: Attempt


class _StickyCache(Fields):
    worker_id: ShortText
    workflow_id: ShortText
    run_id: ShortText
    ttl_seconds: Annotated[int, Ge(1), Le(LONGEST_KEPT_SECONDS), Integer]


class _Complete(_Claimed):
    commands: Any = None
    sticky_cache: _StickyCache | None = None


class _Failure(Fields):
    message: str
    type: str | None = None
    reason: OptionalText = None
    stack_trace: str | None = None


class _Fail(_Claimed):
    failure: _Failure


class _History(_Claimed):
    next_history_page_token: Text
    history_page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    accept_history_encoding: Annotated[str | None, Field(max_length=64)] = None


async def poll(call: Call) -> Reply:
    """``POST /api/worker/workflow-tasks/poll``."""
    body = call.fields(WorkflowPollFields)
    page_size = _page_size(call, body.history_page_size)
    find = partial(find_task, call, body, TaskKind.WORKFLOW, page_size)
    if update_validations.TASK_KIND in (body.task_kinds or ()):
        found = await update_validations.beside(call, body, find)
        if isinstance(found, dict):
            return Reply({"task": found, "poll_status": PollStatus.LEASED.value})
        result = found
    else:
        result = await find()
    task = result.task
    if isinstance(task, WorkflowTask) and task.replay_mode is not None:
        call.metrics.replay(task.replay_mode)
    shown = _show(task, body.accept_history_encoding) if isinstance(task, WorkflowTask) else None
    return reply(call, result, shown)


async def history(call: Call) -> Reply:
    """``POST /api/worker/workflow-tasks/{task_id}/history``."""
    body = call.fields(_History)
    page = await call.node.engine.workflow_task_history(
        call.namespace,
        call.parameters["task_id"],
        body.lease_owner,
        body.workflow_task_attempt,
        page_size=_page_size(call, body.history_page_size),
        token=body.next_history_page_token,
    )
    return Reply({**page, **_events(page["history_events"], body.accept_history_encoding)})


async def heartbeat(call: Call) -> Reply:
    """``POST /api/worker/workflow-tasks/{task_id}/heartbeat``."""
    body = call.fields(_Claimed)
    return Reply(
        await call.node.engine.heartbeat_workflow_task(
            call.namespace, call.parameters["task_id"], body.lease_owner, body.workflow_task_attempt
        )
    )


async def complete(call: Call) -> Reply:
    """``POST /api/worker/workflow-tasks/{task_id}/complete``.

    The commands' fields are checked before the task is looked at (server-behaviour 1.1, pitfall).
    """
    body = call.fields(_Complete, also=_command_faults(call.body.get("commands")))
    done = await call.node.engine.complete_workflow_task(
        call.namespace,
        call.parameters["task_id"],
        body.lease_owner,
        body.workflow_task_attempt,
        body.commands,
        None if body.sticky_cache is None else Keeping(**body.sticky_cache.model_dump()),
    )
    call.metrics.task(TaskKind.WORKFLOW, "completed")
    return Reply(done)


async def fail(call: Call) -> Reply:
    """``POST /api/worker/workflow-tasks/{task_id}/fail``."""
    body = call.fields(_Fail)
    done = await call.node.engine.fail_workflow_task(
        call.namespace,
        call.parameters["task_id"],
        body.lease_owner,
        body.workflow_task_attempt,
        body.failure.model_dump(exclude_none=True),
    )
    call.metrics.task(TaskKind.WORKFLOW, "failed")
    return Reply(done)


def _command_faults(commands: Any) -> dict[str, list[str]]:
    try:
        check_fields(commands)
    except ValidationFailed as faults:
        return faults.errors
    return {}


def _page_size(call: Call, asked: int | None) -> int:
    settings = call.node.settings
    return min(asked or settings.history_page_size_default, settings.history_page_size_max)


def _show(task: WorkflowTask, accept_encoding: str | None) -> dict[str, Any]:
    info, state = task.info, task.state
    return {
        "task_id": task.task_id,
        "task_kind": "workflow",
        "workflow_id": info.workflow_id,
        "run_id": info.run_id,
        "workflow_task_attempt": task.attempt,
        "workflow_type": info.workflow_type,
        "payload_codec": info.payload_codec,
        "arguments": None if info.input is None else {"codec": info.input.codec, "blob": info.input.blob},
        "run_status": state.status.value,
        "last_history_sequence": state.history_length,
        "sticky_replay_mode": task.replay_mode,
        "task_queue": info.task_queue,
        "connection": None,
        "compatibility": info.marker or None,
        **({"traceparent": info.traceparent} if info.traceparent else {}),
        "lease_owner": task.owner,
        "lease_expires_at": iso_ms(task.lease_expires_at_ms),
        "total_history_events": state.history_length,
        "next_history_page_token": task.next_page_token,
        **dict.fromkeys(RESUME_KEYS),
        **state.resume,
        **_events(task.events, accept_encoding),
    }


def _events(events: Sequence[bytes], accept_encoding: str | None) -> dict[str, Any]:
    """A page of events, compressed when the worker asked for it and it is long enough."""
    if accept_encoding in ENCODINGS and len(events) >= HISTORY_COMPRESSION_THRESHOLD:
        packed = compress(b"[" + b",".join(events) + b"]", accept_encoding)
        return {
            "history_events": [],
            "history_events_compressed": b64encode(packed).decode(),
            "history_events_encoding": accept_encoding,
        }
    return {"history_events": [orjson.Fragment(event) for event in events]}
