"""Durable timers: the server fires them, no worker is needed."""

from __future__ import annotations

from typing import Any

from cluster.times import iso_ms
from cluster.workflows.changes import Changes, Disarm
from cluster.workflows.commands import StartTimer
from cluster.workflows.decision import Decision, untouched
from cluster.workflows.events import EventType
from cluster.workflows.names import timer_timer
from cluster.workflows.records import Lease, Run, TimerState


def start_timer(decision: Decision, command: StartTimer, step: int, task_id: str) -> TimerState:
    """Opens a timer. One without a delay is not armed: the caller fires it in the same decision."""
    timer = TimerState(
        step=step,
        delay_seconds=command.delay_seconds,
        fire_at_ms=decision.in_seconds(command.delay_seconds),
        group=command.group,
    )
    decision.open_timer(timer)
    payload = _identity(decision, timer) | {"fire_at": iso_ms(timer.fire_at_ms)}
    decision.record(EventType.TIMER_SCHEDULED, payload, workflow_task_id=task_id)
    if command.delay_seconds:
        decision.arm(timer_timer(step), timer.fire_at_ms)
    return timer


def fire(decision: Decision, timer: TimerState) -> None:
    """Ends an open timer."""
    decision.end_timer(timer)
    payload = _identity(decision, timer) | {"fired_at": iso_ms(decision.now_ms)}
    decision.end(timer.group, EventType.TIMER_FIRED, payload)


def cancelled_payload(decision: Decision, timer: TimerState) -> dict[str, Any]:
    """Payload of the event that says that an open timer was cancelled with its run."""
    return _identity(decision, timer) | {"cancelled_at": iso_ms(decision.now_ms)}


def timer_due(run: Run, step: int, task_lease: Lease, now_us: int) -> Changes:
    """The stored timer of ``start_timer`` came due."""
    timer = run.timers.get(step)
    name = timer_timer(step)
    if run.state.status.closed or timer is None:
        return untouched(run, Disarm(name))
    decision = Decision(run, now_us, task_lease)
    if timer.fire_at_ms > decision.now_ms:
        decision.arm(name, timer.fire_at_ms)
        return untouched(run, *decision.effects)
    decision.effects.append(Disarm(name))
    fire(decision, timer)
    return decision.changes()


def _identity(decision: Decision, timer: TimerState) -> dict[str, Any]:
    """What every event of a timer carries."""
    return {
        "timer_id": decision.timer_id(timer.step),
        "sequence": timer.step,
        "delay_seconds": timer.delay_seconds,
        **timer.group,
    }
