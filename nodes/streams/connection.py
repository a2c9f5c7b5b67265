"""One connection of a worker: what its core reports is done, what the node decides is told.

Nothing here waits. The carrier hands messages in and is woken when there is something to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import trio

from cluster.flows.finishing import ResultKind, Verdict
from cluster.plain_numbers import number_problem
from cluster.queues.hand_outs import HandedOut
from cluster.queues.rpc_run import RpcEnd, RpcRun
from cluster.queues.slot_groups import Given, Slot
from cluster.queues.slot_kind import SlotKind
from cluster.queues.stream_workers import NameKind, Skills, StreamWorker, item
from cluster.store.keys import QueueName
from cluster.store.transaction import OpenSlot
from nodes.streams.codec import ProtocolError
from nodes.streams.core import (
    Beat,
    ConnectionCore,
    Ending,
    Event,
    Greeted,
    OpenAsked,
    Phase,
    SlotClosed,
    TaskEnded,
)
from nodes.streams.frames import CloseReason, Hello
from nodes.streams.registration import RegistrationRefused, read_skills
from nodes.streams.tasks import RunningStep, rpc_seconds, rpc_task, running_step, step_task

if TYPE_CHECKING:
    from nodes.streams.hub import StreamHub

REST_SECONDS: Final = 1.0
"""How long a worker that declined for want of capacity gets no steps."""
RETRY_AFTER_MS: Final = 1000
RPC_TIMED_OUT: Final = "rpc_timed_out"
"""Reason of a cancel: the caller was told the same."""

_STEP_ENDS: Final = {
    Ending.COMPLETED: ResultKind.COMPLETED,
    Ending.FAILED: ResultKind.FAILED,
    Ending.DECLINED: ResultKind.DECLINED,
    Ending.NO_CAPACITY: ResultKind.RETURNED,
    Ending.RETURNED: ResultKind.RETURNED,
    Ending.LOST: ResultKind.LOST,
}
_RPC_ENDS: Final = {
    Ending.COMPLETED: RpcEnd.COMPLETED,
    Ending.FAILED: RpcEnd.FAILED,
    Ending.DECLINED: RpcEnd.UNSUPPORTED,
    Ending.NO_CAPACITY: RpcEnd.RETURNED,
    Ending.RETURNED: RpcEnd.RETURNED,
    Ending.LOST: RpcEnd.LOST,
}


@dataclass(slots=True, eq=False)
class _Open:
    """A registered slot and what runs on it."""

    connection: Connection
    number: int
    slot: Slot
    step: RunningStep | None = None
    rpc: RpcRun | None = None
    released: bool = False
    """No stream any more, though the end of its task may still have to be settled."""

    def takes(self, queue: QueueName, step_type: str) -> OpenSlot | None:
        """Itself, if it gets free and may be given a step of its flow without a claim."""
        return None if self.released else self.connection.open_slot(self, queue, step_type)


class Connection:
    """Belongs to a hub; ``name`` is for logs."""

    def __init__(self, hub: StreamHub, namespace: str, name: str, max_bytes: int) -> None:
        self.core = ConnectionCore(max_bytes)
        self.namespace = namespace
        self.name = name
        self.last_received = self.last_sent = self.opened = trio.current_time()
        self.last_ping = 0.0
        self.sending_since: float | None = None
        """When the message began that the carrier has not taken yet."""
        self.silent_pings = 0
        self.output = trio.Event()
        """Set when there is something to send, or nothing more will be."""
        self._hub = hub
        self._worker: StreamWorker | None = None
        self._skills = Skills(())
        self._open: dict[int, _Open] = {}
        self._rpcs_end: dict[int, float] = {}
        """Slots whose RPCs run, and when (trio's clock) nobody waits for them any more."""

    @property
    def finished(self) -> bool:
        """Whether the node may end the carrier once everything is sent."""
        left = self.core.phase is Phase.LEAVING and not self.core.open_slots
        return self.core.failure is not None or left

    # -- what the carrier says --------------------------------------------------------------

    def received(self, message: bytes | str) -> None:
        """A message came."""
        self.last_received = trio.current_time()
        self.silent_pings = 0
        self._obey(self.core.receive(message))

    def ended(self) -> None:
        """The carrier is gone."""
        for opened in self._open.values():
            self._release(opened)
        self._obey(self.core.end())

    # -- what the hub says ------------------------------------------------------------------

    def ping(self, nonce: str) -> None:
        self.core.ping(nonce)
        self.wake()

    def leave(self, reason: str) -> None:
        """Direct the worker to another node (R78)."""
        self._obey(self.core.leave(reason))

    def fail(self, error: ProtocolError) -> None:
        self.core.fail(error)
        self.wake()

    def cut_slots(self, reason: CloseReason) -> None:
        """Close every slot; what runs may have run, and its end is still reported."""
        for number, opened in list(self._open.items()):
            if opened.step is not None and not self.core.is_settling(number):
                self._hub.settle(opened.step.result(ResultKind.LOST), opened.step, _ignore)
            if opened.rpc is not None and not self.core.is_settling(number):
                opened.rpc.ended(RpcEnd.LOST, None)
            self.core.cut(number, reason)
            self._forget(number)
        self.wake()

    def cancel(self, step: RunningStep, reason: str) -> None:
        """Ask the worker to stop an attempt, if it still runs here."""
        for number, opened in self._open.items():
            if opened.step is step:
                self.core.cancel(number, step.attempt_id, reason)
                self.wake()

    def cancel_late_rpcs(self, now: float) -> None:
        """Ask the worker to stop the RPCs whose time was over at ``now`` (trio's clock): a handler that hangs
        would keep its slot for ever.
        """
        for number in [number for number, end in self._rpcs_end.items() if now >= end]:
            del self._rpcs_end[number]
            run = self._open[number].rpc
            if run is not None:
                self.core.cancel(number, run.rpc_id, RPC_TIMED_OUT)
                self.wake()

    # -- events -----------------------------------------------------------------------------

    def _obey(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Greeted(hello):
                    self._greet(hello)
                case OpenAsked(number, kind):
                    self._register(number, kind)
                case TaskEnded():
                    self._task_ended(event)
                case Beat(number, _, checkpoint):
                    self._beat(number, checkpoint)
                case SlotClosed(number):
                    self._forget(number)
                case _:
                    assert_never(event)
        self.wake()

    def _greet(self, hello: Hello) -> None:
        matching = self._hub.matching
        try:
            self._skills = read_skills(hello, matching)
        except RegistrationRefused as refusal:
            self.core.reject(None, "invalid_registration", str(refusal), permanent=True)
            self.core.fail(ProtocolError("invalid_registration", str(refusal)))
            return
        self._worker = self._hub.worker(self.namespace, hello.worker_id)
        self.core.welcome(
            session=self._hub.session(),
            connection=self.name,
            namespace=self.namespace,
            max_concurrent_tasks=matching.max_concurrent_tasks_cap,
            ping_ms=int(matching.ping_interval * 1000),
        )
        if self._hub.leaving:
            # Everybody else was told before this one was known.
            self.leave("node_leaving")

    def _register(self, number: int, kind: SlotKind) -> None:
        worker = self._worker
        if worker is None:
            # It is refused as a whole, and was told so.
            return
        refusal = self._hub.refusal(worker)
        if refusal is not None:
            self.core.reject(number, *refusal, permanent=False, retry_after_ms=RETRY_AFTER_MS)
        elif self.core.register(number):
            slot = Slot(
                worker, self._skills, kind, partial(self._give, number), partial(self._give_rpc, number)
            )
            self._open[number] = _Open(self, number, slot)
            self._hub.opened(slot)

    def _forget(self, number: int) -> None:
        opened = self._open.pop(number, None)
        self._rpcs_end.pop(number, None)
        if opened is not None:
            self._release(opened)

    def _release(self, opened: _Open) -> None:
        if not opened.released:
            opened.released = True
            self._hub.closed(opened.slot)

    # -- tasks ------------------------------------------------------------------------------

    def open_slot(self, opened: _Open, queue: QueueName, step_type: str) -> OpenSlot | None:
        """A slot whose task was reported and waits to be settled, if a step of the same flow may follow."""
        worker = opened.slot.worker
        # A worker that never rested, as nearly all, spares us the look at the clock.
        rests = worker.rests_until and worker.rests_until > trio.current_time()
        if rests or not self.core.gets_free(opened.number):
            return None
        if not worker.supports(self._skills, NameKind.STEP, queue.queue, step_type):
            return None
        return self._hub.matcher.open_slot(opened.slot, queue)

    def _give(self, number: int, claim: HandedOut) -> Given:
        opened = self._open.get(number)
        if opened is None:
            return Given.GONE
        worker = opened.slot.worker
        step = running_step(claim, worker.worker_id, self._hub.session())
        if not worker.supports(self._skills, NameKind.STEP, step.flow_type, step.step_type):
            return Given.UNFIT
        if not self.core.hand_out(number, step.attempt_id, step_task(claim, step)):
            return Given.GONE
        opened.step = step
        self._hub.started(self, step)
        self.wake()
        return Given.TAKEN

    def _give_rpc(self, number: int, run: RpcRun) -> Given:
        opened = self._open.get(number)
        if opened is None:
            return Given.GONE
        if not opened.slot.worker.supports(self._skills, NameKind.RPC, run.flow_type, run.name):
            return Given.UNFIT
        if not self.core.hand_out(number, run.rpc_id, rpc_task(run)):
            return Given.GONE
        opened.rpc = run
        seconds = rpc_seconds(run)
        if seconds:
            self._rpcs_end[number] = trio.current_time() + seconds
        self.wake()
        return Given.TAKEN

    def _beat(self, number: int, checkpoint: bytes | None) -> None:
        opened = self._open.get(number)
        problem = number_problem(checkpoint) if checkpoint is not None else None
        if problem is not None:
            self.core.complain(number, "invalid_payload", f"The checkpoint is not valid: {problem}.")
        elif opened is not None and opened.step is not None:
            self._hub.beats.beat(opened.step, checkpoint)

    def _task_ended(self, event: TaskEnded) -> None:
        opened = self._open.get(event.slot)
        if opened is None:
            return
        worker = opened.slot.worker
        if event.ending in (Ending.RETURNED, Ending.LOST):
            self._release(opened)
        if opened.rpc is not None:
            run, opened.rpc = opened.rpc, None
            self._rpcs_end.pop(event.slot, None)
            if event.ending is Ending.DECLINED:
                self._hub.declines.declined(worker, item(NameKind.RPC, run.flow_type, run.name))
            run.ended(_RPC_ENDS[event.ending], event.payload)
            self._confirmed(event.slot, Verdict(True))
        elif opened.step is not None:
            step = opened.step
            if event.ending is Ending.DECLINED:
                self._hub.declines.declined(worker, item(NameKind.STEP, step.flow_type, step.step_type))
            elif event.ending is Ending.NO_CAPACITY:
                worker.rests_until = trio.current_time() + REST_SECONDS
                self._hub.capacity_declines += 1
            completed = event.ending is Ending.COMPLETED
            result = step.result(
                _STEP_ENDS[event.ending],
                output=event.payload if completed else None,
                failure=event.payload if event.ending is Ending.FAILED else None,
                taker=opened if completed else None,
            )
            self._hub.settle(result, step, partial(self._settled, event.slot, completed))

    def _settled(self, number: int, completed: bool, verdict: Verdict) -> None:
        opened = self._open.get(number)
        if opened is None:
            # Its slots were cut meanwhile.
            if verdict.handed_out is not None and self._worker is not None:
                self._hub.give_back(verdict.handed_out, self._worker.worker_id)
            return
        opened.step = None
        if completed and verdict.accepted:
            self._hub.declines.completed(opened.slot.worker)
        self._confirmed(number, verdict)

    def _confirmed(self, number: int, verdict: Verdict) -> None:
        opened, following = self._open[number], verdict.handed_out
        free = self.core.confirm(number, verdict.accepted, verdict.reason)
        if free and following is not None:
            self._hub.matcher.hand_over(opened.slot, following)
        elif free:
            self._hub.matcher.free(opened.slot)
        else:
            if following is not None:
                self._hub.give_back(following, opened.slot.worker.worker_id)
            self._forget(number)
        self.wake()

    def wake(self) -> None:
        """Let the carrier look, if there is something to send or nothing more will be: what most messages
        cause is known only once it is durable.
        """
        if self.core.unsent_bytes or self.finished:
            self.output.set()


def _ignore(_verdict: Verdict) -> None:
    """The slot is gone; nobody is told."""
