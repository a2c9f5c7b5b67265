"""A task as it comes over the wire. Payloads stay bytes until a handler wants them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType


class TaskBody(msgspec.Struct, frozen=True):
    """docs/protocol.md 8."""

    attempt_id: str
    kind: str
    flow_type: str
    flow_id: str
    run_id: str
    namespace: str = ""
    task_id: str = ""
    attempt: int = 1
    step_type: str = ""
    step_execution_id: str = ""
    method: str = ""
    rpc_name: str = ""
    input: Raw = Raw(b"null")
    attributes: dict[str, Raw] = {}
    conditions: dict[str, dict[str, Any]] | None = None
    failure: dict[str, Any] | None = None
    checkpoint: Raw | UnsetType = UNSET
    method_timeout_ms: int = 0
    heartbeat_timeout_ms: int = 0
    first_attempt_at: str | None = None
    traceparent: str = ""


_decoder = msgspec.json.Decoder(TaskBody)


def read_task(task: Raw) -> TaskBody:
    """Raises msgspec.DecodeError for what is no task."""
    return _decoder.decode(task)
