"""Routes that act on a workflow: signal, update, cancel, terminate (server-behaviour 3.3; sdk-wire 5.4)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from annotated_types import Ge, Le, MaxLen
from pydantic import StringConstraints

from cluster import payloads
from cluster.contracts import Handlers
from cluster.workflows import client_commands
from cluster.workflows.client_answers import Check, Target
from cluster.workflows.client_commands import ClientCommand, CommandKind, Scope
from cluster.workflows.records import Payload, Run
from nodes.api import update_validations
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, Trimmed
from nodes.api.operations import operation_name, read_arguments
from nodes.api.payloads import show_envelope, show_value
from nodes.api.routes import Reply

LONGEST_WAIT_SECONDS: Final = 50
"""An update's caller is answered before its own HTTP time-out of 60 s."""

_Reason = Annotated[Annotated[str, MaxLen(1000)] | None, Trimmed]
_Stage = Annotated[Annotated[str, StringConstraints(pattern="^(accepted|completed)$")] | None, Trimmed]
_Wait = Annotated[Annotated[int, Ge(1), Le(86_400)] | None, Integer]


class _Signal(Fields):
    input: Any = None
    request_id: OptionalText = None


class _Update(_Signal):
    wait_for: _Stage = None
    wait_timeout_seconds: _Wait = None


class _Stop(Fields):
    reason: _Reason = None
    request_id: OptionalText = None


async def signal(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}[/runs/{run_id}]/signal/{signal_name}``."""
    name = operation_name(call, "signal_name")
    body = call.fields(_Signal)
    command = _command(call, CommandKind.SIGNAL, body, name=name, input=read_arguments(body.input))
    check = signal_check(call, command)
    return Reply(_shown(await call.node.engine.command(_target(call), command, check)), 202)


def signal_check(call: Call, command: ClientCommand) -> Check:
    """Refuses (404) a signal that no handler of the run's workers takes."""

    async def known(run: Run) -> None:
        handlers = await call.node.contracts.handlers(
            run.info.namespace, run.info.task_queue, run.info.workflow_type
        )
        if handlers is not None and command.name not in handlers.signals:
            text = f"The workflow has no signal {command.name!r}."
            raise client_commands.rejected(run, command, "unknown_signal", text, status=404)
        if handlers is not None and not run.state.status.closed:
            _check_arguments(run, command, handlers)

    return known


async def update(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}[/runs/{run_id}]/update/{update_name}``."""
    name = operation_name(call, "update_name")
    body = call.fields(_Update, also=_legacy(call.body))
    command = _command(call, CommandKind.UPDATE, body, name=name, input=read_arguments(body.input))
    check = update_check(call, command)
    answer = _shown(await call.node.engine.command(_target(call), command, check))
    answer["wait_for"] = body.wait_for or "accepted"
    return await _await_update(call, answer, body)


def update_check(call: Call, command: ClientCommand) -> Check:
    """Refuses an update that no handler takes (404), or that its validator in a worker rejects."""

    async def known(run: Run) -> None:
        handlers = await call.node.contracts.handlers(
            run.info.namespace, run.info.task_queue, run.info.workflow_type
        )
        if handlers is None or run.state.status.closed:
            return
        if command.name not in handlers.updates:
            text = f"The workflow has no update {command.name!r}."
            raise client_commands.rejected(run, command, "unknown_update", text, status=404)
        _check_arguments(run, command, handlers)
        if command.name in handlers.validators and not await call.node.engine.is_kept(run, command):
            arguments = command.input or payloads.encode([])
            await update_validations.validate(call, run, command.name, arguments)

    return known


def _check_arguments(run: Run, command: ClientCommand, handlers: Handlers) -> None:
    """Refuses (422) arguments that no worker's handler takes."""
    kind = command.kind.value
    faults = handlers.faults(kind, command.name, show_value(command.input))
    if faults:
        reason, errors = f"invalid_{kind}_arguments", {"input": faults}
        raise client_commands.rejected(
            run, command, reason, faults[0], status=422, errors=errors, validation_errors=errors
        )


async def cancel(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}[/runs/{run_id}]/cancel``."""
    return await _stop(call, CommandKind.CANCEL)


async def terminate(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}[/runs/{run_id}]/terminate``."""
    return await _stop(call, CommandKind.TERMINATE)


async def _stop(call: Call, kind: CommandKind) -> Reply:
    body = call.fields(_Stop)
    command = _command(call, kind, body, reason=body.reason)
    return Reply(_shown(await call.node.engine.command(_target(call), command)))


async def _await_update(call: Call, answer: dict[str, Any], body: _Update) -> Reply:
    """The answer once the update is over, or has been waited for long enough."""
    engine, update_id = call.node.engine, answer["update_id"]
    if body.wait_for != "completed":
        found = await engine.update_result(update_id) if answer.get("retained") else None
        return Reply(answer, 202) if found is None else _over(answer, found)
    wanted = body.wait_timeout_seconds or call.node.settings.v2_update_wait_completion_timeout_seconds
    seconds = min(wanted, LONGEST_WAIT_SECONDS)
    found = await engine.update_over(update_id, seconds)
    answer |= {"wait_timed_out": found is None, "wait_timeout_seconds": seconds}
    return Reply(answer, 202) if found is None else _over(answer, found)


def _over(answer: dict[str, Any], found: dict[str, Any]) -> Reply:
    status = found["update_status"]
    answer |= {"update_status": status, "outcome": f"update_{status}"}
    if status == "failed":
        failure = found["failure"]
        return Reply(
            answer
            | {
                "failure_id": failure.get("failure_id"),
                "failure_message": failure.get("message"),
                "failure": failure,
                "reason": "update_failed",
                "message": failure.get("message"),
            },
            422,
        )
    raw = found.get("result")
    result = None if raw is None else Payload(codec=raw["codec"], blob=raw["blob"])
    return Reply(answer | {"result": show_value(result), "result_envelope": show_envelope(result)})


def _command(call: Call, kind: CommandKind, body: _Signal | _Stop, **fields: Any) -> ClientCommand:
    return ClientCommand(
        kind,
        Scope.RUN if "run_id" in call.parameters else Scope.INSTANCE,
        request_id=body.request_id,
        context=command_context(call, kind.value, workflow_id=call.parameters["workflow_id"]),
        **fields,
    )


def _shown(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "command_type"}


def _legacy(body: dict[str, Any]) -> dict[str, list[str]]:
    return {"wait_policy": ["Use wait_for."]} if "wait_policy" in body else {}


def _target(call: Call) -> Target:
    return Target(call.namespace, call.parameters["workflow_id"], call.parameters.get("run_id"))
