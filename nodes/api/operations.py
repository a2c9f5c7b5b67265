"""What requests for a named operation on a workflow share (server-behaviour 3.3)."""

from __future__ import annotations

import unicodedata
from typing import Any

from ulid import ULID

from cluster import payloads
from cluster.errors import Refused, ValidationFailed
from cluster.workflows.records import Payload
from cluster.workflows.visibility import RunView
from nodes.api.call import Call
from nodes.api.payloads import read_payload


def operation_name(call: Call, field: str) -> str:
    """The name in the path, checked before anything is looked up. Raises ValidationFailed."""
    name = call.parameters[field]
    longest = call.node.settings.max_operation_name_length
    if longest and len(name.encode()) > longest:
        raise ValidationFailed({field: [f"The {field} must not be longer than {longest} bytes."]})
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise ValidationFailed({field: [f"The {field} must not contain control characters."]})
    return name


def read_arguments(value: Any, field: str = "input") -> Payload:
    """Arguments of an operation: a list, an object of named ones, or an envelope; null means none.

    Raises ValidationFailed when the envelope cannot be decoded or holds neither list nor object.
    """
    if value is None:
        return payloads.encode([])
    if not isinstance(value, list | dict):
        raise ValidationFailed({field: [f"The {field} field must be a list, an object or an envelope."]})
    payload = read_payload(value, field) or payloads.encode([])
    if payloads.is_envelope(value):
        try:
            decoded = payloads.decode(payload)
        except payloads.PayloadError:
            decoded = None
        if not isinstance(decoded, list | dict):
            raise ValidationFailed({f"{field}.blob": [f"The {field}.blob field must be an encoded list."]})
    return payload


async def target(call: Call) -> tuple[RunView, str]:
    """The run an operation is for, and its scope: ``instance`` or ``run``.

    Raises Refused: 404 instance_not_found or run_not_found, 409 historical_run_command_rejected.
    """
    workflow_id, run_id = call.parameters["workflow_id"], call.parameters.get("run_id")
    current = await call.node.engine.describe(call.namespace, workflow_id)
    if run_id is None:
        return current, "instance"
    if current.run.info.run_id != run_id:
        await call.node.engine.describe(call.namespace, workflow_id, run_id)
        raise Refused(
            "historical_run_command_rejected",
            "The run is not the workflow's current run.",
            workflow_id=workflow_id,
            run_id=run_id,
            target_scope="run",
        )
    return current, "run"


def new_command_id() -> str:
    """An id for one command of a client."""
    return str(ULID())


def command_body(
    view: RunView, scope: str, command_id: str, *, outcome: str, reason: str | None = None
) -> dict[str, Any]:
    """What the answer to a command says about it; with a ``reason`` the command was rejected."""
    info = view.run.info
    return {
        "workflow_id": info.workflow_id,
        "run_id": info.run_id,
        "requested_run_id": info.run_id if scope == "run" else None,
        "resolved_run_id": info.run_id,
        "workflow_type": info.workflow_type,
        "target_scope": scope,
        "command_id": command_id,
        "command_sequence": None,
        "command_status": "accepted" if reason is None else "rejected",
        "command_source": "control_plane",
        "outcome": outcome,
        "reason": reason,
        "rejection_reason": reason,
        "validation_errors": {},
    }
