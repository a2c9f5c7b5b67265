"""Steps as workers get them: not stored, but made of the records of a run when a step is handed out."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from cluster.flows.records import FlowInfo, StepState
from cluster.times import iso_ms

_info: Final = msgspec.msgpack.Decoder(FlowInfo)
_step: Final = msgspec.msgpack.Decoder(StepState)


def stored_step_body(info: bytes, step: bytes) -> bytes:
    """The task of a step whose records are stored like this. Raises msgspec.DecodeError."""
    return step_body(_info.decode(info), _step.decode(step))


def step_body(info: FlowInfo, step: StepState) -> bytes:
    """A step's task as JSON, but for what only the hand-out knows (task_id, attempt_id, attempt)."""
    options = step.options.of(step.method)
    body: dict[str, Any] = {
        "kind": "step",
        "namespace": info.namespace,
        "flow_type": info.flow_type,
        "flow_id": info.flow_id,
        "run_id": info.run_id,
        "step_type": step.step_type,
        "step_execution_id": step.execution_id,
        "method": step.method,
        "input": orjson.Fragment(step.input),
        "attributes": orjson.Fragment(step.attributes),
        "method_timeout_ms": options.timeout_ms,
        "heartbeat_timeout_ms": options.heartbeat_ms,
    }
    if info.traceparent:
        body["traceparent"] = info.traceparent
    if step.conditions:
        body["conditions"] = orjson.Fragment(step.conditions)
    if step.failure is not None:
        body["failure"] = step.failure
    if step.checkpoint:
        body["checkpoint"] = orjson.Fragment(step.checkpoint)
    if step.first_attempt_at_ms:
        body["first_attempt_at"] = iso_ms(step.first_attempt_at_ms)
    return orjson.dumps(body)
