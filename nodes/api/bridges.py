"""Bridge adapters: events from elsewhere (a webhook, a queue) that start, signal or update a workflow.

Each event has an idempotency key, and the answer says what became of it: ``accepted``, ``duplicate``
(the same event came before: nothing happened again) or ``rejected`` (HTTP 422, with a reason). A sender
may therefore repeat an event until it gets any of the three. Keys are of one namespace and adapter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import StringConstraints

from cluster.errors import Refused, ValidationFailed
from cluster.workflows.client_answers import Check, Target
from cluster.workflows.client_commands import ClientCommand, CommandKind
from cluster.workflows.engine import StartRequest
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.fields import Fields, Model, OptionalText, ShortText, read
from nodes.api.operations import read_arguments
from nodes.api.routes import Reply
from nodes.api.workflow_commands import signal_check, update_check

SCHEMA: Final = "durable-workflow.v2.bridge-adapter-outcome.contract"
CONTRACT: Final[dict[str, Any]] = {
    "schema": SCHEMA,
    "version": 1,
    "actions": ["start_workflow", "signal_workflow", "update_workflow"],
    "outcomes": ["accepted", "duplicate", "rejected"],
}
UNKNOWN: Final = ("instance_not_found", "run_not_found")

_Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._:-]{1,64}$")]


class _Adapter(Fields):
    adapter: _Name


class _Event(Fields):
    action: ShortText
    idempotency_key: ShortText
    target: dict[str, Any]
    input: Any = None
    correlation: dict[str, Any] | None = None


class _Start(Fields):
    workflow_type: ShortText
    workflow_id: OptionalText = None
    task_queue: OptionalText = None
    business_key: OptionalText = None


class _Signal(Fields):
    workflow_id: ShortText
    run_id: OptionalText = None
    signal_name: ShortText


class _Update(Fields):
    workflow_id: ShortText
    run_id: OptionalText = None
    update_name: ShortText


async def webhook(call: Call) -> Reply:
    """``POST /api/bridge-adapters/webhook/{adapter}``: one event; the answer says what became of it."""
    adapter = read(_Adapter, {"adapter": call.parameters["adapter"]}).adapter
    event = call.fields(_Event)
    shown = {
        "schema": SCHEMA,
        "version": 1,
        "adapter": adapter,
        "action": event.action,
        "idempotency_key": event.idempotency_key,
        "target": event.target,
        "correlation": event.correlation,
    }
    key = hashlib.sha256(f"{call.namespace}\0{adapter}\0{event.idempotency_key}".encode()).hexdigest()[:40]
    try:
        match event.action:
            case "start_workflow":
                found = await _start(call, event, f"bridge-{adapter}-{key}")
            case "signal_workflow":
                signal = _target(_Signal, event)
                found = await _tell(call, event, CommandKind.SIGNAL, signal, signal.signal_name, key)
            case "update_workflow":
                update = _target(_Update, event)
                found = await _tell(call, event, CommandKind.UPDATE, update, update.update_name, key)
            case _:
                raise Refused("unsupported_action", f"The action [{event.action}] is not supported.")
    except ValidationFailed:
        raise
    except Refused as refusal:
        reason = "unknown_target" if refusal.reason in UNKNOWN else refusal.reason
        said = {"reason": reason, "message": refusal.message, "control_plane_outcome": refusal.reason}
        return Reply({**shown, "accepted": False, "outcome": "rejected", **said}, 422)
    duplicate = found["reason"] is not None
    outcome = {"accepted": True, "outcome": "duplicate" if duplicate else "accepted"}
    return Reply({**shown, **outcome, **found}, 200 if duplicate else 202)


async def _start(call: Call, event: _Event, derived_id: str) -> dict[str, Any]:
    target = _target(_Start, event)
    workflow_id = target.workflow_id or derived_id
    request = StartRequest(
        namespace=call.namespace,
        traceparent=call.traceparent,
        workflow_type=target.workflow_type,
        task_queue=target.task_queue or "default",
        workflow_id=workflow_id,
        input=read_arguments(event.input),
        business_key=target.business_key,
        context=command_context(call, event.action, workflow_id=workflow_id),
    )
    try:
        started = await call.node.engine.start(request)
    except Refused as refusal:
        if refusal.reason != "duplicate_not_allowed":
            raise
        known = {name: refusal.fields[name] for name in ("workflow_id", "run_id", "workflow_type")}
        return {**known, "reason": "duplicate_start", "control_plane_outcome": refusal.fields["outcome"]}
    return {
        "workflow_id": started.info.workflow_id,
        "run_id": started.info.run_id,
        "workflow_type": started.info.workflow_type,
        "reason": None,
        "control_plane_outcome": started.outcome,
    }


_CHECKS: Final[dict[CommandKind, Callable[[Call, ClientCommand], Check]]] = {
    CommandKind.SIGNAL: signal_check,
    CommandKind.UPDATE: update_check,
}


async def _tell(
    call: Call, event: _Event, kind: CommandKind, target: _Signal | _Update, name: str, key: str
) -> dict[str, Any]:
    command = ClientCommand(
        kind,
        name=name,
        input=read_arguments(event.input),
        request_id=f"bridge-{key}",
        context=command_context(call, event.action, workflow_id=target.workflow_id),
    )
    whom = Target(call.namespace, target.workflow_id, target.run_id)
    answer = await call.node.engine.command(whom, command, _CHECKS[kind](call, command))
    kept = ("workflow_id", "run_id", "workflow_type", "command_id", "update_id")
    return {
        **{name: answer[name] for name in kept if name in answer},
        "reason": "deduped_existing_command" if answer["retained"] else None,
        "control_plane_outcome": answer["outcome"],
    }


def _target(model: type[Model], event: _Event) -> Model:
    """The event's target as ``model``. Raises ValidationFailed that names its fields under ``target``."""
    try:
        return read(model, event.target)
    except ValidationFailed as error:
        raise ValidationFailed({f"target.{name}": texts for name, texts in error.errors.items()}) from None
