"""What a workflow does to the losers of a race: it may cancel an operation it no longer wants."""

from __future__ import annotations

from cluster.workflows import activities, children, groups, waits
from cluster.workflows.changes import Disarm
from cluster.workflows.command_records import CancelSelectionOperation
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.names import timer_timer
from cluster.workflows.records import Run


def steps_to_cancel(run: Run, base: int, size: int) -> list[int]:
    """Steps of the open operations in a member's range."""
    state = run.state
    steps = (*state.activities, *state.timers, *state.children, *(wait.step for wait in state.waits))
    return sorted(step for step in steps if base <= step < base + size)


def cancel_operation(decision: Decision, run: Run, command: CancelSelectionOperation, task_id: str) -> None:
    """Ends what is still open of a member of a race; nothing when it is over already."""
    state = decision.state
    covered = range(command.base, command.base + command.size)
    found = False
    for wait in state.waits:
        if wait.step in covered and groups.is_race(wait.group):
            waits.withdraw(decision, wait)
            decision.leave_race(wait.group)
            found = True
    for step in covered:
        activity, timer, child = run.activities.get(step), run.timers.get(step), run.children.get(step)
        if step in state.activities and activity is not None and groups.is_race(activity.group):
            activities.withdraw(decision, activity)
            decision.leave_race(activity.group)
            found = True
        if step in state.timers and timer is not None and groups.is_race(timer.group):
            decision.end_timer(timer)
            decision.effects.append(Disarm(timer_timer(step)))
            decision.leave_race(timer.group)
            found = True
        if step in state.children and child is not None and groups.is_race(child.group):
            children.withdraw(decision, child)
            decision.leave_race(child.group)
            found = True
    if found:
        decision.record(
            EventType.SELECTION_OPERATION_CANCELLED, command.fields, wakes=True, workflow_task_id=task_id
        )
