"""Decisions about what workers say of a step attempt, and what time does to it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cluster.errors import Refused
from cluster.flows.changes import Arm, Changes, DropTask, ReturnTask, View
from cluster.flows.decision import Decision, StepEvent, step_timer
from cluster.flows.following import follow
from cluster.flows.limits import FlowLimits
from cluster.flows.records import (
    Condition,
    FlowStatus,
    Method,
    Phase,
    StepState,
)
from cluster.flows.retry import retry_delay_ms, return_pause_ms
from cluster.flows.wire import (
    DecisionFields,
    ExecuteOutput,
    Failure,
    NextStep,
    WaitOutput,
    read_output,
)
from cluster.times import due_after, milliseconds

LEASED: Final = "l"
STALE: Final = "stale"
FLOW_CLOSED: Final = "flow_closed"


class TimeoutKind(StrEnum):
    """Types of the failures that time makes."""

    METHOD = "MethodTimeout"
    HEARTBEAT = "HeartbeatTimeout"


class Attempt(msgspec.Struct, frozen=True):
    """One hand-out of a step attempt, as the one who ends it names it."""

    k: int
    method: Method
    attempt: int
    delivery: int
    worker: str
    session: str = ""
    """The node it was handed out by; "": any."""

    @property
    def details(self) -> dict[str, Any]:
        """What the step history keeps to recognise the hand-out."""
        return {"worker_id": self.worker, "delivery": self.delivery}


def complete_step(
    view: View, attempt: Attempt, output: bytes | dict[str, Any] | None, now_ms: int, limits: FlowLimits
) -> Changes:
    """A handler returned. Raises Refused (stale, flow_closed, or invalid_output and its like)."""
    step = current(view, attempt)
    if step.method is Method.WAIT_FOR:
        return _start_waiting(view, attempt, step, read_output(WaitOutput, output), now_ms, limits)
    executed = read_output(ExecuteOutput, output)
    changes = follow(view, step, attempt.worker, attempt.delivery, executed, now_ms, limits)
    if changes is not None:
        return changes
    return end_execute(view, attempt, step, executed, now_ms, limits)


def _start_waiting(
    view: View, attempt: Attempt, step: StepState, waiting: WaitOutput, now_ms: int, limits: FlowLimits
) -> Changes:
    decision = _begin(view, attempt, now_ms, limits)
    decision.effects.append(DropTask(step.k))
    decision.write(waiting.attributes)
    decision.publish(waiting.publish)
    decision.record(StepEvent.COMPLETED, step, **attempt.details)
    decision.release(f"s{step.k}")
    if decision.state.stop is not None:
        decision.end_step(step)
        return decision.changes()
    conditions = (
        Condition(
            id=item.id,
            due_ms=_due(now_ms, item.timer_seconds),
            channel=item.channel or "",
            count=item.count,
        )
        for item in waiting.conditions.items
    )
    decision.wait(step, waiting.conditions.mode, conditions)
    return decision.changes()


def end_execute(
    view: View, attempt: Attempt, step: StepState, executed: ExecuteOutput, now_ms: int, limits: FlowLimits
) -> Changes:
    """Do whatever an execute decided. Raises Refused, NotLoaded."""
    decision = _begin(view, attempt, now_ms, limits)
    decision.effects.append(DropTask(step.k))
    decision.write(executed.attributes)
    decision.publish(executed.publish)
    decision.end_step(step)
    opened: list[str] = []
    if decision.state.stop is None:
        opened = _decide(decision, step, executed.decision)
    details = attempt.details
    if opened:
        details["next"] = opened
    decision.record(StepEvent.COMPLETED, step, **details)
    return decision.changes()


def fail_step(
    view: View,
    attempt: Attempt,
    failure: Failure,
    now_ms: int,
    limits: FlowLimits,
    event: StepEvent = StepEvent.FAILED,
) -> Changes:
    """An attempt failed, or was lost and may have run: its policies decide. Raises Refused, NotLoaded."""
    step = current(view, attempt)
    task = view.known_task()
    decision = _begin(view, attempt, now_ms, limits)
    decision.effects.append(DropTask(step.k))
    _fail(decision, step, failure, event, task.leased_at_ms, task.checkpoint, attempt.details)
    return decision.changes()


def return_step(view: View, attempt: Attempt, excluded: str, now_ms: int, limits: FlowLimits) -> Changes:
    """A hand-out that did not run comes back. Raises Refused (stale, flow_closed), NotLoaded."""
    step = current(view, attempt)
    view.known_task()
    if view.run.state.stop is not None:
        decision = Decision(view, now_ms, limits)
        decision.cancel_step(step)
        return decision.changes()
    pause_ms = return_pause_ms(attempt.delivery + 1)
    due_ms = due_after(now_ms, pause_ms) if pause_ms else 0
    back = ReturnTask(step.k, attempt.attempt, attempt.delivery, excluded, due_ms)
    return Changes(view.run.state, effects=[back])


def step_due(view: View, k: int, now_ms: int, limits: FlowLimits) -> Changes:
    """The timer of an execution came due: a retry, a condition, or a timeout. Raises NotLoaded."""
    step = None if view.run.state.status.closed else view.step(k)
    if step is None:
        return Changes(view.run.state)
    decision = Decision(view, now_ms, limits)
    match step.phase:
        case Phase.BACKOFF if view.run.state.stop is not None:
            decision.cancel_step(step)
        case Phase.BACKOFF if step.ready_at_ms > now_ms:
            decision.effects.append(Arm(step_timer(k), step.ready_at_ms))
        case Phase.BACKOFF:
            decision.make_ready(step)
        case Phase.WAITING if view.run.state.stop is None:
            decision.look_at(k)
        case Phase.READY:
            return _timed_out(decision, step, limits)
        case _:
            pass
    return decision.changes()


def _timed_out(decision: Decision, step: StepState, limits: FlowLimits) -> Changes:
    view, now_ms = decision.view, decision.now_ms
    task = view.known_task()
    if task.state != LEASED:
        return Changes(view.run.state)
    options = step.options.of(step.method)
    method_due = due_after(task.leased_at_ms, options.timeout_ms)
    heartbeat_due = due_after(max(task.leased_at_ms, task.heartbeat_at_ms), options.heartbeat_ms)
    due = min(method_due, heartbeat_due)
    if due > now_ms:
        return Changes(view.run.state, effects=[Arm(step_timer(step.k), due)])
    kind = TimeoutKind.METHOD if method_due <= now_ms else TimeoutKind.HEARTBEAT
    text = {
        TimeoutKind.METHOD: f"The method did not end within {options.timeout_ms} ms.",
        TimeoutKind.HEARTBEAT: f"There was no heartbeat for {options.heartbeat_ms} ms.",
    }[kind]
    decision.effects.append(DropTask(step.k, told=True))
    failure = Failure(message=text, type=kind.value)
    details = {"worker_id": task.owner, "delivery": task.delivery}
    _fail(decision, step, failure, StepEvent.TIMED_OUT, task.leased_at_ms, task.checkpoint, details)
    return decision.changes()


def current(view: View, attempt: Attempt) -> StepState:
    """The execution whose present attempt ``attempt`` is. Raises Refused (stale, flow_closed)."""
    if view.run.state.status.closed:
        raise Refused(FLOW_CLOSED, "The flow is closed.")
    step = view.step(attempt.k)
    known = (
        step is not None
        and step.phase is Phase.READY
        and step.method is attempt.method
        and step.attempt == attempt.attempt
    )
    task = view.task
    if known and task is not None:
        hand_out = (task.state, task.attempt, task.delivery, task.owner)
        known = hand_out == (LEASED, attempt.attempt, attempt.delivery, attempt.worker)
        known = known and attempt.session in ("", task.session)
    if step is None or not known:
        raise Refused(STALE, "This hand-out is over.")
    return step


def _due(now_ms: int, seconds: float | None) -> int:
    """When the timer of a condition is due; 0 for a condition without one."""
    return 0 if seconds is None else due_after(now_ms, milliseconds(seconds))


def _begin(view: View, attempt: Attempt, now_ms: int, limits: FlowLimits) -> Decision:
    decision = Decision(view, now_ms, limits)
    decision.set(last_worker=attempt.worker)
    return decision


def _fail(
    decision: Decision,
    step: StepState,
    failure: Failure,
    event: StepEvent,
    leased_at_ms: int,
    checkpoint: bytes,
    details: dict[str, Any],
) -> None:
    shown = failure.shown() | {
        "step_execution_id": step.execution_id,
        "method": step.method.value,
        "attempt": step.attempt,
    }
    step = replace(
        step,
        first_attempt_at_ms=step.first_attempt_at_ms or leased_at_ms,
        last_failure=shown,
        checkpoint=checkpoint,
    )
    if decision.state.stop is not None:
        decision.record(event, step, failure=shown, **details)
        decision.end_step(step)
        return
    delay_ms = retry_delay_ms(step, failure, decision.now_ms)
    decision.record(event, step, failure=shown, retries=delay_ms is not None, **details)
    if delay_ms is not None:
        due_ms = due_after(decision.now_ms, delay_ms)
        again = replace(step, attempt=step.attempt + 1, phase=Phase.BACKOFF, ready_at_ms=due_ms)
        decision.steps[step.k] = again
        if delay_ms:
            decision.effects.append(Arm(step_timer(step.k), due_ms))
        else:
            decision.make_ready(again)
    elif step.method is Method.WAIT_FOR and step.options.proceed:
        decision.release(f"s{step.k}")
        decision.begin(replace(step, method=Method.EXECUTE, failure=shown))
    elif step.method is Method.EXECUTE and step.options.recovery:
        options = step.options.recovery_options
        decision.end_step(step)
        decision.open_step(
            step.options.recovery,
            step.input,
            type(step.options)() if options is None else options,
            parent=step.parent,
            failure=shown,
        )
    else:
        decision.close(FlowStatus.FAILED, "step_failed", failure=shown)


def _decide(decision: Decision, step: StepState, fields: DecisionFields) -> list[str]:
    """Do what an execute decided; ids of the executions it opened."""
    if fields.fail is not None:
        failure = {"message": fields.fail.message, "type": fields.fail.type or "FlowFailed"}
        decision.close(FlowStatus.FAILED, "decision", failure=failure)
        return []
    complete = bytes(fields.complete)
    if complete:
        decision.close(FlowStatus.COMPLETED, "decision", result=complete)
        return []
    if fields.cancel is not None:
        _cancel(decision, step, fields.cancel.step_types, fields.cancel.siblings)
    return open_steps(decision, fields.next, parent=step.k)


def open_steps(decision: Decision, steps: Iterable[NextStep], *, parent: int) -> list[str]:
    """Open executions; their ids. Raises LimitReached."""
    return [
        decision.open_step(each.step_type, each.input, each.options.read(), parent=parent).execution_id
        for each in steps
    ]


def _cancel(decision: Decision, step: StepState, step_types: Iterable[str], siblings: bool) -> None:
    wanted = frozenset(step_types)
    decision.view.need(decision.state.open)
    for k in decision.state.open:
        other = decision.step(k)
        if other is None:
            continue
        if other.step_type in wanted or (siblings and other.parent == step.parent):
            decision.cancel_step(other)
