"""Updates that a worker has to approve first (sdk-wire 2.9).

A validation travels like a query: it lives in a line of its task queue for as long as its caller
waits, and writes no history. Workers get it through their workflow polls. Only an approved update is
accepted, so a rejected one never was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
import trio

from cluster.errors import HeadraceError, Refused
from cluster.queries.model import Answer, AnswerState, QueryClaim, QueryPoll, Question, QuestionBody
from cluster.queues.model import PollResult, PollStatus
from cluster.times import iso_ms
from cluster.workflows.records import Payload, Run
from nodes.api.call import Call
from nodes.api.fields import Attempt, Fields, OptionalText, ShortText
from nodes.api.payloads import show_envelope
from nodes.api.polls import PollFields, poll_seconds, while_active
from nodes.api.routes import Reply

TASK_KIND: Final = "update_validation"
REJECTED: Final = "update_validator_rejected"
_LINE: Final = "\0update-validation:"
"""Keeps the line of a task queue's validations apart from that of its queries."""

_REASONS: Final = {
    "query_task_not_found": "update_validation_task_not_found",
    "query_task_not_leased": "update_validation_task_not_leased",
    "lease_owner_mismatch": "stale_update_validation_completion",
    "query_task_attempt_mismatch": "stale_update_validation_completion",
    "lease_expired": "update_validation_lease_expired",
}


class _Claimed(Fields):
    lease_owner: ShortText
    update_validation_attempt: Attempt


class _Failure(Fields):
    message: str
    reason: OptionalText = None
    type: str | None = None
    stack_trace: str | None = None
    validation_errors: Any = None


class _Reject(_Claimed):
    failure: _Failure


async def validate(call: Call, run: Run, name: str, arguments: Payload) -> None:
    """Ask a worker whether it accepts an update; returns when it does. Raises Refused."""
    info = run.info
    sent = {"workflow_id": info.workflow_id, "run_id": info.run_id, "update_name": name}
    draining = await call.node.cohorts.draining(info.namespace)
    if not await call.node.fleet.can_answer(
        info.namespace, info.task_queue, info.workflow_type, info.marker, draining
    ):
        text = "No live worker can validate updates of this workflow."
        raise Refused("update_validator_worker_unavailable", text, status=409, retryable=True, **sent)
    body = QuestionBody(
        workflow_id=info.workflow_id,
        run_id=info.run_id,
        workflow_type=info.workflow_type,
        query_name=name,
        payload_codec=info.payload_codec,
        arguments=arguments,
    )
    question = Question(info.namespace, _LINE + info.task_queue, info.marker, body)
    answer = await call.node.validations.ask(question)
    match answer.state:
        case AnswerState.COMPLETED:
            return
        case AnswerState.TIMED_OUT:
            text = "No worker validated the update in time."
            reason = "update_validation_execution_timeout"
            raise Refused(reason, text, status=504, retryable=True, **sent)
        case AnswerState.FAILED:
            raise _refused(answer.fields, sent)


def _refused(failure: dict[str, Any], sent: dict[str, Any]) -> Refused:
    message = failure.get("message") or "The update was rejected."
    reason = failure.get("reason") or REJECTED
    errors = failure.get("validation_errors")
    fields = sent | {"rejection_reason": reason, "outcome": f"rejected_{reason}", "retryable": False}
    if errors:
        fields["validation_errors"] = errors
    return Refused(reason, message, status=422 if errors and reason == REJECTED else 409, **fields)


async def poll(call: Call) -> Reply:
    """``POST /api/worker/update-validation-tasks/poll``."""
    body = call.fields(PollFields)
    worker = await call.node.workers.admit(call.namespace, body.worker_id, body.task_queue, body.build_id)

    async def find() -> tuple[dict[str, Any] | None]:
        return (await _find(call, body),)

    (task,) = await while_active(call, worker, find)
    status = PollStatus.EMPTY if task is None else PollStatus.LEASED
    return Reply({"task": task, "poll_status": status.value})


async def beside(
    call: Call, body: PollFields, find: Callable[[], Awaitable[PollResult]]
) -> PollResult | dict[str, Any]:
    """A workflow poll that also takes validations: whichever comes first.

    Raises what ``find`` raises. A task that comes at the same moment goes back.
    """
    found: dict[str, Any] = {}

    async def workflow() -> None:
        try:
            found["workflow"] = await find()
        except HeadraceError as error:
            found["error"] = error
        nursery.cancel_scope.cancel()

    async def validation() -> None:
        try:
            claim = await _claim(call, body)
        except HeadraceError:
            return  # the workflow poll tells of a store that cannot be asked
        if claim is not None:
            found["claim"] = claim
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(workflow)
        nursery.start_soon(validation)
    claim: QueryClaim | None = found.get("claim")
    result: PollResult | None = found.get("workflow")
    if claim is not None and result is not None and result.task is not None:
        await call.node.validation_polls.give_back(call.namespace, _LINE + body.task_queue, claim)
        return result
    if claim is not None:
        task = await _task(call, body, claim)
        return task if task is not None else PollResult(PollStatus.EMPTY)
    if "error" in found:
        raise found["error"]
    return result or PollResult(PollStatus.EMPTY)


async def _find(call: Call, body: PollFields) -> dict[str, Any] | None:
    claim = await _claim(call, body)
    return None if claim is None else await _task(call, body, claim)


async def _claim(call: Call, body: PollFields) -> QueryClaim | None:
    worker = await call.node.workers.admit(call.namespace, body.worker_id, body.task_queue, body.build_id)
    return await call.node.validation_polls.poll(
        QueryPoll(
            namespace=call.namespace,
            queue=_LINE + body.task_queue,
            worker_id=body.worker_id,
            marker=worker.build_id or "",
            types=frozenset(worker.supported_workflow_types),
            poll_request_id=body.poll_request_id,
            timeout=poll_seconds(call, body),
        )
    )


async def _task(call: Call, body: PollFields, claim: QueryClaim) -> dict[str, Any] | None:
    """The task with the run's whole history, frozen now; None when the run is gone."""
    asked = claim.body
    found = await call.node.engine.whole_history(asked.run_id)
    if found is None:
        gone = Answer(
            AnswerState.FAILED,
            {"reason": "update_validation_worker_failed", "message": "The run was removed."},
        )
        await call.node.validations.answer(
            call.namespace, claim.query_task_id, body.worker_id, claim.attempt, gone
        )
        return None
    run, events = found
    return {
        "task_kind": TASK_KIND,
        "update_validation_task_id": claim.query_task_id,
        "update_validation_attempt": claim.attempt,
        "namespace": call.namespace,
        "workflow_id": asked.workflow_id,
        "run_id": asked.run_id,
        "workflow_type": asked.workflow_type,
        "update_name": asked.query_name,
        "payload_codec": asked.payload_codec,
        "workflow_arguments": show_envelope(run.info.input),
        "update_arguments": show_envelope(asked.arguments),
        "history_events": [orjson.Fragment(event) for event in events],
        "last_history_sequence": len(events),
        "task_queue": body.task_queue,
        "lease_owner": body.worker_id,
        "lease_expires_at": iso_ms(claim.lease_expires_at_ms),
    }


async def approve(call: Call) -> Reply:
    """``POST /api/worker/update-validation-tasks/{task_id}/approve``."""
    body = call.fields(_Claimed)
    return await _answer(call, body, Answer(AnswerState.COMPLETED), "approved")


async def reject(call: Call) -> Reply:
    """``POST /api/worker/update-validation-tasks/{task_id}/reject``."""
    body = call.fields(_Reject)
    fields = body.failure.model_dump(include={"message", "reason", "validation_errors"}, exclude_none=True)
    return await _answer(call, body, Answer(AnswerState.FAILED, fields), "rejected")


async def _answer(call: Call, body: _Claimed, answer: Answer, outcome: str) -> Reply:
    task_id, attempt = call.parameters["task_id"], body.update_validation_attempt
    sent = {"update_validation_task_id": task_id, "update_validation_attempt": attempt}
    try:
        await call.node.validations.answer(call.namespace, task_id, body.lease_owner, attempt, answer)
    except Refused as refusal:
        reason = _REASONS.get(refusal.reason, refusal.reason)
        raise Refused(reason, refusal.message, status=refusal.status, **sent) from None
    return Reply({**sent, "outcome": outcome, "recorded": True, "reason": None})
