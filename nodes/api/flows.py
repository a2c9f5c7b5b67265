"""Routes of flows for clients: start, look, wait, publish, stop, RPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import orjson
from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from msgspec import Raw
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from cluster.errors import ValidationFailed
from cluster.flows.clients import FlowView
from cluster.flows.engine import IdReuse, StartFlow
from cluster.flows.machine import StopType
from cluster.flows.records import (
    FlowRun,
    FlowStatus,
    Phase,
    StepOptions,
    StepState,
    Task,
    TimeoutHandler,
    TimeoutPolicy,
)
from cluster.flows.starts import STARTED
from cluster.flows.storage import step_task_id
from cluster.flows.wire import NAME_LENGTH, Publication, read_options, read_step
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.fields import ClosedFields, Fields, Integer, OptionalText, Seconds, Trimmed
from nodes.api.routes import Reply

LONGEST_WAIT_SECONDS: Final = 60
RPC_SECONDS: Final = 10.0

_Name = Annotated[str, MinLen(1), MaxLen(NAME_LENGTH)]
_Reason = Annotated[str, MaxLen(1024)]
_PageSize = Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer]
_Token = Annotated[str | None, Trimmed]


def _addressable(flow_id: str) -> str:
    """Clients take these two out of a path before they send it, however they are escaped."""
    if flow_id in (".", ".."):
        text = "The flow_id field must not be . or .., which no URL can name."
        raise PydanticCustomError("dot_segment", text)
    return flow_id


_FlowId = Annotated[str, MinLen(1), MaxLen(255), AfterValidator(_addressable)]


class _Start(ClosedFields):
    flow_type: _Name
    start_step: _Name
    flow_id: _FlowId | None = None
    input: Any = None
    step_options: dict[str, Any] | None = None
    timeout_seconds: Seconds = None
    timeout_policy: Annotated[TimeoutPolicy | None, Trimmed] = None
    timeout_handler: dict[str, Any] | None = None
    id_reuse_policy: Annotated[IdReuse | None, Trimmed] = None
    request_id: OptionalText = None
    ignore_already_started: bool = False
    attributes: dict[_Name, Any] | None = None


class _List(Fields):
    status: Annotated[FlowStatus | None, Trimmed] = None
    flow_type: OptionalText = None
    page_size: _PageSize = None
    next_page_token: _Token = None


class _Steps(Fields):
    page_size: _PageSize = None
    next_page_token: _Token = None


class _Wait(Fields):
    timeout_seconds: Annotated[Annotated[int, Ge(0), Le(LONGEST_WAIT_SECONDS)] | None, Integer] = None


class _Stop(ClosedFields):
    type: StopType = StopType.CANCEL
    reason: _Reason = ""
    wait: bool | None = None


class _Publish(ClosedFields):
    value: Any = None
    request_id: OptionalText = None


class _Rpc(ClosedFields):
    input: Any = None
    timeout_seconds: Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)] = RPC_SECONDS
    lock_attributes: Annotated[tuple[_Name, ...], MaxLen(100)] = ()
    request_id: OptionalText = None


async def start(call: Call) -> Reply:
    """``POST /api/flows``."""
    body = call.fields(_Start)
    handler = _timeout_handler(body)
    policy = TimeoutPolicy.FAIL if handler is None else TimeoutPolicy.HANDLER
    started = await call.node.flows.start(
        StartFlow(
            namespace=call.namespace,
            traceparent=call.traceparent,
            flow_type=body.flow_type,
            start_step=body.start_step,
            flow_id=body.flow_id,
            input=orjson.dumps(body.input),
            options=_options(body.step_options),
            attributes={name: Raw(orjson.dumps(v)) for name, v in (body.attributes or {}).items()},
            timeout_ms=(body.timeout_seconds or 0) * 1000,
            timeout_policy=body.timeout_policy or policy,
            timeout_handler=handler,
            id_reuse=body.id_reuse_policy or IdReuse.IF_NOT_RUNNING,
            request_id=body.request_id,
            ignore_already_started=body.ignore_already_started,
        )
    )
    info = started.info
    return Reply(
        {
            "flow_id": info.flow_id,
            "run_id": info.run_id,
            "flow_type": info.flow_type,
            "namespace": info.namespace,
            "outcome": started.outcome,
        },
        201 if started.outcome == STARTED else 200,
    )


async def list_flows(call: Call) -> Reply:
    """``GET /api/flows``."""
    wanted = call.query_fields(_List)
    rows, token = await call.node.flows.list_flows(
        call.namespace,
        status=wanted.status,
        flow_type=wanted.flow_type,
        page_size=wanted.page_size or 50,
        token=wanted.next_page_token,
    )
    shown = [_summary(FlowRun(info=row.info, state=row.state)) for row in rows]
    return Reply({"flows": shown, "flow_count": len(shown), "next_page_token": token})


async def describe(call: Call) -> Reply:
    """``GET /api/flows/{flow_id}``: the current run, or the one that ``run_id`` names."""
    view = await call.node.flows.describe(
        call.namespace, call.parameters["flow_id"], call.query.get("run_id")
    )
    return Reply(_description(view))


async def wait(call: Call) -> Reply:
    """``GET /api/flows/{flow_id}/wait``: 200 once the run is closed, 202 while it runs."""
    wanted = call.query_fields(_Wait)
    seconds = 30 if wanted.timeout_seconds is None else wanted.timeout_seconds
    run = await call.node.flows.wait_closed(
        call.namespace, call.parameters["flow_id"], seconds, call.query.get("run_id")
    )
    return Reply(_summary(run) | _outcome(run), 200 if run.state.status.closed else 202)


async def steps(call: Call) -> Reply:
    """``GET /api/flows/{flow_id}/steps``: what became of the step attempts, oldest first."""
    wanted = call.query_fields(_Steps)
    flow_id = call.parameters["flow_id"]
    page = await call.node.flows.steps(
        call.namespace,
        flow_id,
        page_size=wanted.page_size or 100,
        token=wanted.next_page_token,
        run_id=call.query.get("run_id"),
    )
    return Reply(
        {
            "flow_id": flow_id,
            "steps": [orjson.Fragment(entry) for entry in page.entries],
            "next_page_token": page.next_page_token,
        }
    )


async def stop(call: Call) -> Reply:
    """``POST /api/flows/{flow_id}/stop``. Without ``wait`` a cancel waits for running steps."""
    body = call.fields(_Stop)
    waits = body.type is StopType.CANCEL if body.wait is None else body.wait
    run = await call.node.flows.stop(
        call.namespace, call.parameters["flow_id"], body.type, body.reason, waits, call.query.get("run_id")
    )
    return Reply(_summary(run), 200 if run.state.status.closed else 202)


async def publish(call: Call) -> Reply:
    """``POST /api/flows/{flow_id}/channels/{channel}``."""
    body = call.fields(_Publish)
    channel = call.parameters["channel"]
    if len(channel) > NAME_LENGTH:
        raise ValidationFailed({"channel": ["The channel must not be longer than 256 characters."]})
    added = await call.node.flows.publish(
        call.namespace,
        call.parameters["flow_id"],
        Publication(channel, Raw(orjson.dumps(body.value))),
        request_id=body.request_id,
        run_id=call.query.get("run_id"),
    )
    return Reply(
        {
            "flow_id": call.parameters["flow_id"],
            "channel": channel,
            "outcome": "published" if added else "duplicate_request",
        },
        202 if added else 200,
    )


async def rpc(call: Call) -> Reply:
    """``POST /api/flows/{flow_id}/rpc/{rpc_name}``."""
    body = call.fields(_Rpc)
    answer = await call.node.flows.call_rpc(
        call.node.rpc,
        call.namespace,
        call.parameters["flow_id"],
        call.parameters["rpc_name"],
        orjson.dumps(body.input),
        run_id=call.query.get("run_id"),
        locks=body.lock_attributes,
        seconds=body.timeout_seconds,
        request_id=body.request_id,
    )
    return Reply(answer)


def _options(options: Mapping[str, Any] | None) -> StepOptions:
    try:
        return read_options(options)
    except ValueError as error:
        raise ValidationFailed({"step_options": [str(error)]}) from None


def _timeout_handler(body: _Start) -> TimeoutHandler | None:
    """The step that follows a timeout; policy and handler must agree."""
    wanted = body.timeout_policy is TimeoutPolicy.HANDLER
    if body.timeout_handler is None:
        if wanted:
            raise ValidationFailed(
                {"timeout_handler": ["The timeout_policy handler needs a timeout_handler."]}
            )
        return None
    if body.timeout_policy is not None and not wanted:
        problem = "A timeout_handler goes with the timeout_policy handler only."
        raise ValidationFailed({"timeout_handler": [problem]})
    if not body.timeout_seconds:
        raise ValidationFailed({"timeout_handler": ["A timeout_handler needs timeout_seconds."]})
    try:
        step = read_step(body.timeout_handler)
    except ValueError as error:
        raise ValidationFailed({"timeout_handler": [str(error)]}) from None
    return TimeoutHandler(step_type=step.step_type, input=bytes(step.input), options=step.options.read())


def _summary(run: FlowRun) -> dict[str, Any]:
    info, state = run.info, run.state
    return {
        "flow_id": info.flow_id,
        "run_id": info.run_id,
        "run_number": info.run_number,
        "flow_type": info.flow_type,
        "namespace": info.namespace,
        "status": state.status.value,
        "is_terminal": state.status.closed,
        "stopping": None if state.stop is None else state.stop.status.value,
        "started_at": iso_ms(info.started_at_ms),
        "closed_at": iso_ms(state.closed_at_ms) if state.closed_at_ms else None,
        "open_step_count": len(state.open),
    }


def _outcome(run: FlowRun) -> dict[str, Any]:
    state = run.state
    return {
        "result": orjson.Fragment(state.result) if state.result else None,
        "failure": state.failure,
        "close_reason": state.close_reason or None,
    }


def _description(view: FlowView) -> dict[str, Any]:
    info, state = view.run.info, view.run.state
    return (
        _summary(view.run)
        | _outcome(view.run)
        | {
            "run_count": view.run_count,
            "is_current_run": view.is_current,
            "start_step": info.start_step,
            "request_id": info.request_id,
            "timeout_at": iso_ms(info.deadline_ms) if info.deadline_ms else None,
            "timeout_policy": info.timeout_policy.value if info.deadline_ms else None,
            "timeout_handler": info.timeout_handler.step_type if info.timeout_handler else None,
            "timed_out": state.timed_out,
            "last_progress_at": iso_ms(state.last_progress_at_ms),
            "last_worker_id": state.last_worker or None,
            "attributes": {name: orjson.Fragment(value) for name, value in view.run.attributes.items()},
            "locked_attributes": sorted(state.locks),
            "channels": state.channels,
            "open_steps": [
                {"task_id": step_task_id(info.run_id, k)} | _step(step, view.tasks.get(k, Task()))
                for k, step in view.run.steps.items()
            ],
        }
    )


def _step(step: StepState, task: Task) -> dict[str, Any]:
    running = step.phase is Phase.READY and task.state == "l"
    shown: dict[str, Any] = {
        "step_execution_id": step.execution_id,
        "step_type": step.step_type,
        "method": step.method.value,
        "state": _state(step.phase, running),
        "attempt": step.attempt,
        "scheduled_at": iso_ms(step.scheduled_at_ms),
        "ready_at": iso_ms(step.ready_at_ms) if step.ready_at_ms else None,
        "started_at": iso_ms(task.leased_at_ms) if running else None,
        "worker_id": task.owner if running else None,
        "last_heartbeat_at": iso_ms(task.heartbeat_at_ms) if running and task.heartbeat_at_ms else None,
        "last_failure": step.last_failure,
        "pending_reason": _pending_reason(step, running),
    }
    if step.wait is not None:
        shown["conditions"] = {
            "mode": step.wait.mode.value,
            "items": [
                {"id": c.id, "channel": c.channel, "count": c.count}
                if c.channel
                else {"id": c.id, "due_at": iso_ms(c.due_ms)}
                for c in step.wait.conditions
            ],
        }
    return shown


def _state(phase: Phase, running: bool) -> str:
    if phase is Phase.READY:
        return "running" if running else "queued"
    return phase.value


def _pending_reason(step: StepState, running: bool) -> str | None:
    """Why nothing runs, as a sentence."""
    match step.phase:
        case Phase.READY if running:
            return None
        case Phase.READY:
            return "Waiting for a free slot of a worker that knows the step type."
        case Phase.BACKOFF:
            return f"Attempt {step.attempt} follows at {iso_ms(step.ready_at_ms)}."
        case Phase.WAITING:
            return "Waiting for its conditions."
        case Phase.LOCKED:
            return f"Waiting for the locks of {', '.join(step.options.locks)}."
