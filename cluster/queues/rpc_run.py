"""One RPC on a slot of this node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class RpcEnd(StrEnum):
    """How an RPC ended on a slot."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    """It may have run."""
    RETURNED = "returned"
    """It did not run, and another slot may be tried."""
    UNSUPPORTED = "unsupported"
    """As returned, and this worker has no such RPC."""


@dataclass(frozen=True, slots=True, eq=False)
class RpcRun:
    """``body`` is the RPC's task as JSON, but for the attempt id. ``ended(end, payload)`` is called
    once, with the JSON of output or failure where there is one.
    """

    rpc_id: str
    flow_type: str
    name: str
    body: bytes
    ended: Callable[[RpcEnd, bytes | None], None]
