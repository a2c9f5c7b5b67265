"""Routes of queries: asked by clients, answered by workers (server-behaviour 7; sdk-wire 2.8)."""

from __future__ import annotations

from typing import Any

import orjson
import trio

from cluster.errors import Refused, StoreError
from cluster.queries.broker import unavailable
from cluster.queries.model import Answer, AnswerState, QueryClaim, QueryPoll, Question, QuestionBody
from cluster.queues.model import PollStatus
from cluster.times import iso_ms
from cluster.workflows.records import Payload, RunInfo
from nodes.api.call import Call
from nodes.api.fields import Attempt, Fields, OptionalText, ShortText
from nodes.api.operations import operation_name, read_arguments, target
from nodes.api.payloads import read_payload, show_envelope, show_value
from nodes.api.polls import PollFields, poll_seconds, while_active
from nodes.api.routes import Reply

UNKNOWN_QUERY = "rejected_unknown_query"
REJECTED = "query_rejected"
RUN_GONE = "query_workflow_state_unavailable"


class _Query(Fields):
    input: Any = None


class _Claimed(Fields):
    lease_owner: ShortText
    query_task_attempt: Attempt


class _Complete(_Claimed):
    result: Any = None
    result_envelope: Any = None


class _Failure(Fields):
    message: str
    reason: OptionalText = None
    type: str | None = None
    stack_trace: str | None = None


class _Fail(_Claimed):
    failure: _Failure


async def query(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}/query/{query_name}``, also for the current run by its id."""
    name = operation_name(call, "query_name")
    arguments = read_arguments(call.fields(_Query).input)
    view, scope = await target(call)
    info = view.run.info
    sent = {"query_name": name, "target_scope": scope, "run_id": info.run_id, "result": None}
    try:
        await _check_arguments(call, info, name, arguments)
        answer = await _ask(
            call,
            view.run.info.task_queue,
            info.marker,
            QuestionBody(
                workflow_id=info.workflow_id,
                run_id=info.run_id,
                workflow_type=info.workflow_type,
                query_name=name,
                payload_codec=info.payload_codec,
                arguments=arguments,
            ),
        )
    except Refused as refusal:
        raise Refused(
            refusal.reason, refusal.message, status=refusal.status, **{**refusal.fields, **sent}
        ) from None
    match answer.state:
        case AnswerState.COMPLETED:
            return Reply({**sent, **answer.fields, "workflow_id": info.workflow_id, "reason": None})
        case AnswerState.FAILED:
            reason = answer.fields.get("reason") or REJECTED
            text = answer.fields.get("message") or "The worker rejected the query."
            raise Refused(reason, text, status=404 if reason == UNKNOWN_QUERY else 409, **sent)
        case AnswerState.TIMED_OUT:
            text = "No worker answered the query in time."
            raise Refused("query_worker_timeout", text, status=504, **sent)


async def _check_arguments(call: Call, info: RunInfo, name: str, arguments: Payload) -> None:
    """Refuses (422) arguments that no worker's handler takes."""
    handlers = await call.node.contracts.handlers(info.namespace, info.task_queue, info.workflow_type)
    faults = [] if handlers is None else handlers.faults("query", name, show_value(arguments))
    if faults:
        errors = {"input": faults}
        raise Refused(
            "invalid_query_arguments", faults[0], status=422, errors=errors, validation_errors=errors
        )


async def _ask(call: Call, task_queue: str, marker: str, body: QuestionBody) -> Answer:
    """Raises Refused: 409 query_worker_unavailable and what the broker refuses."""
    draining = await call.node.cohorts.draining(call.namespace)
    if not await call.node.fleet.can_answer(call.namespace, task_queue, body.workflow_type, marker, draining):
        raise Refused(
            "query_worker_unavailable",
            f"No live worker of task queue [{task_queue}] can answer queries of this workflow.",
            task_queue=task_queue,
        )
    return await call.node.queries.ask(Question(call.namespace, task_queue, marker, body))


async def poll(call: Call) -> Reply:
    """``POST /api/worker/query-tasks/poll``."""
    body = call.fields(PollFields)
    worker = await call.node.workers.admit(call.namespace, body.worker_id, body.task_queue, None)
    deadline = trio.current_time() + poll_seconds(call, body)

    async def find() -> tuple[dict[str, Any] | None]:
        while True:
            wanted = QueryPoll(
                namespace=call.namespace,
                queue=body.task_queue,
                worker_id=body.worker_id,
                marker=worker.build_id or "",
                types=frozenset(worker.supported_workflow_types),
                poll_request_id=body.poll_request_id,
                timeout=max(0.0, deadline - trio.current_time()),
            )
            claim = await call.node.query_polls.poll(wanted)
            if claim is None:
                return (None,)
            delivered = False
            try:
                task = await _task(call, body, claim)
                delivered = True
            finally:
                if not delivered:
                    call.node.query_polls.hand_back(wanted, claim)
            if task is not None:
                return (task,)

    try:
        (task,) = await while_active(call, worker, find)
    except StoreError:
        return _unavailable(call.namespace, body.task_queue)
    status = PollStatus.EMPTY if task is None else PollStatus.LEASED
    return Reply({"task": task, "poll_status": status.value})


def _unavailable(namespace: str, task_queue: str) -> Reply:
    refusal = unavailable(namespace, task_queue)
    return Reply(
        {
            "task": None,
            "poll_status": PollStatus.UNAVAILABLE.value,
            "error": refusal.message,
            "message": refusal.message,
            "reason": refusal.reason,
            **refusal.fields,
        },
        refusal.status,
    )


async def _task(call: Call, body: PollFields, claim: QueryClaim) -> dict[str, Any] | None:
    """The query task with the run's whole history, frozen now; None when the run is gone.

    The SDK drops a claim in silence whose owner, queue or expiry it does not like (sdk-wire 2.8).
    """
    asked = claim.body
    found = await call.node.engine.whole_history(asked.run_id)
    if found is None:
        gone = Answer(AnswerState.FAILED, {"reason": RUN_GONE, "message": "The run was removed."})
        await call.node.queries.answer(
            call.namespace, claim.query_task_id, body.worker_id, claim.attempt, gone
        )
        return None
    run, events = found
    return {
        "query_task_id": claim.query_task_id,
        "query_task_attempt": claim.attempt,
        "namespace": call.namespace,
        "workflow_id": asked.workflow_id,
        "run_id": asked.run_id,
        "workflow_type": asked.workflow_type,
        "query_name": asked.query_name,
        "payload_codec": asked.payload_codec,
        "workflow_arguments": show_envelope(run.info.input),
        "query_arguments": show_envelope(asked.arguments),
        "run_status": run.state.status.value,
        "last_history_sequence": len(events),
        "history_events": [orjson.Fragment(event) for event in events],
        "task_queue": body.task_queue,
        "lease_owner": body.worker_id,
        "lease_expires_at": iso_ms(claim.lease_expires_at_ms),
    }


async def complete(call: Call) -> Reply:
    """``POST /api/worker/query-tasks/{query_task_id}/complete``."""
    body = call.fields(_Complete, also=_envelope_faults(call.body.get("result_envelope")))
    envelope = read_payload(body.result_envelope, "result_envelope")
    result = body.result
    if result is None and envelope is not None:
        result = show_value(envelope)
    fields = {"result": result, "result_envelope": show_envelope(envelope)}
    return await _answer(call, body, Answer(AnswerState.COMPLETED, fields), {"outcome": "completed"})


async def fail(call: Call) -> Reply:
    """``POST /api/worker/query-tasks/{query_task_id}/fail``."""
    body = call.fields(_Fail)
    reason = body.failure.reason or REJECTED
    fields = {"reason": reason, "message": body.failure.message}
    outcome = {"outcome": "failed", "reason": reason}
    return await _answer(call, body, Answer(AnswerState.FAILED, fields), outcome)


async def _answer(call: Call, body: _Claimed, answer: Answer, outcome: dict[str, Any]) -> Reply:
    task_id = call.parameters["query_task_id"]
    await call.node.queries.answer(call.namespace, task_id, body.lease_owner, body.query_task_attempt, answer)
    sent = {"query_task_id": task_id, "query_task_attempt": body.query_task_attempt}
    return Reply({**sent, **outcome, "status": 200})


def _envelope_faults(value: Any) -> dict[str, list[str]]:
    """An envelope needs a codec and a blob."""
    if value is None:
        return {}
    field = "result_envelope"
    if not isinstance(value, dict):
        return {field: [f"The {field} field must be an object."]}
    return {
        f"{field}.{name}": [f"The {field}.{name} field is required."]
        for name in ("codec", "blob")
        if not isinstance(value.get(name), str) or not value[name]
    }
