"""What clients tell a run: signals, updates, cancel, terminate (server-behaviour 3.3, 5.11).

Each is a *command* with an id and a number in its run. One with a ``request_id`` is kept as long as
the run, so that sending it again gives the same answer and never a second effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cluster.errors import Refused
from cluster.workflows import closing, limits
from cluster.workflows.changes import Changes
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.failures import arguments
from cluster.workflows.limits import Limits
from cluster.workflows.records import Lease, Payload, Run, RunStatus


class CommandKind(StrEnum):
    SIGNAL = "signal"
    UPDATE = "update"
    CANCEL = "cancel"
    TERMINATE = "terminate"


class Scope(StrEnum):
    """Whether a command names a workflow, meaning its current run, or one run."""

    INSTANCE = "instance"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """A validated command. ``name`` is the signal's or update's."""

    kind: CommandKind
    scope: Scope = Scope.INSTANCE
    name: str = ""
    input: Payload | None = None
    reason: str | None = None
    request_id: str | None = None
    context: Mapping[str, Any] | None = None
    """Who asks (server-behaviour 2.4); None: the server itself."""

    @property
    def intent(self) -> str:
        """Equal for commands that want the same."""
        parts = (self.kind.value, self.name, self.input.blob if self.input else "", self.reason or "")
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part.encode())
        return digest.hexdigest()

    @property
    def receipt(self) -> str:
        """The name its answer is kept under; "" when it is not kept."""
        return "" if self.request_id is None else f"r:{self.request_id}"


_OUTCOMES = {
    CommandKind.SIGNAL: "signal_received",
    CommandKind.UPDATE: "update_accepted",
    CommandKind.CANCEL: "cancelled",
    CommandKind.TERMINATE: "terminated",
}


def apply(
    run: Run,
    command: ClientCommand,
    kept: Mapping[str, Any] | None,
    task_lease: Lease,
    now_us: int,
    structural: Limits,
) -> Changes | dict[str, Any]:
    """The changes of a command, or the answer that was given when it came before (``kept``).

    Raises Refused: request_id_conflict, run_not_active, structural_limit_exceeded.
    """
    if kept is not None:
        return _again(command, kept)
    if run.state.status.closed:
        raise _rejected(run, command, "run_not_active", "The run is closed.", "rejected_not_active")
    match command.kind:
        case CommandKind.SIGNAL:
            return _signal(run, command, task_lease, now_us, structural)
        case CommandKind.UPDATE:
            return _update(run, command, task_lease, now_us, structural)
        case CommandKind.CANCEL:
            event, ending = EventType.CANCEL_REQUESTED, EventType.WORKFLOW_CANCELLED
            return _stop(run, command, RunStatus.CANCELLED, event, ending, now_us)
        case CommandKind.TERMINATE:
            event, ending = EventType.TERMINATE_REQUESTED, EventType.WORKFLOW_TERMINATED
            return _stop(run, command, RunStatus.TERMINATED, event, ending, now_us)


def _signal(run: Run, command: ClientCommand, task_lease: Lease, now_us: int, structural: Limits) -> Changes:
    room = structural.pending_signal_count
    if room and run.state.signals >= room:
        raise _over_limit(run, command, "pending_signal_count", run.state.signals, room)
    _check_size(run, command, structural)
    decision = Decision(run, now_us, task_lease)
    command_id = decision.command_id()
    payload: dict[str, Any] = {
        "signal_name": command.name,
        "signal_id": f"{run.info.run_id}-s{decision.state.commands}",
        "workflow_command_id": command_id,
        **arguments(command.input),
    }
    decision.set(signals=run.state.signals + 1)
    if decision.frozen:
        decision.set(pending_signals=run.state.pending_signals + 1)
    decision.record(EventType.SIGNAL_RECEIVED, payload, wakes=True, workflow_command_id=command_id)
    return _finish(run, decision, command, command_id, signal_name=command.name)


def _update(run: Run, command: ClientCommand, task_lease: Lease, now_us: int, structural: Limits) -> Changes:
    room = structural.pending_update_count
    if room and len(run.state.updates) >= room:
        raise _over_limit(run, command, "pending_update_count", len(run.state.updates), room)
    _check_size(run, command, structural)
    decision = Decision(run, now_us, task_lease)
    command_id = decision.command_id()
    number = decision.state.commands
    update_id = decision.update_id(number)
    payload: dict[str, Any] = {
        "update_id": update_id,
        "update_name": command.name,
        "workflow_command_id": command_id,
        **arguments(command.input),
    }
    decision.open_update(number, command.name, command.input)
    decision.record(EventType.UPDATE_ACCEPTED, payload, workflow_command_id=command_id)
    named = {"update_name": command.name, "update_id": update_id, "update_status": "accepted"}
    return _finish(run, decision, command, command_id, **named)


def _stop(
    run: Run,
    command: ClientCommand,
    status: RunStatus,
    request: EventType,
    ending: EventType,
    now_us: int,
) -> Changes:
    decision = Decision(run, now_us)
    command_id = decision.command_id()
    closing.stop(decision, run, status, command.reason, request, ending, command_id)
    return _finish(run, decision, command, command_id)


def _finish(run: Run, decision: Decision, command: ClientCommand, command_id: str, **more: Any) -> Changes:
    outcome = {
        **_answer(run, command, _OUTCOMES[command.kind]),
        "command_id": command_id,
        "command_sequence": decision.state.commands,
        "command_status": "accepted",
        **more,
    }
    decision.log_command(
        command_id,
        command.kind.value,
        command.context,
        sequence=decision.state.commands,
        outcome=outcome["outcome"],
        target_scope=command.scope.value,
        **({"request_id": command.request_id} if command.request_id else {}),
    )
    if command.receipt:
        decision.receipts[command.receipt] = {"intent": command.intent, "answer": outcome}
        outcome = outcome | {"request_id": command.request_id, "retained": False}
    changes = decision.changes(outcome)
    changes.grows = command.kind in (CommandKind.SIGNAL, CommandKind.UPDATE)
    return changes


def _again(command: ClientCommand, kept: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = kept["answer"]
    if kept["intent"] == command.intent:
        return answer | {"request_id": command.request_id, "retained": True}
    raise Refused(
        "request_id_conflict",
        "The request id was used for another command.",
        status=409,
        request_id=command.request_id,
        retained_command_id=answer["command_id"],
        retained_command_type=answer["command_type"],
        retained_outcome=answer["outcome"],
        conflict=_differences(command, answer),
        workflow_id=answer["workflow_id"],
        run_id=answer["run_id"],
    )


def _differences(command: ClientCommand, answer: Mapping[str, Any]) -> list[str]:
    """Which parts of a repeated command are not those of the first."""
    if answer["command_type"] != command.kind.value:
        return ["command_type"]
    name = f"{command.kind.value}_name"
    if answer.get(name, command.name) != command.name:
        return [name]
    return ["input" if command.kind in (CommandKind.SIGNAL, CommandKind.UPDATE) else "reason"]


def _answer(run: Run, command: ClientCommand, outcome: str) -> dict[str, Any]:
    """The members every answer to a command has (server-behaviour 3.3)."""
    targeted = command.scope is Scope.RUN
    return {
        "outcome": outcome,
        "workflow_id": run.info.workflow_id,
        "run_id": run.info.run_id,
        "requested_run_id": run.info.run_id if targeted else None,
        "resolved_run_id": run.info.run_id,
        "target_scope": command.scope.value,
        "workflow_type": run.info.workflow_type,
        "command_type": command.kind.value,
        "command_source": "control_plane",
        "reason": None,
        "rejection_reason": None,
        "validation_errors": None,
    }


def rejected(
    run: Run, command: ClientCommand, reason: str, message: str, *, status: int, **fields: Any
) -> Refused:
    """The refusal of a command, with the members its answer would have."""
    answer = _answer(run, command, f"rejected_{reason}") | {
        "command_id": None,
        "command_sequence": None,
        "command_status": "rejected",
        "rejection_reason": reason,
        **fields,
    }
    if command.name:
        answer[f"{command.kind.value}_name"] = command.name
    del answer["reason"]
    return Refused(reason, message, status=status, **answer)


def _rejected(run: Run, command: ClientCommand, reason: str, message: str, outcome: str) -> Refused:
    return rejected(run, command, reason, message, status=409, outcome=outcome)


def _over_limit(run: Run, command: ClientCommand, kind: str, current: int, limit: int) -> Refused:
    reached = limits.LimitReached(kind, current, limit)
    fields = {name: reached.fields[name] for name in ("limit_kind", "current_value", "configured_limit")}
    return rejected(run, command, reached.reason, reached.message, status=409, **fields)


def _check_size(run: Run, command: ClientCommand, structural: Limits) -> None:
    size, limit = len(command.input.blob) if command.input else 0, structural.payload_size
    if limit and size > limit:
        raise _over_limit(run, command, "payload_size", size, limit)
