"""Routes of activity tasks (server-behaviour 5.7, 5.8; sdk-wire 2.7)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import orjson
from pydantic import Field, FiniteFloat

from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.fields import Fields, ShortText
from nodes.api.payloads import read_payload
from nodes.api.polls import PollFields, find_task, reply
from nodes.api.routes import Reply


class FailureKind(StrEnum):
    """Kinds of activity failures a worker may name."""

    APPLICATION = "application"
    TIMEOUT = "timeout"
    CANCELLATION = "cancellation"
    MALFORMED_OUTPUT = "malformed_output"
    HANDLER_CRASH = "handler_crash"
    DECODE_FAILURE = "decode_failure"
    UNSUPPORTED_PAYLOAD = "unsupported_payload"


class TimeoutType(StrEnum):
    """Time-outs a worker may name."""

    SCHEDULE_TO_START = "schedule_to_start"
    START_TO_CLOSE = "start_to_close"
    SCHEDULE_TO_CLOSE = "schedule_to_close"
    HEARTBEAT = "heartbeat"
    DEADLINE_EXCEEDED = "deadline_exceeded"


class _Attempt(Fields):
    activity_attempt_id: ShortText
    lease_owner: ShortText


class _Complete(_Attempt):
    result: Any = None


class _Failure(Fields):
    message: str
    type: str | None = None
    class_: Annotated[str | None, Field(alias="class")] = None
    code: int | None = None
    stack_trace: str | None = None
    non_retryable: bool | None = None
    retryable: bool | None = None
    kind: FailureKind | None = None
    timeout_type: TimeoutType | None = None
    cancelled: bool | None = None
    malformed_output: bool | None = None
    details: Any = None
    diagnostics: Any = None


class _Fail(_Attempt):
    failure: _Failure


class _Heartbeat(_Attempt):
    message: str | None = None
    current: FiniteFloat | None = None
    total: FiniteFloat | None = None
    unit: str | None = None
    details: dict[str, Any] | None = None


async def poll(call: Call) -> Reply:
    """``POST /api/worker/activity-tasks/poll``."""
    body = call.fields(PollFields)
    result = await find_task(call, body, TaskKind.ACTIVITY, page_size=0)
    task = result.task
    shown = _show(task) if isinstance(task, ActivityTask) else None
    return reply(call, result, shown)


async def complete(call: Call) -> Reply:
    """``POST /api/worker/activity-tasks/{task_id}/complete``."""
    body = call.fields(_Complete)
    done = await call.node.engine.complete_activity(
        call.namespace,
        call.parameters["task_id"],
        body.activity_attempt_id,
        body.lease_owner,
        read_payload(body.result, "result"),
    )
    call.metrics.task(TaskKind.ACTIVITY, "completed")
    return Reply(done)


async def fail(call: Call) -> Reply:
    """``POST /api/worker/activity-tasks/{task_id}/fail``."""
    body = call.fields(_Fail)
    done = await call.node.engine.fail_activity(
        call.namespace,
        call.parameters["task_id"],
        body.activity_attempt_id,
        body.lease_owner,
        body.failure.model_dump(mode="json", by_alias=True, exclude_none=True),
    )
    call.metrics.task(TaskKind.ACTIVITY, "failed")
    return Reply(done)


async def heartbeat(call: Call) -> Reply:
    """``POST /api/worker/activity-tasks/{task_id}/heartbeat``."""
    body = call.fields(_Heartbeat)
    progress = body.model_dump(include={"message", "current", "total", "unit", "details"}, exclude_none=True)
    return Reply(
        await call.node.engine.heartbeat_activity(
            call.namespace,
            call.parameters["task_id"],
            body.activity_attempt_id,
            body.lease_owner,
            progress,
        )
    )


def _show(task: ActivityTask) -> dict[str, Any]:
    return {
        **orjson.loads(task.body),
        "task_id": task.task_id,
        "activity_attempt_id": task.attempt_id,
        "attempt_number": task.attempt,
        "task_queue": task.queue,
        "lease_owner": task.owner,
        "lease_expires_at": iso_ms(task.lease_expires_at_ms),
    }
