"""What can go wrong when a client asks for something. Each names the server's ``reason``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster.errors import HeadraceError


class ClientError(HeadraceError):
    """The server refused a request. ``fields`` is the body of its answer."""

    def __init__(self, message: str, reason: str, status: int | None, fields: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.status = status
        self.fields = fields


class FlowNotFound(ClientError):
    """There is no such flow, or no such run of it."""


class FlowAlreadyStarted(ClientError):
    """The flow id is in use, and the reuse policy does not allow another run."""

    @property
    def run_id(self) -> str:
        return str(self.fields.get("run_id", ""))


class FlowNotActive(ClientError):
    """The flow is closed, or is being stopped."""


class RpcUnavailable(ClientError):
    """No worker took the RPC in time; no handler has run."""


class UnknownRpc(ClientError):
    """No connected worker of the flow type knows the RPC."""


class RpcLockConflict(ClientError):
    """An attribute the RPC locks is locked by another RPC or step."""


class RpcFailed(ClientError):
    """The handler of the RPC failed; ``failure`` has its message and type."""

    @property
    def failure(self) -> Mapping[str, Any]:
        found = self.fields.get("failure")
        return found if isinstance(found, dict) else {}


class RpcOutcomeUnknown(ClientError):
    """The RPC was handed to a worker and did not end in time: the handler may have run."""


class InvalidRequest(ClientError):
    """The server does not take a request of this form or size."""


class NotAuthorized(ClientError):
    """The credential is missing, wrong, or has not the role."""


class UnsupportedServer(ClientError):
    """The server knows no flows: it is older than this client, or no Headrace server (R99)."""


class ServerUnavailable(ClientError):
    """No node answered, or the store is away. For requests that change something: see ``maybe_executed``."""

    def __init__(
        self,
        message: str,
        reason: str,
        status: int | None,
        fields: Mapping[str, Any],
        *,
        maybe_executed: bool = False,
    ) -> None:
        super().__init__(message, reason, status, fields)
        self.maybe_executed = maybe_executed
        """Whether the request may have had its effect all the same."""


class FlowFailed(HeadraceError):
    """The flow ended, but not with a result."""

    reason = "flow_failed"

    def __init__(
        self, flow_id: str, status: str, failure: Mapping[str, Any] | None, close_reason: str
    ) -> None:
        text = (failure or {}).get("message") or close_reason or "no reason was given"
        super().__init__(f"flow {flow_id!r} is {status}: {text}")
        self.flow_id = flow_id
        self.status = status
        self.failure = failure
        self.close_reason = close_reason


class FlowStillRunning(HeadraceError):
    """The flow did not close within the time."""

    reason = "flow_still_running"


_BY_REASON: Final[Mapping[str, type[ClientError]]] = {
    "flow_not_found": FlowNotFound,
    "run_not_found": FlowNotFound,
    "flow_already_started": FlowAlreadyStarted,
    "flow_closed": FlowNotActive,
    "flow_closing": FlowNotActive,
    "rpc_unavailable": RpcUnavailable,
    "unknown_rpc": UnknownRpc,
    "rpc_lock_conflict": RpcLockConflict,
    "rpc_failed": RpcFailed,
    "rpc_timed_out": RpcOutcomeUnknown,
    "rpc_worker_lost": RpcOutcomeUnknown,
    "rpc_in_progress": RpcOutcomeUnknown,
}


_MISSING: Final = frozenset({"flow_not_found", "run_not_found", "unknown_rpc", "namespace_not_found"})


def error_of(status: int, fields: Mapping[str, Any]) -> ClientError:
    """The exception for an answer that is no success."""
    reason = str(fields.get("reason") or f"http_{status}")
    if status in (404, 405) and reason not in _MISSING:
        text = "The server has no flows: upgrade it first, this client needs a newer one."
        return UnsupportedServer(text, reason, status, fields)
    message = str(fields.get("message") or fields.get("error") or f"The server answered {status}.")
    kind = _BY_REASON.get(reason)
    if kind is None:
        if status in (401, 403):
            kind = NotAuthorized
        elif status in (400, 409, 413, 415, 422):
            kind = InvalidRequest
        elif status >= 500 or status == 429:
            return ServerUnavailable(
                message, reason, status, fields, maybe_executed=reason == "store_outcome_unknown"
            )
        else:
            kind = ClientError
    return kind(message, reason, status, fields)
