"""What both kinds of polls share: their fields, the guard, the answer (server-behaviour 4.3, 5.2)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from annotated_types import Ge, Le
from pydantic import Field

from cluster.ids import TaskKind
from cluster.queues.model import PollRequest, PollResult, PollStatus
from cluster.workers import Registration
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, ShortText

LONGEST_POLL_SECONDS: Final = 60


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


async def find_task(call: Call, body: PollFields, kind: TaskKind, page_size: int) -> PollResult:
    """Wait for a task for a registered worker. Raises Refused (412, 409) and StoreError."""
    registration = await call.node.workers.admit(
        call.namespace, body.worker_id, body.task_queue, body.build_id
    )
    timeout = call.node.settings.worker_poll_timeout if body.timeout_seconds is None else body.timeout_seconds
    result = await call.node.polls.poll(
        PollRequest(
            kind=kind,
            namespace=call.namespace,
            queue=body.task_queue,
            worker_id=body.worker_id,
            marker=registration.build_id or "",
            types=_types(registration, kind),
            poll_request_id=body.poll_request_id,
            timeout=min(max(timeout, 0), LONGEST_POLL_SECONDS),
            page_size=page_size,
        )
    )
    call.metrics.poll(kind, result.status)
    return result


def answer(result: PollResult, task: dict[str, Any] | None) -> dict[str, Any]:
    """The body of a poll's answer; an unavailable queue says so instead of looking empty."""
    body: dict[str, Any] = {"task": task, "poll_status": result.status.value}
    if result.status is PollStatus.UNAVAILABLE:
        body["reason"] = "task_queue_admission_unavailable"
    return body


def _types(registration: Registration, kind: TaskKind) -> frozenset[str]:
    if kind is TaskKind.WORKFLOW:
        return frozenset(registration.supported_workflow_types)
    return frozenset(registration.supported_activity_types)
