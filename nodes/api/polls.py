"""What both kinds of polls share: their fields, the guard, the answer (server-behaviour 4.3, 5.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Annotated, Any, Final, TypeVar

from annotated_types import Ge, Le
from pydantic import Field

from cluster.cohorts import cohort_of
from cluster.errors import Refused
from cluster.ids import TaskKind
from cluster.queues.model import PollRequest, PollResult, PollStatus
from cluster.workers import Registration
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, ShortText
from nodes.api.routes import Reply

LONGEST_POLL_SECONDS: Final = 60

Result = TypeVar("Result")


class PollFields(Fields):
    """Fields of a poll; other members that SDKs send are ignored."""

    worker_id: ShortText
    task_queue: ShortText
    build_id: OptionalText = None
    poll_request_id: OptionalText = None
    timeout_seconds: Annotated[int | None, Integer] = None


class WorkflowPollFields(PollFields):
    """A poll for workflow tasks. ``accept_history_encoding`` names encodings other than ours too."""

    history_page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    accept_history_encoding: Annotated[str | None, Field(max_length=64)] = None
    task_kinds: Annotated[list[ShortText] | None, Field(max_length=16)] = None


async def find_task(call: Call, body: PollFields, kind: TaskKind, page_size: int) -> PollResult:
    """Wait for a task for a registered worker. Raises Refused (412, 409) and StoreError."""
    registration = await call.node.workers.admit(
        call.namespace, body.worker_id, body.task_queue, body.build_id
    )
    request = PollRequest(
        kind=kind,
        namespace=call.namespace,
        queue=body.task_queue,
        worker_id=body.worker_id,
        marker=registration.build_id or "",
        types=_types(registration, kind),
        poll_request_id=body.poll_request_id,
        timeout=poll_seconds(call, body),
        page_size=page_size,
        registration=registration.token,
        most_sessions=registration.max_concurrent_worker_sessions,
    )
    result = await while_active(call, registration, partial(call.node.polls.poll, request))
    call.metrics.poll(kind, result.status)
    if result.task is not None:
        call.node.spans.handed_out(call.namespace, result.task)
    return result


def poll_seconds(call: Call, body: PollFields) -> float:
    """How long a poll waits: what it asks for, within limits, else the configured time."""
    asked = body.timeout_seconds
    seconds = call.node.settings.worker_poll_timeout if asked is None else asked
    return min(max(seconds, 0), LONGEST_POLL_SECONDS)


async def while_active(call: Call, worker: Registration, poll: Callable[[], Awaitable[Result]]) -> Result:
    """What ``poll`` returns, unless the worker's cohort drains or begins to meanwhile.

    Raises Refused (409 worker_draining) then; what the poll was given goes back to its queue.
    """
    cohort = cohort_of(call.namespace, worker.task_queue, worker.build_id)
    result = await call.node.cohorts.while_active(cohort, poll)
    if result is None:
        raise Refused(
            "worker_draining",
            "The worker's build is draining: it may finish its tasks but gets no new ones.",
            poll_status=PollStatus.DRAINING.value,
            worker_id=worker.worker_id,
            task_queue=worker.task_queue,
            build_id=cohort.build_id or None,
        )
    return result


def reply(call: Call, result: PollResult, task: dict[str, Any] | None) -> Reply:
    """The answer to a poll; its task goes back when the worker has left meanwhile."""
    found = result.task
    undelivered = None if found is None else partial(call.node.polls.undelivered, found)
    return Reply(answer(result, task), retry_after=result.retry_after, undelivered=undelivered)


def answer(result: PollResult, task: dict[str, Any] | None) -> dict[str, Any]:
    """The body of a poll's answer; an unavailable queue says so instead of looking empty."""
    body: dict[str, Any] = {"task": task, "poll_status": result.status.value}
    if result.status is PollStatus.UNAVAILABLE:
        body["reason"] = "task_queue_admission_unavailable"
    throttle = result.throttle
    if throttle is not None:
        body["reason"] = "task_queue_admission_throttled"
        if throttle.limit is not None:
            body["throttled_by"] = {
                "limit": throttle.limit.value,
                "maximum": throttle.maximum,
                "count": throttle.count,
            }
        if throttle.retry_after is not None:
            body["retry_after_seconds"] = ceil(throttle.retry_after)
    return body


def _types(registration: Registration, kind: TaskKind) -> frozenset[str]:
    if kind is TaskKind.WORKFLOW:
        return frozenset(registration.supported_workflow_types)
    return frozenset(registration.supported_activity_types)
