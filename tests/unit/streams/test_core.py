"""Connections as a whole: greeting, order, registration, closing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.queues.slot_kind import SlotKind
from nodes.streams.codec import ProtocolError
from nodes.streams.core import ConnectionCore, Greeted, OpenAsked, Phase, TaskEnded
from nodes.streams.frames import CloseReason
from nodes.streams.slot_table import Received, SlotState
from tests.unit.streams.cores import (
    ATTEMPT,
    HELLO,
    MAX_BYTES,
    SLOT,
    core_in,
    frame,
    message,
    open_core,
    sent,
)


def welcome(core: ConnectionCore) -> None:
    core.welcome(session="s", connection="s/1", namespace="n", max_concurrent_tasks=2, ping_ms=1000)


OPEN = {"type": "open", "slot": 1, "kind": "step_and_rpc"}


def test_a_message_may_greet_and_open() -> None:
    core = ConnectionCore(MAX_BYTES)
    greeted, asked = core.receive(message(HELLO, OPEN))
    assert isinstance(greeted, Greeted)
    assert asked == OpenAsked(1, SlotKind.STEP_AND_RPC)


@pytest.mark.parametrize("first", [frame(received) for received in Received if received is not Received.END])
def test_hello_comes_first(first: dict[str, object]) -> None:
    core = ConnectionCore(MAX_BYTES)
    assert core.receive(message(first)) == []
    assert core.failure is not None
    assert core.failure.reason == "hello_expected"


def test_pong_and_emptiness_are_welcome_at_any_time() -> None:
    core = ConnectionCore(MAX_BYTES)
    assert core.receive(message({"type": "pong"})) == core.receive(b"[]") == []
    assert core.failure is None


def test_hello_comes_once() -> None:
    core = open_core()
    core.receive(message(HELLO))
    assert core.failure is not None
    assert core.failure.reason == "hello_repeated"


def test_slot_ids_grow() -> None:
    core = open_core()
    for slot in (5, 3):
        core.receive(message({**OPEN, "slot": slot}))
    assert core.failure is not None
    assert core.failure.reason == "slot_reused"


def test_frames_before_a_broken_one_count() -> None:
    core = core_in(SlotState.BUSY)
    events = core.receive(message(frame(Received.OUTPUT_SAME), OPEN, frame(Received.RESET)))
    assert [type(event) for event in events] == [TaskEnded]
    assert core.failure is not None
    assert core.receive(message(frame(Received.RESET))) == []


def test_a_malformed_message_has_no_effect() -> None:
    core = core_in(SlotState.BUSY)
    assert core.receive(message(frame(Received.OUTPUT_SAME), {"type": "nonsense"})) == []
    assert core.state(SLOT) is SlotState.BUSY


def test_welcome_goes_before_all_that_the_message_of_hello_caused() -> None:
    core = ConnectionCore(MAX_BYTES)
    closed, stale = {"type": "half_close", "slot": 1}, frame(Received.OUTPUT_SAME) | {"slot": 2}
    events = core.receive(message(HELLO, OPEN, closed, {**OPEN, "slot": 2}, stale, HELLO))
    welcome(core)
    for event in events:
        if isinstance(event, OpenAsked):
            core.register(event.slot)
    said = sent(core)
    assert said[0]["type"] == "welcome"
    assert sorted(f["type"] for f in said[1:-1]) == ["closed", "confirmed", "registered"]
    assert (said[-1]["type"], said[-1]["reason"]) == ("error", "hello_repeated")


def test_a_refused_hello_is_the_first_thing_that_is_told() -> None:
    core = ConnectionCore(MAX_BYTES)
    core.receive(message(HELLO, OPEN, {"type": "half_close", "slot": 1}))
    core.reject(None, "invalid_registration", "text", permanent=True)
    core.fail(ProtocolError("invalid_registration", "text"))
    core.reject(1, "node_not_ready", "it is not wanted any more", permanent=False)
    assert [f["type"] for f in sent(core)] == ["rejected", "closed", "error"]


def test_a_slot_that_is_closed_before_its_registration() -> None:
    core = open_core()
    events = core.receive(message(OPEN, {"type": "half_close", "slot": 1}))
    assert events == [OpenAsked(1, SlotKind.STEP_AND_RPC)]
    assert not core.register(1)
    assert sent(core) == [{"type": "closed", "slot": 1, "reason": "half_closed"}]
    assert core.state(1) is SlotState.CLOSED


def test_a_returned_task_is_not_confirmed() -> None:
    core = core_in(SlotState.BUSY)
    core.receive(message(frame(Received.HALF_CLOSE)))
    assert not core.confirm(SLOT, True)
    assert sent(core) == [{"type": "closed", "slot": SLOT, "reason": "half_closed"}]


def test_a_rejected_slot_may_not_be_used() -> None:
    core = open_core()
    core.receive(message(OPEN))
    core.reject(1, "worker_streams_exhausted", "text", permanent=False, retry_after_ms=5)
    assert sent(core)[0]["retry_after_ms"] == 5
    assert not core.hand_out(1, ATTEMPT, b"{}")


def test_cut_slots_are_closed_with_the_reason() -> None:
    core = core_in(SlotState.BUSY)
    core.cut(SLOT, CloseReason.FENCED)
    assert sent(core) == [{"type": "closed", "slot": SLOT, "reason": "fenced"}]
    assert core.receive(message(frame(Received.OUTPUT_SAME))) == []
    assert core.failure is None


def test_cancel_reaches_only_the_running_attempt() -> None:
    core = core_in(SlotState.BUSY)
    core.cancel(SLOT, "other", "r")
    assert sent(core) == []
    core.cancel(SLOT, ATTEMPT, "flow_closed")
    assert sent(core) == [{"type": "cancel", "slot": SLOT, "attempt_id": ATTEMPT, "reason": "flow_closed"}]


def test_what_is_unsent_is_counted() -> None:
    core = core_in(SlotState.IDLE)
    core.hand_out(SLOT, ATTEMPT, json.dumps({"input": "x" * 1000}).encode())
    assert core.unsent_bytes > 1000
    core.take()
    assert core.unsent_bytes == 0


def test_large_tasks_travel_in_several_messages() -> None:
    core = open_core()
    for slot in range(1, 5):
        core.receive(message({**OPEN, "slot": slot}))
        core.register(slot)
        core.hand_out(slot, ATTEMPT, json.dumps({"input": "x" * 600_000}).encode())
    messages = 0
    while core.take() is not None:
        messages += 1
    assert messages == 2


def test_nothing_is_said_after_the_end() -> None:
    core = core_in(SlotState.SETTLING)
    core.end()
    core.ping("n")
    core.confirm(SLOT, True)
    assert core.take() is None
    assert core.phase is Phase.ENDED


FRAMES = [HELLO, OPEN, *[frame(r) for r in Received if r is not Received.END], {"type": "pong"}]


@given(st.lists(st.lists(st.sampled_from(FRAMES), max_size=4), max_size=12), st.data())
def test_no_order_of_frames_loses_a_task(
    messages: list[list[dict[str, object]]], data: st.DataObject
) -> None:
    """Every task that was handed out ends exactly once, whatever the worker sends."""
    core = ConnectionCore(MAX_BYTES)
    handed_out = ended = 0
    for frames in messages:
        for event in core.receive(message(*frames)):
            if isinstance(event, OpenAsked) and core.register(event.slot):
                handed_out += core.hand_out(event.slot, f"a{handed_out}", b"{}")
            if isinstance(event, TaskEnded):
                ended += 1
                if data.draw(st.booleans()):
                    idle = core.confirm(event.slot, True)
                    assert idle is (core.state(event.slot) is SlotState.IDLE)
                    handed_out += idle and core.hand_out(event.slot, f"a{handed_out}", b"{}")
    ended += sum(isinstance(event, TaskEnded) for event in core.end())
    assert ended == handed_out


def test_the_first_failure_is_told() -> None:
    core = open_core()
    core.fail(ProtocolError("hello_timeout", "late"))
    core.fail(ProtocolError("other", "later"))
    assert [f["reason"] for f in sent(core)] == ["hello_timeout"]
