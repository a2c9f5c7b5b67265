"""What a run lacks that it should have, and the decision that brings it back.

Nothing here happens while all is well: commits keep a run, its tasks and its timers together. It
is for what an operator asks to be looked at, and for a workflow task that backs off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.ids import TaskId, TaskKind
from cluster.workflows import deadlines
from cluster.workflows.changes import Arm, Changes, Disarm, ReadyActivityTask, ReadyWorkflowTask
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.kept_histories import forgotten
from cluster.workflows.names import RUN_TIMER, TASK_TIMER, activity_timer, timer_timer, wait_timer
from cluster.workflows.records import Lease, Run

TRIGGER = "repair_requested"


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """A task record: state "" means that there is none."""

    state: str
    expires_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """What the store has for a run: tasks by id, due times of timers by name (None: not set)."""

    now_ms: int
    tasks: Mapping[str, TaskFinding]
    timers: Mapping[str, int | None]

    def lapsed(self) -> list[str]:
        """Tasks whose lease ran out."""
        return [
            task_id
            for task_id, task in self.tasks.items()
            if task.state == "l" and task.expires_at_ms <= self.now_ms
        ]

    def due(self) -> dict[str, int]:
        """Timers whose time has come."""
        return {name: due for name, due in self.timers.items() if due is not None and due <= self.now_ms}


def expected_tasks(run: Run) -> list[str]:
    """Ids of the tasks that must have a record while the run is as it is."""
    state, run_id = run.state, run.info.run_id
    tasks = [
        str(TaskId(run_id, TaskKind.ACTIVITY, step))
        for step, activity in run.activities.items()
        if not activity.waiting
    ]
    if state.task_open and not state.task_waiting:
        tasks.append(str(TaskId(run_id, TaskKind.WORKFLOW, state.task_index)))
    return tasks


def expected_timers(run: Run) -> dict[str, int]:
    """Timers that must be set, and when they are due."""
    timers = {timer_timer(step): timer.fire_at_ms for step, timer in run.timers.items()}
    timers |= {wait_timer(wait.step): wait.due_ms for wait in run.state.waits if wait.due_ms}
    for step, activity in run.activities.items():
        if activity.waiting:
            timers[activity_timer(step)] = activity.ready_at_ms
    due = deadlines.run_due_ms(run.info)
    if due is not None:
        timers[RUN_TIMER] = due
    return timers


def missing_tasks(run: Run, found: Findings) -> list[str]:
    """Tasks without a record."""
    return [task_id for task_id in expected_tasks(run) if not found.tasks[task_id].state]


def missing_timers(run: Run, found: Findings) -> dict[str, int]:
    return {name: due for name, due in expected_timers(run).items() if found.timers[name] is None}


def backs_off(run: Run) -> bool:
    """Whether the open workflow task waits because it failed."""
    return run.state.task_waiting and run.state.task_failures > 0


def lacks(run: Run, found: Findings) -> bool:
    """Whether there is anything to mend."""
    return bool(missing_tasks(run, found) or missing_timers(run, found)) or backs_off(run)


def mend(
    run: Run,
    found: Findings,
    task_lease: Lease,
    now_us: int,
    command_id: str | None,
    context: Mapping[str, Any] | None = None,
) -> Changes | None:
    """Brings back what is missing, and ends the back-off of a failing workflow task.

    A workflow task that was never tried, because its run starts later, keeps waiting.

    None when the run is closed or lacks nothing. The caller has to make sure that ``found`` still
    holds when this is stored.
    """
    if run.state.status.closed:
        return None
    if not lacks(run, found):
        return None
    tasks, timers = missing_tasks(run, found), missing_timers(run, found)
    decision = Decision(run, now_us, task_lease)
    mended = list(_mend_tasks(decision, run, tasks))
    decision.set(kept=forgotten(run.state.kept))
    for name, due in timers.items():
        decision.effects.append(Arm(name, due))
    decision.record(
        EventType.REPAIR_REQUESTED,
        {
            "metadata": {"trigger": TRIGGER},
            "workflow_command_id": command_id,
            "task_ids": mended,
            "timers": sorted(timers),
        },
        workflow_command_id=command_id,
    )
    if command_id is not None:
        decision.log_command(command_id, "repair", context, outcome="repair_dispatched")
    return decision.changes({"existing": int(backs_off(run)), "missing": len(tasks) + len(timers)})


def _mend_tasks(decision: Decision, run: Run, missing: list[str]) -> Iterator[str]:
    state = run.state
    workflow_task = decision.workflow_task_id()
    if backs_off(run) or workflow_task in missing:
        if state.task_waiting:
            decision.set(task_waiting=False)
            decision.effects.append(Disarm(TASK_TIMER))
        decision.effects.append(ReadyWorkflowTask(state.task_index, state.task_attempt))
        yield workflow_task
    for step, activity in run.activities.items():
        task_id = decision.activity_id(step)
        if task_id in missing:
            decision.effects.append(ReadyActivityTask(activity))
            yield task_id
