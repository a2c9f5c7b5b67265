"""How hand-outs of steps end, and what time does to flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
import orjson

from cluster.errors import ConditionFailed, Refused
from cluster.flows import machine
from cluster.flows.answers import FLOW_CLOSED, STALE, Attempt
from cluster.flows.changes import Changes, View
from cluster.flows.deciding import Done, FlowDecider, Job, run_not_found
from cluster.flows.decision import StepEvent, step_timer
from cluster.flows.planning import Taker, expect_method, give_back, timer_name
from cluster.flows.records import Method, Phase
from cluster.flows.retry import return_pause_ms
from cluster.flows.storage import Wants, load, step_task_id
from cluster.flows.wire import Failure, read_failure
from cluster.ids import TaskKind, parse_task_id, partition_of_run
from cluster.queues.hand_outs import HandedOut
from cluster.store.keys import encode
from cluster.store.transaction import Transaction
from cluster.times import due_after

RECENT: Final = 500
"""Entries of the step history that are searched for a result that comes again."""


class ResultKind(StrEnum):
    """How a hand-out ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    """It may have run: the retry policy decides."""
    RETURNED = "returned"
    """It did not run: the same attempt is handed out again."""
    DECLINED = "declined"
    """As returned, and never again to this worker: it does not know the step type."""


class StepResult(msgspec.Struct, frozen=True):
    """The end of one hand-out. ``session`` is the node that handed it out ("": any), ``taker`` the slot that
    gets free when the step is completed.
    """

    task_id: str
    attempt: int
    delivery: int
    method: str
    worker_id: str
    session: str
    kind: ResultKind
    output: bytes | dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    taker: Taker | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Whether a result was taken. A ``reason`` beside an accepted result never occurs.

    ``handed_out`` is the step that its slot has got; ``unsure``: it may have got one that nobody can name.
    """

    accepted: bool
    reason: str | None = None
    message: str = ""
    handed_out: HandedOut | None = None
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatVerdict:
    """``continue_``: the hand-out is still the current one. ``cancel_requested``: the flow is being
    stopped, and waits for this step.
    """

    continue_: bool
    cancel_requested: bool = False
    reason: str | None = None


_METHODS: Final = {method.value: method for method in Method}
_EVENTS: Final = {
    ResultKind.COMPLETED: StepEvent.COMPLETED,
    ResultKind.FAILED: StepEvent.FAILED,
    ResultKind.LOST: StepEvent.LOST,
}
_LOST: Final = Failure(message="The worker was lost while it may have run the attempt.", type="WorkerLost")


class Finishing(FlowDecider):
    """Takes the ends of hand-outs."""

    async def finish(self, results: Sequence[StepResult]) -> list[Verdict]:
        """End hand-outs, each on its own; the verdicts in order.

        A result that was accepted before is accepted again. An output that is not valid fails its
        attempt. Raises StoreError; then any of the results may have been taken, and all can be
        given again.
        """
        verdicts: list[Verdict | None] = [None] * len(results)
        jobs: list[Job] = []
        places: list[int] = []
        for place, result in enumerate(results):
            job = self._job(result)
            if job is None:
                verdicts[place] = Verdict(False, STALE, "There is no such task.")
            else:
                jobs.append(job)
                places.append(place)
        for place, outcome in zip(places, await self.decide_all(jobs), strict=True):
            if isinstance(outcome, Done):
                verdicts[place] = _verdict(outcome)
            else:
                verdicts[place] = await self._refused(results[place], outcome)
        return [verdict or Verdict(False, STALE) for verdict in verdicts]

    def _job(self, result: StepResult) -> Job | None:
        task = parse_task_id(result.task_id)
        if task is None or task.kind is not TaskKind.STEP or result.method not in _METHODS:
            return None
        method = _METHODS[result.method]
        attempt = Attempt(
            task.index, method, result.attempt, result.delivery, result.worker_id, result.session
        )
        excluded = result.worker_id if result.kind is ResultKind.DECLINED else ""

        def decide(view: View, now_ms: int) -> Changes:
            match result.kind:
                case ResultKind.COMPLETED:
                    return self._complete(view, attempt, result.output, now_ms)
                case ResultKind.FAILED:
                    failure = read_failure(result.failure)
                    return machine.fail_step(view, attempt, failure, now_ms, self._limits)
                case ResultKind.LOST:
                    return machine.fail_step(view, attempt, _LOST, now_ms, self._limits, StepEvent.LOST)
                case _:
                    return machine.return_step(view, attempt, excluded, now_ms, self._limits)

        def expect(tx: Transaction, _view: View | None = None) -> None:
            named = result.attempt, result.delivery, result.worker_id, result.session
            tx.expect_task(result.task_id, "l", *named)

        def returned(tx: Transaction) -> None:
            expect(tx)
            expect_method(tx, self._store.keys, result.task_id, method)
            tx.expect_unset(self._store.keys.run(tx.partition, task.run_id), "c")
            pause_ms = return_pause_ms(result.delivery + 1)
            due_ms = due_after(self._clock.now_ms(), pause_ms) if pause_ms else 0
            give_back(tx, result.task_id, result.attempt, result.delivery, encode(excluded), due_ms)
            tx.frees = True

        did_not_run = result.kind in (ResultKind.RETURNED, ResultKind.DECLINED)
        return Job(
            task.run_id,
            decide,
            expect,
            task=task.index,
            fresh=result.kind is not ResultKind.COMPLETED,
            outright=returned if did_not_run else None,
            taker=result.taker if result.kind is ResultKind.COMPLETED else None,
        )

    def _complete(
        self, view: View, attempt: Attempt, output: bytes | dict[str, Any] | None, now_ms: int
    ) -> Changes:
        try:
            return machine.complete_step(view, attempt, output, now_ms, self._limits)
        except Refused as refused:
            if refused.reason in (STALE, FLOW_CLOSED):
                raise
            failure = Failure(message=refused.message, type="InvalidOutput")
            changes = machine.fail_step(view, attempt, failure, now_ms, self._limits)
            changes.refusal = refused
            return changes

    async def _refused(self, result: StepResult, outcome: Refused) -> Verdict:
        if outcome.status == 404:
            return Verdict(False, STALE, outcome.message)
        if await self._was_accepted(result):
            # Whoever took it then may have filled the slot, and could not say so.
            return Verdict(True, unsure=result.taker is not None)
        return Verdict(False, outcome.reason, outcome.message)

    async def _was_accepted(self, result: StepResult) -> bool:
        """Whether the newest part of the step history has exactly this result."""
        task, event = parse_task_id(result.task_id), _EVENTS.get(result.kind)
        if task is None or event is None:
            return False
        key = self._store.keys.steps(partition_of_run(task.run_id) or 0, task.run_id)
        rows = await self._store.call("LRANGE", key, -RECENT, -1, idempotent=True)
        wanted = {
            "event": event.value,
            "k": task.index,
            "method": result.method,
            "attempt": result.attempt,
            "delivery": result.delivery,
            "worker_id": result.worker_id,
        }
        return any(wanted.items() <= _scalars(row).items() for row in reversed(rows))

    async def heartbeat(
        self,
        task_id: str,
        attempt: int,
        delivery: int,
        worker_id: str,
        checkpoint: bytes | None,
        *,
        keep_checkpoint: bool = False,
    ) -> HeartbeatVerdict:
        """A sign of life of a hand-out; moves its heartbeat timeout.

        The checkpoint (JSON) is given to the next attempt; None clears it unless it is to be kept.
        """
        task = parse_task_id(task_id)
        if task is None or task.kind is not TaskKind.STEP:
            return HeartbeatVerdict(False, reason=STALE)
        picture = await load(self._store, task.run_id, Wants(steps={task.index}, tasks={task.index}))
        if picture is None:
            return HeartbeatVerdict(False, reason=STALE)
        state, record = picture.run.state, picture.tasks[task.index]
        step = picture.run.steps.get(task.index)
        if step is None or step.phase is not Phase.READY:
            return HeartbeatVerdict(False, reason=FLOW_CLOSED if state.status.closed else STALE)
        partition = partition_of_run(task.run_id) or 0
        options = step.options.of(step.method)
        tx = Transaction(partition, frees=True)
        tx.expect_task(task_id, "l", attempt, delivery, worker_id)
        expect_method(tx, self._store.keys, task_id, step.method)
        key = self._store.keys.task(partition, task_id)
        tx.hset(key, {"hb": picture.now_ms})
        if checkpoint is not None:
            tx.hset(key, {"pg": checkpoint})
        elif not keep_checkpoint:
            tx.hdel(key, ["pg"])
        due_ms = min(
            due_after(record.leased_at_ms, options.timeout_ms),
            due_after(picture.now_ms, options.heartbeat_ms),
        )
        tx.arm(timer_name(task.run_id, step_timer(task.index)), due_ms)
        try:
            await self._store.commit(tx)
        except ConditionFailed:
            return HeartbeatVerdict(False, reason=STALE)
        return HeartbeatVerdict(True, cancel_requested=state.stop is not None)

    async def timer_due(self, timer: str, due_ms: int) -> None:
        """Do what a timer of a flow stands for, if it is still set and due. Safe on any node."""
        _, run_id, name = timer.split(" ", 2)
        kind = name[0]
        k = int(name[1:]) if kind == "s" else 0

        def decide(view: View, now_ms: int) -> Changes:
            # The store found it due, whatever this node's estimate of the time says.
            now_ms = max(now_ms, due_ms)
            match kind:
                case "s":
                    return machine.step_due(view, k, now_ms, self._limits)
                case "r":
                    return machine.flow_due(view, now_ms, self._limits)
                case "z":
                    return machine.settle_stop(view, now_ms, self._limits)
                case _:
                    return machine.end_rpc(view, name[1:], now_ms, self._limits)

        def expect(tx: Transaction, view: View) -> None:
            tx.expect_due(timer, due_ms)
            tx.disarm(timer)
            if view.task is not None:
                task_id = step_task_id(run_id, k)
                if view.task.state:
                    tx.expect_task(task_id, view.task.state, view.task.attempt, view.task.delivery)
                else:
                    tx.expect_task_state(task_id, "")

        try:
            await self.decide(Job(run_id, decide, expect, task=k, fresh=True, moot="due"))
        except Refused as refused:
            if refused.reason != run_not_found(run_id).reason:
                raise
            tx = Transaction(partition_of_run(run_id) or 0, frees=True)
            tx.disarm(timer)
            await self._store.commit(tx)


def _verdict(outcome: Done) -> Verdict:
    refusal = outcome.changes.refusal if outcome.changes else None
    if refusal is None:
        return Verdict(True, handed_out=outcome.handed_out, unsure=outcome.unsure)
    return Verdict(False, refusal.reason, refusal.message)


def _scalars(row: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = orjson.loads(row)
    return {name: value for name, value in entry.items() if isinstance(value, str | int)}
