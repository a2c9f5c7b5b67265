"""One connection of a worker, without I/O: messages in, events out; commands in, messages out.

The core keeps the states of docs/protocol.md 7 and nothing else. It never waits and knows no time:
whoever drives it hands over what came (:meth:`ConnectionCore.receive`), obeys the events, and sends
what :meth:`ConnectionCore.take` returns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, assert_never

import msgspec

from cluster.queues.slot_kind import SlotKind
from nodes.streams.codec import ProtocolError, decode, encode, limits
from nodes.streams.frames import (
    Cancel,
    Closed,
    CloseReason,
    Confirmed,
    Decline,
    DeclineReason,
    Error,
    HalfClose,
    Heartbeat,
    Hello,
    NodeFrame,
    Open,
    Output,
    Ping,
    Pong,
    Reconnect,
    Registered,
    Rejected,
    Reset,
    Task,
    Welcome,
    WorkerFrame,
)
from nodes.streams.slot_table import TABLE, Action, Received, SlotState
from nodes.streams.versions import VERSION

MESSAGE_BYTES: Final = 1024 * 1024
"""A message to the worker is cut after the frame that reaches this size."""


class Phase(StrEnum):
    """Where a connection stands."""

    OPENING = "opening"
    OPEN = "open"
    LEAVING = "leaving"
    ENDED = "ended"


class Ending(StrEnum):
    """How a worker or its connection ended a task."""

    COMPLETED = "completed"
    FAILED = "failed"
    DECLINED = "declined"
    NO_CAPACITY = "no_capacity"
    RETURNED = "returned"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Greeted:
    """The worker introduced itself: answer with ``welcome`` or ``reject(None, ...)``."""

    hello: Hello


class OpenAsked(msgspec.Struct, frozen=True):
    """A slot wants to be registered: answer with ``register`` or ``reject``."""

    slot: int
    kind: SlotKind


class TaskEnded(msgspec.Struct, frozen=True):
    """A task came to an end that has to be settled: answer with ``confirm``.

    ``payload`` is the JSON of the output or failure.
    """

    slot: int
    attempt_id: str
    ending: Ending
    payload: bytes | None = None


class Beat(msgspec.Struct, frozen=True):
    """A running task is alive. ``checkpoint`` is JSON, None clears it."""

    slot: int
    attempt_id: str
    checkpoint: bytes | None


class SlotClosed(msgspec.Struct, frozen=True):
    """An idle slot is over."""

    slot: int


Event = Greeted | OpenAsked | TaskEnded | Beat | SlotClosed


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.IDLE
    attempt_id: str = ""
    beaten: bool = False
    reported: bool = False
    """The worker said how the attempt ended, and waits to hear what became of it."""
    closes: CloseReason = CloseReason.HALF_CLOSED


@dataclass(slots=True)
class ConnectionCore:
    """The node's side of one connection. ``max_bytes`` bounds a message of the worker."""

    max_bytes: int
    phase: Phase = Phase.OPENING
    failure: ProtocolError | None = None
    """Set when the connection has to end because the worker broke the protocol; told last of all."""
    unsent_bytes: int = 0
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    _highest: int = 0
    _owes_error: bool = False
    _out: deque[bytes] = field(default_factory=deque)

    # -- what comes -------------------------------------------------------------------------

    def receive(self, message: bytes | str) -> list[Event]:
        """Take in a message. One that is malformed has no effect; else frames count up to the first
        that breaks the protocol.
        """
        events: list[Event] = []
        if self.phase is Phase.ENDED or self.failure is not None:
            return events
        try:
            for frame in decode(message, self.max_bytes):
                self._receive_frame(frame, events)
        except ProtocolError as error:
            self.fail(error)
        return events

    def fail(self, error: ProtocolError) -> None:
        """Tell the worker why the connection ends, after all other frames; the first reason counts."""
        if self.failure is None:
            self.failure = error
            self._owes_error = self.phase is not Phase.ENDED

    def end(self) -> list[Event]:
        """The carrier is gone, for whatever reason."""
        self.phase = Phase.ENDED
        self._out.clear()
        self._owes_error = False
        self.unsent_bytes = 0
        events: list[Event] = []
        self._asked.clear()
        for slot in list(self._slots):
            self._act(slot, Received.END, events)
        self._slots = {number: slot for number, slot in self._slots.items() if slot.state in _UNSETTLED}
        return events

    def _receive_frame(self, frame: WorkerFrame, events: list[Event]) -> None:
        if self.phase is Phase.OPENING and not isinstance(frame, Hello | Pong):
            raise ProtocolError("hello_expected", "The first frame is hello.")
        match frame:
            case Output():  # as nearly all are
                self._receive_output(frame, events)
            case Pong():
                pass
            case Hello():
                if self.phase is not Phase.OPENING:
                    raise ProtocolError("hello_repeated", "hello comes once, first.")
                self.phase = Phase.OPEN
                events.append(Greeted(frame))
            case Open():
                self._act(frame.slot, Received.OPEN, events, kind=frame.kind)
            case Heartbeat():
                same, other = Received.HEARTBEAT_SAME, Received.HEARTBEAT_OTHER
                self._act(
                    frame.slot,
                    same if self._is_latest(frame.slot, frame.attempt_id) else other,
                    events,
                    payload=_bytes(frame.checkpoint),
                )
            case Decline():
                same, other = Received.DECLINE_SAME, Received.DECLINE_OTHER
                unsupported = frame.reason is DeclineReason.UNSUPPORTED
                self._act(
                    frame.slot,
                    same if self._is_latest(frame.slot, frame.attempt_id) else other,
                    events,
                    ending=Ending.DECLINED if unsupported else Ending.NO_CAPACITY,
                )
            case HalfClose():
                self._act(frame.slot, Received.HALF_CLOSE, events)
            case Reset():
                self._act(frame.slot, Received.RESET, events)
            case _:
                assert_never(frame)

    def _receive_output(self, frame: Output, events: list[Event]) -> None:
        latest = self._is_latest(frame.slot, frame.attempt_id)
        completed = frame.output is not msgspec.UNSET
        self._act(
            frame.slot,
            Received.OUTPUT_SAME if latest else Received.OUTPUT_OTHER,
            events,
            attempt_id=frame.attempt_id,
            ending=Ending.COMPLETED if completed else Ending.FAILED,
            payload=_bytes(frame.output if completed else frame.failure),
        )

    def state(self, slot: int) -> SlotState:
        """Where a slot stands. One that waits for its registration counts as idle."""
        known = self._slots.get(slot)
        if known is not None:
            return known.state
        if slot in self._asked:
            return SlotState.IDLE
        return SlotState.CLOSED if slot <= self._highest else SlotState.UNOPENED

    def _is_latest(self, slot: int, attempt_id: str) -> bool:
        known = self._slots.get(slot)
        return known is not None and known.attempt_id == attempt_id

    def _act(
        self,
        number: int,
        received: Received,
        events: list[Event],
        *,
        kind: SlotKind = SlotKind.STEP_AND_RPC,
        attempt_id: str = "",
        ending: Ending = Ending.LOST,
        payload: bytes | None = None,
    ) -> None:
        action = TABLE[received, self.state(number)]
        slot = self._slots.get(number)
        match action:
            case Action.UNKNOWN_SLOT:
                raise ProtocolError("unknown_slot", f"Slot {number} was never opened.")
            case Action.SLOT_REUSED:
                raise ProtocolError("slot_reused", f"Slot {number} is not greater than all before.")
            case Action.REGISTER:
                self._highest = number
                self._asked.add(number)
                if self.phase is Phase.LEAVING:
                    self.reject(number, "node_leaving", "This node is about to stop.", permanent=False)
                else:
                    events.append(OpenAsked(number, kind))
            case Action.REFUSE:
                self._send(Confirmed(slot=number, attempt_id=attempt_id, accepted=False, reason="stale"))
            case Action.LATE | Action.NOTHING | Action.SETTLE_ALL_THE_SAME:
                pass
            case _ if slot is None:
                # Asked for and not answered yet: the answer finds it gone.
                self._asked.discard(number)
                self._send(Closed(slot=number, reason=_REASONS[received]))
            case Action.SETTLE | Action.DECLINE:
                slot.state, slot.reported = SlotState.SETTLING, True
                events.append(TaskEnded(number, slot.attempt_id, ending, payload))
            case Action.BEAT:
                slot.beaten = True
                events.append(Beat(number, slot.attempt_id, payload))
            case Action.CLOSE:
                self._close(number, _REASONS.get(received, CloseReason.RESET))
                events.append(SlotClosed(number))
            case Action.CLOSE_LATER:
                slot.state, slot.closes = SlotState.CLOSING, _REASONS[received]
            case Action.RETURN_OR_LOSE | Action.LOSE_AND_CLOSE | Action.LOSE:
                returned = action is Action.RETURN_OR_LOSE and not slot.beaten
                slot.state, slot.closes = SlotState.CLOSING, _REASONS.get(received, CloseReason.RESET)
                outcome = Ending.RETURNED if returned else Ending.LOST
                events.append(TaskEnded(number, slot.attempt_id, outcome))
            case _:
                assert_never(action)

    # -- what is to be done -----------------------------------------------------------------

    def welcome(
        self, *, session: str, connection: str, namespace: str, max_concurrent_tasks: int, ping_ms: int
    ) -> None:
        """Answer ``hello``. Goes before whatever the rest of hello's message has already caused."""
        self._send(
            Welcome(
                version=VERSION,
                session=session,
                connection=connection,
                namespace=namespace,
                max_concurrent_tasks=max_concurrent_tasks,
                ping_interval_ms=ping_ms,
                limits=limits(self.max_bytes),
            ),
            first=True,
        )

    def register(self, slot: int) -> bool:
        """The slot is idle now; False when it is not wanted any more."""
        if slot not in self._asked or self.phase is Phase.ENDED:
            return False
        self._asked.discard(slot)
        self._slots[slot] = _Slot()
        self._send(Registered(slot=slot))
        return True

    def reject(
        self, slot: int | None, reason: str, message: str, *, permanent: bool, retry_after_ms: int = 0
    ) -> None:
        """Refuse a slot, unless it is not wanted any more, or with None the whole worker."""
        if slot is not None:
            if slot not in self._asked:
                return
            self._asked.discard(slot)
        self._send(
            Rejected(
                slot=slot,
                reason=reason,
                message=message,
                permanent=permanent,
                retry_after_ms=retry_after_ms or msgspec.UNSET,
            ),
            first=slot is None,
        )

    def hand_out(self, slot: int, attempt_id: str, task: bytes) -> bool:
        """Give an idle slot a task (JSON); False when it is not idle."""
        known = self._slots.get(slot)
        if known is None or known.state is not SlotState.IDLE or self.phase is not Phase.OPEN or self.failure:
            return False
        known.state, known.attempt_id = SlotState.BUSY, attempt_id
        known.beaten = known.reported = False
        self._send(Task(slot=slot, task=msgspec.Raw(task)))
        return True

    def confirm(self, slot: int, accepted: bool, reason: str | None = None) -> bool:
        """The end of the slot's task is settled. True when the slot is idle again."""
        known = self._slots.get(slot)
        if known is None or known.state not in _UNSETTLED:
            return False
        if known.reported:
            told = reason if reason is not None else msgspec.UNSET
            self._send(Confirmed(slot=slot, attempt_id=known.attempt_id, accepted=accepted, reason=told))
        if known.state is SlotState.CLOSING or self.phase is Phase.ENDED:
            self._close(slot, known.closes)
            return False
        if self.phase is Phase.LEAVING:
            self._close(slot, CloseReason.RECONNECT)
            return False
        known.state = SlotState.IDLE
        return True

    def cancel(self, slot: int, attempt_id: str, reason: str) -> None:
        """Ask the worker to stop the task, if it still runs."""
        known = self._slots.get(slot)
        if known is not None and known.state is SlotState.BUSY and known.attempt_id == attempt_id:
            self._send(Cancel(slot=slot, attempt_id=attempt_id, reason=reason))

    def complain(self, slot: int, reason: str, message: str) -> None:
        """A frame about a slot was not obeyed; nothing else changes."""
        self._send(Error(slot=slot, reason=reason, message=message))

    def ping(self, nonce: str) -> None:
        self._send(Ping(nonce=nonce))

    def leave(self, reason: str) -> list[Event]:
        """Direct the worker elsewhere (R78); idle slots are over, running tasks go on."""
        if self.phase is not Phase.OPEN:
            return []
        self.phase = Phase.LEAVING
        self._send(Reconnect(reason=reason))
        idle = [number for number, slot in self._slots.items() if slot.state is SlotState.IDLE]
        for number in idle:
            self._close(number, CloseReason.RECONNECT)
        return [SlotClosed(number) for number in idle]

    def cut(self, slot: int, reason: CloseReason) -> None:
        """Close a slot, whatever it does: what ran on it may have run."""
        if slot in self._slots:
            self._close(slot, reason)

    def gets_free(self, slot: int) -> bool:
        """Whether the slot is idle again once :meth:`confirm` was called, as far as can be told now."""
        known = self._slots.get(slot)
        settling = known is not None and known.state is SlotState.SETTLING
        return settling and self.phase is Phase.OPEN and self.failure is None

    def is_settling(self, slot: int) -> bool:
        """Whether the end of the slot's task was reported and waits for :meth:`confirm`."""
        known = self._slots.get(slot)
        return known is not None and known.state in _UNSETTLED

    @property
    def open_slots(self) -> int:
        return len(self._slots)

    # -- what goes --------------------------------------------------------------------------

    def take(self) -> bytes | None:
        """The next message to send, or None."""
        if not self._out and not self._owes_error:
            return None
        parts: list[bytes] = []
        size = 0
        while self._out and size < MESSAGE_BYTES:
            parts.append(self._out.popleft())
            size += len(parts[-1])
        self.unsent_bytes -= size
        if self._owes_error and not self._out and self.failure is not None:
            self._owes_error = False
            parts.append(encode(Error(reason=self.failure.reason, message=self.failure.message)))
        return b"[" + b",".join(parts) + b"]"

    def _send(self, frame: NodeFrame, *, first: bool = False) -> None:
        if self.phase is Phase.ENDED:
            return
        data = encode(frame)
        self.unsent_bytes += len(data)
        if first:
            self._out.appendleft(data)
        else:
            self._out.append(data)

    def _close(self, slot: int, reason: CloseReason) -> None:
        del self._slots[slot]
        self._send(Closed(slot=slot, reason=reason))


_UNSETTLED: Final = frozenset({SlotState.SETTLING, SlotState.CLOSING})
_REASONS: Final = {Received.HALF_CLOSE: CloseReason.HALF_CLOSED, Received.RESET: CloseReason.RESET}


def _bytes(payload: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return None if payload is msgspec.UNSET else bytes(payload)
