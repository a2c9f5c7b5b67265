"""Connection cores brought into each state a slot can be in."""

from __future__ import annotations

import json
from typing import Any

from nodes.streams.core import ConnectionCore, Event
from nodes.streams.slot_table import Received, SlotState

MAX_BYTES = 10_000
SLOT = 7
ATTEMPT = "run-s1e-1.0"
HELLO = {
    "type": "hello",
    "worker_id": "w",
    "flow_types": [{"name": "F"}],
    "task_limit": 2,
    "reserved_rpc_slots": 0,
}


def message(*frames: Any) -> bytes:
    return json.dumps(frames).encode()


def sent(core: ConnectionCore) -> list[dict[str, Any]]:
    """The frames the core wants sent, taken out of it."""
    frames: list[dict[str, Any]] = []
    while (data := core.take()) is not None:
        frames += json.loads(data)
    return frames


def open_core() -> ConnectionCore:
    """A connection after its hello."""
    core = ConnectionCore(MAX_BYTES)
    core.receive(message(HELLO))
    return core


def core_in(state: SlotState) -> ConnectionCore:
    """A connection whose slot SLOT is in ``state``; ATTEMPT ran on it last where one did."""
    core = open_core()
    if state is SlotState.UNOPENED:
        return core
    core.receive(message({"type": "open", "slot": SLOT, "kind": "step_and_rpc"}))
    core.register(SLOT)
    core.hand_out(SLOT, ATTEMPT, b"{}")
    if state is SlotState.BUSY:
        sent(core)
        return core
    core.receive(message(frame(Received.OUTPUT_SAME)))
    if state is SlotState.CLOSING:
        core.receive(message(frame(Received.HALF_CLOSE)))
    elif state in (SlotState.IDLE, SlotState.CLOSED):
        core.confirm(SLOT, True)
        if state is SlotState.CLOSED:
            core.receive(message(frame(Received.HALF_CLOSE)))
    assert core.state(SLOT) is state
    sent(core)
    return core


def frame(received: Received) -> dict[str, Any]:
    """A frame that is ``received`` for SLOT."""
    kind = received.name.lower()
    attempt = {"attempt_id": ATTEMPT if kind.endswith("same") else "run-s1e-9.0"}
    match kind.split("_")[0]:
        case "open":
            return {"type": "open", "slot": SLOT, "kind": "step_and_rpc"}
        case "output":
            return {"type": "output", "slot": SLOT, "output": {"a": 1}, **attempt}
        case "heartbeat":
            return {"type": "heartbeat", "slot": SLOT, "checkpoint": 5, **attempt}
        case "decline":
            return {"type": "decline", "slot": SLOT, "reason": "unsupported", **attempt}
        case _:
            return {"type": kind, "slot": SLOT}


def act(core: ConnectionCore, received: Received) -> list[Event]:
    """Let ``received`` happen."""
    if received is Received.END:
        return core.end()
    return core.receive(message(frame(received)))
