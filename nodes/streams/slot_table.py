"""What a node does with a frame in each state of a slot: the table of docs/protocol.md 7, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SlotState(StrEnum):
    """Where a slot stream stands at the node."""

    UNOPENED = "unopened"
    IDLE = "idle"
    BUSY = "busy"
    SETTLING = "settling"
    CLOSING = "closing"
    CLOSED = "closed"


class Received(StrEnum):
    """What came for a slot. "Same" and "other" tell whether it names the slot's latest attempt."""

    OPEN = "`open`"
    OUTPUT_SAME = "`output`, same attempt"
    OUTPUT_OTHER = "`output`, other attempt"
    HEARTBEAT_SAME = "`heartbeat`, same attempt"
    HEARTBEAT_OTHER = "`heartbeat`, other attempt"
    DECLINE_SAME = "`decline`, same attempt"
    DECLINE_OTHER = "`decline`, other attempt"
    HALF_CLOSE = "`half_close`"
    RESET = "`reset`"
    END = "end of carrier"


class Action(StrEnum):
    """What is done about it."""

    REGISTER = "registered or rejected"
    SLOT_REUSED = "fatal `slot_reused`"
    UNKNOWN_SLOT = "fatal `unknown_slot`"
    REFUSE = "refused `stale`"
    SETTLE = "settle"
    DECLINE = "settle as declined"
    BEAT = "beat"
    LATE = "late"
    CLOSE = "closed"
    RETURN_OR_LOSE = "return or lose, closing"
    LOSE_AND_CLOSE = "lose, closing"
    CLOSE_LATER = "closing"
    LOSE = "lose"
    SETTLE_ALL_THE_SAME = "settle all the same"
    NOTHING = "nothing"


_A = Action
_STATES: Final = tuple(SlotState)
_ROWS: Final[dict[Received, tuple[Action, ...]]] = {
    Received.OPEN: (_A.REGISTER, *[_A.SLOT_REUSED] * 5),
    Received.OUTPUT_SAME: (_A.UNKNOWN_SLOT, _A.REFUSE, _A.SETTLE, _A.LATE, _A.LATE, _A.LATE),
    Received.OUTPUT_OTHER: (_A.UNKNOWN_SLOT, _A.REFUSE, _A.REFUSE, _A.REFUSE, _A.LATE, _A.LATE),
    Received.HEARTBEAT_SAME: (_A.UNKNOWN_SLOT, _A.LATE, _A.BEAT, _A.LATE, _A.LATE, _A.LATE),
    Received.HEARTBEAT_OTHER: (_A.UNKNOWN_SLOT, *[_A.LATE] * 5),
    Received.DECLINE_SAME: (_A.UNKNOWN_SLOT, _A.LATE, _A.DECLINE, _A.LATE, _A.LATE, _A.LATE),
    Received.DECLINE_OTHER: (_A.UNKNOWN_SLOT, *[_A.LATE] * 5),
    Received.HALF_CLOSE: (_A.UNKNOWN_SLOT, _A.CLOSE, _A.RETURN_OR_LOSE, _A.CLOSE_LATER, _A.LATE, _A.LATE),
    Received.RESET: (_A.UNKNOWN_SLOT, _A.CLOSE, _A.LOSE_AND_CLOSE, _A.CLOSE_LATER, _A.LATE, _A.LATE),
    Received.END: (
        _A.NOTHING,
        _A.CLOSE,
        _A.LOSE,
        _A.SETTLE_ALL_THE_SAME,
        _A.SETTLE_ALL_THE_SAME,
        _A.NOTHING,
    ),
}

TABLE: Final = {
    (received, state): action
    for received, row in _ROWS.items()
    for state, action in zip(_STATES, row, strict=True)
}
