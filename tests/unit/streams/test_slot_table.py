"""Every frame in every state of a slot does what the table says, and the page shows that table."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.queues.slot_kind import SlotKind
from nodes.streams.core import Beat, Ending, OpenAsked, SlotClosed, TaskEnded
from nodes.streams.slot_table import TABLE, Action, Received, SlotState
from tests.unit.streams.cores import ATTEMPT, SLOT, act, core_in, frame, message, sent

PAGE = Path(__file__).parents[3] / "docs/protocol.md"
PLACES = [(received, state) for received in Received for state in SlotState]


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text().split("<!-- table: frame x slot state")[1]
    rows = [line for line in text.splitlines() if line.startswith("|")][: len(Received) + 2]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[0] == ["frame", *SlotState]
    shown = {
        (row[0], state): cell for row in cells[2:] for state, cell in zip(SlotState, row[1:], strict=True)
    }
    assert shown == {(received, state): action for (received, state), action in TABLE.items()}


@pytest.mark.parametrize(("received", "state"), PLACES)
def test_each_frame_in_each_state(received: Received, state: SlotState) -> None:
    core = core_in(state)
    events = act(core, received)
    frames = [] if received is Received.END else sent(core)
    after = core.state(SLOT)
    match TABLE[received, state]:
        case Action.REGISTER:
            assert events == [OpenAsked(SLOT, SlotKind.STEP_AND_RPC)]
            assert core.register(SLOT)
            assert sent(core) == [{"type": "registered", "slot": SLOT}]
        case Action.SLOT_REUSED | Action.UNKNOWN_SLOT as action:
            reason = "slot_reused" if action is Action.SLOT_REUSED else "unknown_slot"
            assert (events, core.failure.reason if core.failure else None) == ([], reason)
            assert [(f["type"], f["reason"]) for f in frames] == [("error", reason)]
        case Action.REFUSE:
            refusal = {"type": "confirmed", "slot": SLOT, "accepted": False, "reason": "stale"}
            assert frames == [{**refusal, "attempt_id": frame(received)["attempt_id"]}]
            assert (events, after) == ([], state)
        case Action.LATE | Action.NOTHING:
            assert (events, frames, core.failure) == ([], [], None)
            if received is not Received.END:
                assert after is state
        case Action.SETTLE:
            assert events == [TaskEnded(SLOT, ATTEMPT, Ending.COMPLETED, b'{"a": 1}')]
            assert (frames, after) == ([], SlotState.SETTLING)
        case Action.DECLINE:
            assert events == [TaskEnded(SLOT, ATTEMPT, Ending.DECLINED)]
            assert (frames, after) == ([], SlotState.SETTLING)
        case Action.BEAT:
            assert events == [Beat(SLOT, ATTEMPT, b"5")]
            assert (frames, after) == ([], SlotState.BUSY)
        case Action.CLOSE:
            assert (events, after) == ([SlotClosed(SLOT)], SlotState.CLOSED)
            assert len(frames) == (received is not Received.END)
        case Action.RETURN_OR_LOSE:
            assert events == [TaskEnded(SLOT, ATTEMPT, Ending.RETURNED)]
            assert after is SlotState.CLOSING
        case Action.LOSE_AND_CLOSE | Action.LOSE:
            assert events == [TaskEnded(SLOT, ATTEMPT, Ending.LOST)]
            assert after is SlotState.CLOSING
        case Action.CLOSE_LATER:
            assert (events, frames, after) == ([], [], SlotState.CLOSING)
        case Action.SETTLE_ALL_THE_SAME:
            assert (events, after) == ([], state)
            assert not core.confirm(SLOT, True)
            assert core.state(SLOT) is SlotState.CLOSED


@pytest.mark.parametrize("state", [SlotState.SETTLING, SlotState.CLOSING])
def test_a_settled_task_is_confirmed_whatever_happened_since(state: SlotState) -> None:
    core = core_in(state)
    assert core.confirm(SLOT, False, "flow_closed") is (state is SlotState.SETTLING)
    confirmed, *closed = sent(core)
    assert confirmed == {
        "type": "confirmed",
        "slot": SLOT,
        "attempt_id": ATTEMPT,
        "accepted": False,
        "reason": "flow_closed",
    }
    if state is SlotState.CLOSING:
        assert closed == [{"type": "closed", "slot": SLOT, "reason": "half_closed"}]


def test_half_closing_after_a_heartbeat_loses_the_attempt() -> None:
    """A3: a heartbeat is a sign that the task was run."""
    core = core_in(SlotState.BUSY)
    act(core, Received.HEARTBEAT_SAME)
    assert act(core, Received.HALF_CLOSE) == [TaskEnded(SLOT, ATTEMPT, Ending.LOST)]


@pytest.mark.parametrize("state", list(SlotState))
def test_a_task_goes_to_idle_slots_only(state: SlotState) -> None:
    """R66: at most one task is in flight on a slot, and none after it said goodbye (R77)."""
    core = core_in(state)
    assert core.hand_out(SLOT, "other", b"{}") is (state is SlotState.IDLE)


@pytest.mark.parametrize("state", list(SlotState))
def test_leaving_closes_idle_slots_and_lets_tasks_finish(state: SlotState) -> None:
    """R78."""
    core = core_in(state)
    events = core.leave("node_leaving")
    assert events == ([SlotClosed(SLOT)] if state is SlotState.IDLE else [])
    assert sent(core)[0] == {"type": "reconnect", "reason": "node_leaving"}
    if state is SlotState.BUSY:
        assert act(core, Received.OUTPUT_SAME)
        assert not core.confirm(SLOT, True)
        assert [f["type"] for f in sent(core)] == ["confirmed", "closed"]
    core.receive(message({"type": "open", "slot": SLOT + 1, "kind": "rpc_only"}))
    (rejected,) = sent(core)
    assert (rejected["reason"], rejected["permanent"]) == ("node_leaving", False)
