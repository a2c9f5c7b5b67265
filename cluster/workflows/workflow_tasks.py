"""Workflow tasks: one at a time, each replays the history and answers with commands.

::

                 ┌────────────── wake ──────────────┐
                 ▼                                  │
    none ──► ready ──► leased ──► completed / released (nothing to do yet)
               ▲          │
               ├── lapse ─┤  same index, attempt + 1
               │          ▼
               └────── back-off (the worker could not replay: 1, 2, 4 ... 60 s)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from cluster.errors import Refused
from cluster.ids import TaskId, TaskKind
from cluster.workflows import (
    activities,
    attributes,
    children,
    closing,
    deadlines,
    groups,
    limits,
    local_activities,
    races,
    retry,
    timers,
    waits,
)
from cluster.workflows.changes import Arm, Changes, Disarm, DropTask, ReadyWorkflowTask, Requeue
from cluster.workflows.command_records import (
    GROUPED,
    STEPLESS,
    CancelSelectionOperation,
    Command,
    CompleteUpdate,
    FailUpdate,
    OpenConditionWait,
    RecordLocalActivity,
    RecordSideEffect,
    RecordVersionMarker,
    ScheduleActivity,
    StartChildWorkflow,
    StartTimer,
    UpsertMemo,
    UpsertSearchAttributes,
)
from cluster.workflows.commands import is_terminal
from cluster.workflows.decision import Decision, untouched
from cluster.workflows.events import EventType
from cluster.workflows.failures import arguments, envelope
from cluster.workflows.kept_histories import forgotten
from cluster.workflows.limits import Limits
from cluster.workflows.names import RUN_TIMER, TASK_TIMER
from cluster.workflows.records import KeptHistory, Lease, OpenUpdate, Run, RunStatus

UPDATE_TRIES: Final = 3
"""So many workflow tasks may leave their update unanswered before it fails."""

WAITING_FOR_HISTORY: Final = "WorkflowTaskWaitingForHistory"
"""Failure type by which the SDK says that there is nothing to do before something new happens."""

LAPSED: Final = "expired_workflow_task_lease"
MAX_STEP_GAP: Final = 1000
"""Steps a parallel group may leave out before it. The SDK counts some commands that take no step."""


def complete_workflow_task(
    run: Run,
    lease: Lease,
    commands: Sequence[Command],
    now_us: int,
    structural: Limits,
    partitions: int = 1,
    kept: KeptHistory | None = None,
) -> Changes:
    """Applies a batch: all non-terminal commands in order, then the terminal one wherever it stood.

    ``partitions`` is the cluster's number of them (children live in their parent's), ``kept`` the
    history that the worker keeps, if it does. The caller has
    checked the sender. Raises Refused (nothing is applied) for two terminal commands, an answer to an
    update that is not open, a group that does not fit and a structural limit. When a deadline of the
    run has passed, the run times out and ``refusal`` is set.
    """
    if deadlines.run_reached(run.info, now_us // 1000) is not None:
        changes = closing.run_deadline(run, lease, now_us, structural)
        changes.refusal = _refused(run, lease, "run_timed_out", "The run timed out.", changes)
        return changes
    terminal = [command for command in commands if is_terminal(command)]
    if len(terminal) > 1:
        text = "A workflow task may hold at most one command that ends the run."
        raise _refused(run, lease, "invalid_commands", text)
    _check_updates(run, lease, commands)
    decision = Decision(run, now_us)
    decision.set(
        task_open=False,
        task_update=None,
        task_failures=0,
        last_task_failure=None,
        resume={},
        status=RunStatus.WAITING,
        signals=run.state.pending_signals,
        kept=kept,
    )
    decision.effects.append(DropTask(lease.task_id))
    try:
        limits.check_batch(structural, commands)
        _apply(decision, run, lease, commands, structural, partitions)
        limits.check_attributes(structural, decision.info)
        limits.check_transaction(structural, len(decision.events) + len(terminal))
    except limits.LimitReached as refusal:
        raise _with_task(refusal, run, lease) from None
    _count_unanswered(decision, run.state.task_update, lease.task_id)
    pending_timers = [decision.timer_id(step) for step, timer in decision.timers.items() if timer is not None]
    if terminal:
        closing.close_by_command(decision, terminal[0], lease.task_id)
        pending_timers = []
    else:
        decision.release()
        if limits.is_too_long(structural, decision.history_length):
            # Closing looks at everything that is open; the run's timer does, at once.
            decision.arm(RUN_TIMER, decision.now_ms)
    decision.settle()
    return decision.changes(
        {
            "task_id": lease.task_id,
            "workflow_task_attempt": lease.attempt,
            "outcome": "completed",
            "recorded": True,
            "run_id": run.info.run_id,
            "run_status": decision.state.status.value,
            "created_task_ids": [*decision.created_task_ids(), *pending_timers],
            "reason": None,
        }
    )


def fail_workflow_task(run: Run, lease: Lease, failure: Mapping[str, Any], now_us: int) -> Changes:
    """The worker could not replay, or has nothing to do before something new happens.

    Neither fails the run. The first is tried again after a growing delay, for as long as the run
    lives; the second is a normal release.
    """
    decision = Decision(run, now_us)
    decision.effects.append(DropTask(lease.task_id))
    if failure.get("type") == WAITING_FOR_HISTORY:
        decision.set(
            task_open=False,
            task_update=None,
            task_failures=0,
            last_task_failure=None,
            resume={},
            status=RunStatus.WAITING,
            signals=run.state.pending_signals,
        )
        _count_unanswered(decision, run.state.task_update, lease.task_id)
        decision.release()
    else:
        decision.release()
        failures = run.state.task_failures + 1
        decision.set(
            task_waiting=True,
            task_attempt=lease.attempt + 1,
            task_failures=failures,
            last_task_failure=dict(failure),
            kept=forgotten(run.state.kept),
        )
        delay = retry.workflow_task_delay(failures)
        decision.effects.append(Arm(TASK_TIMER, decision.in_seconds(delay)))
    return decision.changes(
        {
            "task_id": lease.task_id,
            "workflow_task_attempt": lease.attempt,
            "outcome": "failed",
            "recorded": True,
            "reason": None,
            "next_task_id": None,
        }
    )


def workflow_task_lapsed(run: Run, lease: Lease, now_us: int, trigger: str = LAPSED) -> Changes:
    """The lease ran out, or is ended early (``trigger`` says why): the same task is ready again, and
    what came meanwhile joins the history."""
    if not is_open(run, lease.task_id) or run.state.task_waiting:
        return untouched(run, DropTask(lease.task_id))
    decision = Decision(run, now_us)
    decision.release()
    decision.record(
        EventType.REPAIR_REQUESTED,
        {
            "workflow_task_id": lease.task_id,
            "workflow_task_attempt": lease.attempt,
            "lease_owner": lease.owner,
            "metadata": {"trigger": trigger},
        },
    )
    decision.set(task_attempt=lease.attempt + 1, kept=forgotten(run.state.kept))
    decision.effects.append(Requeue(lease.task_id, lease.attempt + 1))
    return decision.changes()


def workflow_task_due(run: Run, now_us: int) -> Changes:
    """The back-off of a failed workflow task is over."""
    if not (run.state.task_open and run.state.task_waiting):
        return untouched(run, Disarm(TASK_TIMER))
    decision = Decision(run, now_us)
    decision.set(task_waiting=False)
    decision.effects.append(Disarm(TASK_TIMER))
    decision.effects.append(ReadyWorkflowTask(run.state.task_index, run.state.task_attempt))
    return decision.changes()


def is_open(run: Run, task_id: str) -> bool:
    """Whether ``task_id`` is the run's open workflow task."""
    newest = str(TaskId(run.info.run_id, TaskKind.WORKFLOW, run.state.task_index))
    return run.state.task_open and task_id == newest


def _check_updates(run: Run, lease: Lease, commands: Sequence[Command]) -> None:
    """Each answer names an open update, and none is answered twice."""
    open_updates = {f"{run.info.run_id}-u{update.number}" for update in run.state.updates}
    for command in commands:
        if isinstance(command, (CompleteUpdate, FailUpdate)):
            if command.update_id not in open_updates:
                text = f"The update {command.update_id!r} is not open."
                raise _refused(run, lease, "invalid_commands", text)
            open_updates.remove(command.update_id)


def _count_unanswered(decision: Decision, update_id: str | None, task_id: str) -> None:
    """A worker that leaves the update of its task unanswered may try again, but not for ever."""
    updates = decision.state.updates
    update = next((update for update in updates if decision.update_id(update.number) == update_id), None)
    if update is None:
        return
    if update.tries + 1 >= UPDATE_TRIES:
        failure = {"message": "No worker answered the update.", "exception_type": "UpdateNotAnswered"}
        decision.end_update(update, failure=failure, workflow_task_id=task_id)
        return
    # It goes to the end of the queue, so that it cannot hold up the others.
    rest = tuple(other for other in updates if other is not update)
    decision.set(updates=(*rest, replace(update, tries=update.tries + 1)))


def _apply(
    decision: Decision,
    run: Run,
    lease: Lease,
    commands: Sequence[Command],
    structural: Limits,
    partitions: int,
) -> None:
    """Applies the non-terminal commands. What is over at once ends after the last one, so that the
    first of a group cannot look like the last."""
    if any(not isinstance(command, STEPLESS) for command in commands):
        waits.satisfy_all(decision, lease.task_id)
    over: list[Callable[[], None]] = []
    for command in commands:
        if is_terminal(command):
            continue
        if isinstance(command, STEPLESS):
            _apply_stepless(decision, run, command, lease.task_id)
            continue
        step = decision.state.next_step
        if isinstance(command, GROUPED):
            step = groups.step(command.group) or step
            if step < decision.state.next_step:
                continue
            if step > decision.state.next_step + MAX_STEP_GAP or step > groups.MAX_STEP:
                text = f"A parallel group gives sequence {step} where {decision.state.next_step} is next."
                raise _refused(run, lease, "invalid_commands", text)
        limits.check_room(structural, decision.state, command)
        decision.set(next_step=step + 1)
        later = _apply_step(decision, command, step, lease.task_id, partitions)
        if later is not None:
            over.append(later)
    for end in over:
        end()


def _apply_step(
    decision: Decision, command: Command, step: int, task_id: str, partitions: int
) -> Callable[[], None] | None:
    """Applies a command that takes a step; returns what ends it, when it is over at once."""
    match command:
        case ScheduleActivity():
            activities.schedule(decision, command, step, task_id)
        case StartTimer():
            timer = timers.start_timer(decision, command, step, task_id)
            if not timer.delay_seconds:
                return partial(timers.fire, decision, timer)
        case OpenConditionWait():
            wait = waits.open_wait(decision, command, step, task_id)
            if wait.timeout_seconds == 0:
                return partial(waits.time_out, decision, wait)
        case StartChildWorkflow():
            children.start_child(decision, command, step, task_id, partitions)
        case RecordLocalActivity():
            local_activities.schedule(decision, command, step, task_id)
            end = partial(local_activities.finish, decision, command, step, task_id)
            if command.group:
                return end
            end()
        case RecordSideEffect() | RecordVersionMarker():
            _mark(decision, command, step, task_id)
        case UpsertMemo():
            attributes.upsert_memo(decision, command, step, task_id)
        case UpsertSearchAttributes():
            attributes.upsert_search_attributes(decision, command, step, task_id)
        case _:
            raise AssertionError(f"{command} takes no step")
    return None


def _apply_stepless(decision: Decision, run: Run, command: Command, task_id: str) -> None:
    match command:
        case CompleteUpdate(update_id=update_id, result=result):
            update = _open_update(decision, update_id)
            kept = run.updates[update.number]
            applied = {"update_id": update_id, "update_name": update.name, **arguments(kept.arguments)}
            decision.record(EventType.UPDATE_APPLIED, applied, workflow_task_id=task_id)
            payload: dict[str, Any] = {"result": None}
            if result is not None:
                payload = {"result": envelope(result), "payload_codec": result.codec}
            decision.end_update(update, result=payload, workflow_task_id=task_id, wakes=True)
        case FailUpdate(update_id=update_id, failure=failure):
            update = _open_update(decision, update_id)
            decision.end_update(update, failure=failure, workflow_task_id=task_id, wakes=True)
        case CancelSelectionOperation():
            races.cancel_operation(decision, run, command, task_id)
        case _:
            raise AssertionError(f"{command} takes a step")


def _open_update(decision: Decision, update_id: str) -> OpenUpdate:
    updates = decision.state.updates
    return next(update for update in updates if decision.update_id(update.number) == update_id)


def _mark(
    decision: Decision, command: RecordSideEffect | RecordVersionMarker, step: int, task_id: str
) -> None:
    """Commands that only leave an event."""
    payload: dict[str, Any] = {"sequence": step}
    match command:
        case RecordSideEffect(result=result):
            event = EventType.SIDE_EFFECT_RECORDED
            payload["result"] = None if result is None else result.blob
            if result is not None:
                payload["payload_codec"] = result.codec
        case RecordVersionMarker():
            event = EventType.VERSION_MARKER_RECORDED
            payload |= {"change_id": command.change_id, "version": command.version}
            payload["min_supported"] = _or(command.min_supported, command.version)
            payload["max_supported"] = _or(command.max_supported, command.version)
    decision.record(event, payload, workflow_task_id=task_id)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _refused(run: Run, lease: Lease, reason: str, message: str, changes: Changes | None = None) -> Refused:
    state = run.state if changes is None else changes.state
    return Refused(
        reason,
        message,
        status=409,
        task_id=lease.task_id,
        workflow_task_attempt=lease.attempt,
        outcome="rejected",
        recorded=False,
        run_id=run.info.run_id,
        run_status=state.status.value,
        created_task_ids=[],
    )


def _with_task(refusal: limits.LimitReached, run: Run, lease: Lease) -> Refused:
    """The same refusal, with what every answer to a completion says."""
    shape = _refused(run, lease, refusal.reason, refusal.message).fields
    return Refused(refusal.reason, refusal.message, status=refusal.status, **{**shape, **refusal.fields})
