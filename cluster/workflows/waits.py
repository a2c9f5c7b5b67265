"""Condition waits: opened by the workflow's code, over by a timeout or by the code moving on.

The server cannot evaluate a condition. The SDK does, on every wake, and answers with
``open_condition_wait`` again while it does not hold. So a wait is over, as satisfied, when a
workflow task is answered with anything that moves the code, whatever woke it; the repeated command
then opens a new one (sdk-wire 4.5). That and its timer change in one commit: a timeout of a closed
wait would turn the result of a later one.
"""

from __future__ import annotations

from typing import Any

from cluster.times import iso_ms
from cluster.workflows import groups
from cluster.workflows.changes import Changes, Disarm
from cluster.workflows.command_records import OpenConditionWait
from cluster.workflows.decision import Decision, untouched
from cluster.workflows.events import EventType
from cluster.workflows.names import wait_timer
from cluster.workflows.records import Lease, Run, WaitState


def open_wait(decision: Decision, command: OpenConditionWait, step: int, task_id: str) -> WaitState:
    """Opens a wait. One with a timeout of 0 is not armed: the caller ends it in the same decision."""
    timeout = command.timeout_seconds
    wait = WaitState(
        step=step,
        key=command.key,
        fingerprint=command.fingerprint,
        timeout_seconds=timeout,
        due_ms=None if timeout is None else decision.in_seconds(timeout),
        group=command.group,
    )
    decision.set(waits=(*decision.state.waits, wait))
    decision.begin(wait.group)
    payload = _identity(decision, wait)
    decision.record(EventType.CONDITION_WAIT_OPENED, payload, workflow_task_id=task_id)
    if wait.due_ms is not None:
        timer = _timer(decision, wait) | {"fire_at": iso_ms(wait.due_ms)}
        decision.record(EventType.TIMER_SCHEDULED, timer, workflow_task_id=task_id)
        if timeout:
            decision.arm(wait_timer(step), wait.due_ms)
    return wait


def satisfy_all(decision: Decision, task_id: str) -> None:
    """Ends every open wait that is no contender of a race, and its timer: the code moved on."""
    for wait in decision.state.waits:
        if groups.is_race(wait.group):
            continue
        _take_off(decision, wait)
        payload = _identity(decision, wait)
        decision.record(EventType.CONDITION_WAIT_SATISFIED, payload, workflow_task_id=task_id)


def time_out(decision: Decision, wait: WaitState) -> None:
    """Ends an open wait whose timeout has come."""
    _take_off(decision, wait)
    timer = _timer(decision, wait) | {"fired_at": iso_ms(decision.now_ms)}
    decision.record(EventType.TIMER_FIRED, timer)
    payload = _identity(decision, wait) | {"timer_id": timer["timer_id"]}
    decision.end(wait.group, EventType.CONDITION_WAIT_TIMED_OUT, payload)


def withdraw(decision: Decision, wait: WaitState) -> None:
    """Ends an open wait without an event: its operation was cancelled."""
    _take_off(decision, wait)


def wait_due(run: Run, step: int, task_lease: Lease, now_us: int) -> Changes:
    """The timer of an open wait came due."""
    name = wait_timer(step)
    wait = next((wait for wait in run.state.waits if wait.step == step), None)
    if run.state.status.closed or wait is None or wait.due_ms is None:
        return untouched(run, Disarm(name))
    decision = Decision(run, now_us, task_lease)
    if wait.due_ms > decision.now_ms:
        decision.arm(name, wait.due_ms)
        return untouched(run, *decision.effects)
    time_out(decision, wait)
    return decision.changes()


def _take_off(decision: Decision, wait: WaitState) -> None:
    decision.set(waits=tuple(other for other in decision.state.waits if other.step != wait.step))
    if wait.due_ms is not None:
        decision.effects.append(Disarm(wait_timer(wait.step)))


def _identity(decision: Decision, wait: WaitState) -> dict[str, Any]:
    """What every event of a wait carries; key and fingerprint only if the command had them."""
    optional = {
        "condition_key": wait.key,
        "condition_definition_fingerprint": wait.fingerprint,
        "timeout_seconds": wait.timeout_seconds,
    }
    return {
        "condition_wait_id": decision.wait_id(wait.step),
        "sequence": wait.step,
        **{name: value for name, value in optional.items() if value is not None},
        **wait.group,
    }


def _timer(decision: Decision, wait: WaitState) -> dict[str, Any]:
    """What the events of a wait's timeout timer carry; it is no step of the workflow's."""
    return {
        "timer_id": decision.timer_id(wait.step),
        "sequence": wait.step,
        "delay_seconds": wait.timeout_seconds,
        "timer_kind": "condition_timeout",
        "condition_wait_id": decision.wait_id(wait.step),
        **wait.group,
    }
