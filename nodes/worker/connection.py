"""One connection to a node: frames in, frames out, and what they mean for the lanes that have slots on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec
import trio

from cluster.queues.slot_kind import SlotKind
from nodes.streams.frames import (
    Cancel,
    Closed,
    Confirmed,
    Decline,
    DeclineReason,
    Error,
    Frame,
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
)
from nodes.worker.backoff import pause_before
from nodes.worker.carrier import VERSIONS, VERSIONS_HEADER, Carrier, CarrierLost, open_carrier
from nodes.worker.context import Attempt
from nodes.worker.errors import StreamRejected
from nodes.worker.lane import Lane, LaneState
from nodes.worker.outbox import Outbox
from nodes.worker.running import Ended, Job
from nodes.worker.tasks import TaskBody, read_task

log = logging.getLogger("headrace.worker")

WELCOME_SECONDS: Final = 10.0
SILENT_INTERVALS: Final = 3
"""A node that sends nothing for so many ping intervals is taken for dead."""
BEAT_SECONDS: Final = 0.1
"""Heartbeats of a task are at least so far apart."""

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(list[NodeFrame])


class Host(Protocol):
    """The worker, as its connections need it."""

    stopping: bool

    def hello(self) -> Hello: ...

    def welcomed(self, welcome: Welcome) -> None: ...

    def registered(self, lane: Lane) -> None: ...

    def unregistered(self, lane: Lane) -> None: ...

    def rejected(self, kind: SlotKind, error: StreamRejected, permanent: bool) -> None: ...

    def job(self, body: TaskBody) -> Job | None: ...

    def start(self, lane: Lane, job: Job, attempt: Attempt) -> None: ...

    def changed(self, lane: Lane) -> None: ...


class Connection:
    """``lanes`` get slots on it whenever they need one. ``changed`` is called when it was welcomed, and
    when another connection has to take over, because this one ended or its node is leaving.
    """

    def __init__(self, host: Host, url: str, lanes: list[Lane], changed: Callable[[], None]) -> None:
        self.url = url
        self.welcome: Welcome | None = None
        self.registered_any = False
        self.leaving = False
        self.ended = False
        self._host = host
        self._lanes = lanes
        self._slots: dict[int, Lane] = {}
        self._next_slot = 1
        self._out = Outbox()
        self._wake = trio.Event()
        self._welcomed = trio.Event()
        self._beaten = trio.Event()
        self._changed = changed
        self._open = False
        self._dialing = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._received_at = 0.0

    # -- life -------------------------------------------------------------------------------

    async def serve(self, headers: Mapping[str, str]) -> None:
        """Connect and serve until the carrier ends. Raises StreamRejected or CarrierLost."""
        try:
            with self._dialing:
                async with open_carrier(self.url, {VERSIONS_HEADER: VERSIONS, **headers}) as carrier:
                    self._open = True
                    try:
                        with self._scope:
                            await self._serve(carrier)
                    finally:
                        # Now, not when the carrier is closed: a dead node takes its time for that.
                        self._end()
        finally:
            self._end()

    def _end(self) -> None:
        self.ended = True
        for lane in list(self._slots.values()):
            self._slot_over(lane, "the connection was lost")
        self._changed()

    async def _serve(self, carrier: Carrier) -> None:
        lost: CarrierLost | None = None

        def take(message: bytes) -> None:
            nonlocal lost
            if self.ended or lost:
                return
            self._received_at = trio.current_time()
            try:
                self._receive(message)
            except CarrierLost as error:
                lost = error
            if self.ended or lost:
                nursery.cancel_scope.cancel()

        async def read() -> None:
            nonlocal lost
            try:
                await carrier.deliver(take)
            except CarrierLost as error:
                lost = lost or error
            nursery.cancel_scope.cancel()

        async def write() -> None:
            nonlocal lost
            try:
                while True:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    while self._out:
                        await carrier.send(self._out.take())
                    if self.leaving and not self._slots:
                        break
            except CarrierLost as error:
                lost = error
            nursery.cancel_scope.cancel()

        self._received_at = trio.current_time()
        self._send(self._host.hello())
        self.place()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(write)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._send_late_beats)
        if lost is not None:
            raise lost

    def close(self) -> None:
        """End the carrier in good order; what still has a slot loses it."""
        (self._scope if self._open else self._dialing).cancel()

    async def _watch(self) -> None:
        """A silent node is dead; a node must hear of running tasks (R82)."""
        with trio.move_on_after(WELCOME_SECONDS):
            await self._welcomed.wait()
        if self.welcome is None:
            log.warning("%s sent no welcome", self.url)
            self.close()
            return
        interval = max(self.welcome.ping_interval_ms, 1) / 1000
        while True:
            await trio.sleep(interval)
            if trio.current_time() - self._received_at > SILENT_INTERVALS * interval:
                log.warning("%s is silent, the connection is given up", self.url)
                self.close()
                return
            if any(lane.state is LaneState.BUSY for lane in self._slots.values()):
                self._send(Pong())

    # -- sending ----------------------------------------------------------------------------

    def _send(self, frame: Frame) -> None:
        """Everything that is sent in one turn of the loop goes into one message."""
        if not self.ended:
            self._out.put(frame)
            self._wake.set()

    # -- what the worker wants --------------------------------------------------------------

    def place(self) -> float | None:
        """Open slots for lanes that have none and may try; seconds until the next one may."""
        if self.ended or self.leaving or self._host.stopping:
            return None
        now = trio.current_time()
        later: float | None = None
        for lane in self._lanes:
            if lane.state is not LaneState.UNPLACED:
                continue
            if lane.retry_at > now:
                wait = lane.retry_at - now
                later = wait if later is None else min(later, wait)
                continue
            lane.state, lane.connection, lane.slot = LaneState.OPENING, self, self._next_slot
            self._slots[lane.slot] = lane
            self._next_slot += 1
            self._send(Open(slot=lane.slot, kind=lane.kind))
        return later

    def half_close(self, lane: Lane) -> None:
        """Nothing more is sent on the lane's slot. A task that is on its way is not run (R77)."""
        lane.state = LaneState.CLOSING
        self._send(HalfClose(slot=lane.slot))

    def reset(self, lane: Lane, reason: str) -> None:
        """The lane's handler may have done anything (R79)."""
        lane.state = LaneState.CLOSING
        self._send(Reset(slot=lane.slot, reason=reason))

    def finish(self, lane: Lane, ended: Ended) -> None:
        """Send the end of the lane's attempt."""
        self._send_beat(lane)
        lane.state = LaneState.SETTLING
        payload = ended.output if ended.output is not None else ended.failure
        problem = self._out.problem(payload or b"")
        if problem is not None:
            failure = {"message": f"The output cannot be sent: {problem}.", "type": "OutputTooLarge"}
            ended = Ended(failure=_encoder.encode({**failure, "non_retryable": True}))
        self._send(
            Output(
                slot=lane.slot,
                attempt_id=lane.attempt_id,
                output=msgspec.UNSET if ended.output is None else msgspec.Raw(ended.output),
                failure=msgspec.UNSET if ended.failure is None else msgspec.Raw(ended.failure),
            )
        )

    def heartbeat(self, lane: Lane, attempt: Attempt, checkpoint: bytes | None) -> None:
        """Of heartbeats that come fast the last one counts, a little later.

        Raises ValueError for a checkpoint that the node would not take.
        """
        if lane.attempt is not attempt or lane.state is not LaneState.BUSY:
            return
        problem = None if checkpoint is None else self._out.problem(checkpoint)
        if problem is not None:
            raise ValueError(f"the checkpoint cannot be sent: {problem}")
        value = msgspec.UNSET if checkpoint is None else msgspec.Raw(checkpoint)
        lane.beat = Heartbeat(slot=lane.slot, attempt_id=lane.attempt_id, checkpoint=value)
        if trio.current_time() - lane.beat_at >= BEAT_SECONDS:
            self._send_beat(lane)
        else:
            self._beaten.set()

    def _send_beat(self, lane: Lane) -> None:
        if lane.beat is not None:
            self._send(lane.beat)
            lane.beat, lane.beat_at = None, trio.current_time()

    async def _send_late_beats(self) -> None:
        while True:
            await self._beaten.wait()
            await trio.sleep(BEAT_SECONDS)
            self._beaten = trio.Event()
            for lane in self._slots.values():
                self._send_beat(lane)

    # -- what the node says -----------------------------------------------------------------

    def _receive(self, message: bytes) -> None:
        try:
            frames = _decoder.decode(message)
        except msgspec.DecodeError as error:
            raise CarrierLost(f"the node sent what is no message: {error}") from error
        for frame in frames:
            match frame:
                # The frequent ones first.
                case Task(slot=slot) | Confirmed(slot=slot):
                    self._receive_for(slot, frame)
                case Ping(nonce=nonce):
                    self._send(Pong(nonce=nonce))
                case Welcome():
                    self.welcome, self._out.limits = frame, frame.limits
                    self._welcomed.set()
                    self._changed()
                    self._host.welcomed(frame)
                case Reconnect(reason=reason):
                    log.info("%s sends its workers elsewhere: %s", self.url, reason)
                    self.leaving = True
                    self._changed()
                    self._wake.set()
                case Rejected(slot=None):
                    self._refused(frame)
                case Error(slot=msgspec.UNSET):
                    raise CarrierLost(f"the node ended the connection: {frame.message} ({frame.reason})")
                case Error():
                    log.warning("%s did not obey a frame: %s (%s)", self.url, frame.message, frame.reason)
                case Rejected(slot=slot) | Registered(slot=slot) | Cancel(slot=slot) | Closed(slot=slot):
                    self._receive_for(slot, frame)

    def _receive_for(
        self, slot: int | None, frame: Registered | Rejected | Task | Confirmed | Cancel | Closed
    ) -> None:
        lane = self._slots.get(slot or 0)
        if lane is None:
            return
        match frame:
            case Task() if lane.state is LaneState.IDLE and not self._host.stopping:
                self._task(lane, frame)
            case Confirmed() if lane.state is LaneState.SETTLING and frame.attempt_id == lane.attempt_id:
                if not frame.accepted:
                    log.info("the end of attempt %s was not accepted: %s", frame.attempt_id, frame.reason)
                lane.state = LaneState.IDLE
                self._host.changed(lane)
            case Registered():
                self._registered(lane)
            case Rejected():
                self._slot_over(lane, "the slot was refused")
                self._reject(lane, frame)
            case Cancel() if lane.attempt is not None and frame.attempt_id == lane.attempt_id:
                lane.attempt.cancel(frame.reason)
            case Closed():
                self._slot_over(lane, f"its slot was closed: {frame.reason.value}")
            case _:
                pass

    def _registered(self, lane: Lane) -> None:
        lane.registered = self.registered_any = True
        lane.rejections = 0
        if lane.state is LaneState.OPENING:
            lane.state = LaneState.IDLE
        self._host.registered(lane)
        self._host.changed(lane)

    def _task(self, lane: Lane, frame: Task) -> None:
        try:
            body = read_task(frame.task)
        except msgspec.DecodeError as error:
            raise CarrierLost(f"the node sent what is no task: {error}") from error
        lane.attempt_id, lane.beat, lane.beat_at = body.attempt_id, None, -BEAT_SECONDS
        job = self._host.job(body)
        if job is None:
            lane.state = LaneState.SETTLING
            reason = DeclineReason.UNSUPPORTED
            self._send(Decline(slot=lane.slot, attempt_id=body.attempt_id, reason=reason))
            return
        lane.state = LaneState.BUSY
        self._host.start(lane, job, Attempt(partial(self.heartbeat, lane)))

    def _refused(self, frame: Rejected) -> None:
        for lane in list(self._slots.values()):
            self._slot_over(lane, "the worker was refused")
            self._reject(lane, frame)
        raise CarrierLost(f"the node refused the worker: {frame.message} ({frame.reason})")

    def _reject(self, lane: Lane, frame: Rejected) -> None:
        after = 0.0 if isinstance(frame.retry_after_ms, msgspec.UnsetType) else frame.retry_after_ms / 1000
        lane.rejections += 1
        lane.retry_at = trio.current_time() + max(after, pause_before(lane.rejections))
        log.warning("%s refused a slot: %s (%s)", self.url, frame.message, frame.reason)
        self._host.rejected(lane.kind, StreamRejected(frame.reason, frame.message), frame.permanent)

    def _slot_over(self, lane: Lane, why: str) -> None:
        """The lane has no slot any more; an attempt that ran on it is somebody else's now."""
        self._slots.pop(lane.slot, None)
        lane.connection = None
        if lane.attempt is not None:
            lane.state = LaneState.ORPHANED
            lane.attempt.cancel(why)
        else:
            lane.state = LaneState.UNPLACED
        if lane.registered:
            lane.registered = False
            self._host.unregistered(lane)
        self._host.changed(lane)
        self._wake.set()
