"""What a run that closes leaves behind: its timers and tasks, which go with it."""

from __future__ import annotations

from cluster.ids import TaskId, TaskKind
from cluster.workflows.changes import Disarm, DropTask, Effect
from cluster.workflows.names import RUN_TIMER, TASK_TIMER, activity_timer, timer_timer, wait_timer
from cluster.workflows.records import Run


def leftovers(run: Run) -> list[Effect]:
    """Takes away all that is stored of what ``run`` has open.

    Something that waits to be tried again has a timer and no task, else it is the other way round; an
    activity whose record was not read may have either.
    """
    state, run_id = run.state, run.info.run_id
    effects: list[Effect] = [Disarm(RUN_TIMER)]
    if state.task_open:
        task = str(TaskId(run_id, TaskKind.WORKFLOW, state.task_index))
        effects.append(Disarm(TASK_TIMER) if state.task_waiting else DropTask(task))
    for step in state.activities:
        activity = run.activities.get(step)
        if activity is None or activity.waiting:
            effects.append(Disarm(activity_timer(step)))
        if activity is None or not activity.waiting:
            effects.append(DropTask(str(TaskId(run_id, TaskKind.ACTIVITY, step))))
    effects += [Disarm(timer_timer(step)) for step in state.timers]
    effects += [Disarm(wait_timer(wait.step)) for wait in state.waits if wait.due_ms is not None]
    return effects
