"""What surrounds a body: version headers, worker capabilities, the ``control_plane`` object.

The plane of the path decides, never the headers that were sent (server-behaviour 1.1 to 1.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from nodes.api import documents
from nodes.api.messages import Response
from nodes.api.routes import Plane
from nodes.api.versions import CONTROL_HEADER, CONTROL_VERSION, WORKER_HEADER, WORKER_VERSION

JSON: Final = b"application/json"
_SCHEMA: Final = "durable-workflow.v2.control-plane-response"


@dataclass(frozen=True, slots=True)
class OperationContract:
    """Fields a response of a workflow operation names."""

    required: tuple[str, ...] = ()
    success: tuple[str, ...] = ()


_NAMED: Final = ("workflow_id", "operation_name", "operation_name_field")
OPERATIONS: Final[Mapping[str, OperationContract]] = {
    "list": OperationContract(),
    "start": OperationContract((), ("workflow_id", "outcome")),
    "describe": OperationContract(("workflow_id",)),
    "describe_run": OperationContract(("workflow_id",), ("run_id",)),
    "history": OperationContract(("workflow_id", "run_id"), ("next_page_token",)),
    "debug_workflow": OperationContract(("workflow_id",), ("run_id", "diagnostic_status")),
    "list_runs": OperationContract(("workflow_id",)),
    "repair": OperationContract(("workflow_id",), ("outcome",)),
    "archive": OperationContract(("workflow_id",), ("outcome",)),
    "query": OperationContract(_NAMED, ("result",)),
    "signal": OperationContract(_NAMED, ("outcome",)),
    "update": OperationContract(_NAMED, ("outcome",)),
    "cancel": OperationContract(("workflow_id",), ("outcome",)),
    "terminate": OperationContract(("workflow_id",), ("outcome",)),
}

_OPERATION_NAMES: Final = ("signal_name", "query_name", "update_name")
_FROM_PATH: Final = ("workflow_id", "run_id", *_OPERATION_NAMES)

PROJECTED: Final = (
    "run_id",
    "workflow_type",
    "namespace",
    "business_key",
    "status",
    "status_bucket",
    "is_terminal",
    "task_queue",
    "run_number",
    "run_count",
    "workflow_count",
    "is_current_run",
    "compatibility",
    "started_at",
    "closed_at",
    "last_progress_at",
    "wait_kind",
    "wait_reason",
    "next_page_token",
    "command_id",
    "command_status",
    "command_source",
    "target_scope",
    "outcome",
    "reason",
    "rejection_reason",
    "validation_errors",
    "result",
    "result_envelope",
    "update_id",
    "update_status",
    "wait_for",
    "wait_timed_out",
    "wait_timeout_seconds",
    "blocked_reason",
    "message",
    "diagnostic_status",
)


def plane_of(segments: tuple[str, ...]) -> Plane:
    """The plane a path belongs to."""
    return Plane.WORKER if segments[:2] == ("api", "worker") else Plane.CONTROL


def describe_operation(operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The ``control_plane`` object of a workflow operation's response."""
    contract = OPERATIONS[operation]
    described: dict[str, Any] = {
        "schema": _SCHEMA,
        "version": 1,
        "operation": operation,
        "workflow_id": body.get("workflow_id"),
        "contract": {
            "schema": f"{_SCHEMA}.contract",
            "version": 1,
            "legacy_field_policy": "reject_non_canonical",
            "legacy_fields": {
                "query": "query_name",
                "signal": "signal_name",
                "update": "update_name",
                "wait_policy": "wait_for",
            },
            "required_fields": list(contract.required),
            "success_fields": list(contract.success),
        },
    }
    for name in _OPERATION_NAMES:
        if name == f"{operation}_name":
            described |= {"operation_name": body.get(name), "operation_name_field": name}
    described.update((name, body[name]) for name in PROJECTED if name in body)
    return described


class Envelopes:
    """Wraps bodies of both planes. ``capabilities`` is the worker plane's constant part."""

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self._capabilities = orjson.Fragment(documents.write(capabilities))

    def wrap(
        self,
        plane: Plane,
        status: int,
        body: Mapping[str, Any],
        *,
        versioned: bool = True,
        operation: str | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Response:
        """The response for a JSON body.

        ``operation`` adds a ``control_plane`` object; ``parameters`` are those of the path, of which
        the ids and the name of the operation complete the body.
        """
        headers = [(b"content-type", JSON), (b"cache-control", b"no-store")]
        wrapped = dict(body)
        if plane is Plane.WORKER:
            headers.append((WORKER_HEADER, WORKER_VERSION.encode()))
            wrapped["protocol_version"] = WORKER_VERSION
            wrapped["server_capabilities"] = self._capabilities
        elif versioned:
            headers.append((CONTROL_HEADER, CONTROL_VERSION.encode()))
            if operation is not None:
                for name in _FROM_PATH:
                    if parameters and name in parameters:
                        wrapped.setdefault(name, parameters[name])
                wrapped["control_plane"] = describe_operation(operation, wrapped)
        return Response(status, headers, documents.write(wrapped))
