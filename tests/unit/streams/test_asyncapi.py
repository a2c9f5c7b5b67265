"""The AsyncAPI document describes the frames that really go over the wire."""

from __future__ import annotations

import re
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest

from cluster.queues.slot_kind import SlotKind
from nodes.streams import asyncapi, frames

DOCUMENT = asyncapi.build()
OF_WORKERS = [
    frames.Hello(
        worker_id="w",
        flow_types=[frames.FlowTypeSupport("F", ["a"], None)],
        task_limit=4,
        reserved_rpc_slots=1,
    ),
    frames.Open(slot=1, kind=SlotKind.STEP_AND_RPC),
    frames.Output(slot=1, attempt_id="a", output=msgspec.Raw(b'{"complete":1}')),
    frames.Heartbeat(slot=1, attempt_id="a", checkpoint=msgspec.Raw(b"[1]")),
    frames.Decline(slot=1, attempt_id="a", reason=frames.DeclineReason.UNSUPPORTED),
    frames.HalfClose(slot=1),
    frames.Reset(slot=1, reason="gone"),
    frames.Pong(nonce="n"),
]
OF_NODES = [
    frames.Welcome(
        version=1,
        session="s",
        connection="c",
        namespace="ns",
        max_concurrent_tasks=4,
        ping_interval_ms=20_000,
        limits=frames.Limits(1, 1, 1),
    ),
    frames.Registered(slot=1),
    frames.Rejected(slot=None, reason="r", message="m", permanent=False, retry_after_ms=5),
    frames.Task(slot=1, task=msgspec.Raw(b'{"task_id":"t"}')),
    frames.Confirmed(slot=1, attempt_id="a", accepted=False, reason="stale"),
    frames.Cancel(slot=1, attempt_id="a", reason="flow_closed"),
    frames.Ping(nonce="n"),
    frames.Reconnect(reason="leaving"),
    frames.Error(reason="r", message="m"),
    frames.Closed(slot=1, reason=frames.CloseReason.RESET),
]


def _validator(message: str) -> Any:
    payload = DOCUMENT["components"]["messages"][message]["payload"]
    schema = {**payload, "components": DOCUMENT["components"]}
    return jsonschema_rs.validator_for(schema)


def _wire(frame: frames.Frame, **changes: Any) -> list[dict[str, Any]]:
    return [msgspec.json.decode(msgspec.json.encode(frame)) | changes]


def test_no_frame_is_left_out() -> None:
    assert {type(frame) for frame in OF_WORKERS} == set(get_args(frames.WorkerFrame))
    assert {type(frame) for frame in OF_NODES} == set(get_args(frames.NodeFrame))


@pytest.mark.parametrize("frame", OF_WORKERS, ids=lambda frame: type(frame).__name__)
def test_frames_of_workers_are_as_described(frame: frames.Frame) -> None:
    validator = _validator("toNode")
    assert validator.is_valid(_wire(frame))
    assert validator.is_valid(_wire(frame, later="a member of a later release"))
    assert not validator.is_valid(_wire(frame, type="nonsense"))
    assert not validator.is_valid([])


@pytest.mark.parametrize("frame", OF_NODES, ids=lambda frame: type(frame).__name__)
def test_frames_of_nodes_are_as_described(frame: frames.Frame) -> None:
    assert _validator("toWorker").is_valid(_wire(frame))
    assert not _validator("toNode").is_valid(_wire(frame))


def test_every_reference_leads_somewhere() -> None:
    for target in re.findall(rb'"\$ref": "#/([^"]+)"', asyncapi.render()):
        place: Any = DOCUMENT
        for part in target.decode().split("/"):
            place = place[part]
        assert place
