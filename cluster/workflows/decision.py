"""Collects what one decision does to a run.

Three rules of sdk-wire 4.8 live here, so no decision can break them:

* *Freezing.* While the workflow task is leased its worker sees a fixed history. Events that come
  then wait in ``RunState.pending`` and are appended, in order, when the lease is over.
* *One workflow task.* An event that wakes the run opens a workflow task only when none is open. A
  ready one needs nothing (the history is read at the hand-out), one that backs off keeps backing
  off, and a leased one is followed by another when a waking event is pending.
* *Closed is closed.* Closing throws away all effects and leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cluster.errors import Refused
from cluster.ids import TaskId, TaskKind
from cluster.workflows import groups
from cluster.workflows.changes import (
    Arm,
    Changes,
    Disarm,
    DropTask,
    Effect,
    ReadyActivityTask,
    ReadyWorkflowTask,
)
from cluster.workflows.deadlines import LEASED
from cluster.workflows.events import EventType, resume_context
from cluster.workflows.records import ActivityState, Lease, PendingEvent, Run, RunStatus, TimerState

RUN_TIMER = "r"
TASK_TIMER = "w"


def activity_timer(step: int) -> str:
    return f"a{step}"


def timer_timer(step: int) -> str:
    return f"t{step}"


class Decision:
    """One decision about ``run`` at ``now_us``; ``task_lease`` is the open workflow task's record."""

    def __init__(self, run: Run, now_us: int, task_lease: Lease | None = None) -> None:
        self.info = run.info
        self.state = run.state
        self.now_us = now_us
        self.now_ms = now_us // 1000
        self.frozen = run.state.task_open and task_lease is not None and task_lease.state == LEASED
        self.events: list[PendingEvent] = []
        self.activities: dict[int, ActivityState | None] = {}
        self.timers: dict[int, TimerState | None] = {}
        self.effects: list[Effect] = []
        self._run = run
        self._cause: PendingEvent | None = None

    # -- names ------------------------------------------------------------------------------

    def workflow_task_id(self) -> str:
        """The id of the newest workflow task."""
        return str(TaskId(self.info.run_id, TaskKind.WORKFLOW, self.state.task_index))

    def activity_id(self, step: int) -> str:
        """The id of an activity execution, which is also that of its task."""
        return str(TaskId(self.info.run_id, TaskKind.ACTIVITY, step))

    def timer_id(self, step: int) -> str:
        return f"{self.info.run_id}-t{step}"

    # -- state and events -------------------------------------------------------------------

    def set(self, **fields: Any) -> None:
        """Changes fields of the run's state."""
        self.state = replace(self.state, **fields)

    def record(
        self,
        event_type: EventType,
        payload: Mapping[str, Any],
        *,
        wakes: bool = False,
        workflow_task_id: str | None = None,
    ) -> PendingEvent:
        """Appends an event, or keeps it pending while the history is frozen."""
        event = PendingEvent(
            event_type=event_type.value,
            payload=dict(payload),
            recorded_at_us=self.now_us,
            wakes=wakes,
            workflow_task_id=workflow_task_id,
        )
        if self.frozen:
            self.set(pending=(*self.state.pending, event))
        else:
            self._append(event)
        return event

    def release(self) -> None:
        """Ends the freezing: what is pending goes to the history."""
        self.frozen = False
        for event in self.state.pending:
            self._append(event)
        self.set(pending=())

    def _append(self, event: PendingEvent) -> None:
        self.events.append(event)
        if event.wakes and self._cause is None:
            self._cause = event

    # -- open items -------------------------------------------------------------------------

    def open_activity(self, activity: ActivityState) -> None:
        self.activities[activity.step] = activity
        self.set(
            activities=(*self.state.activities, activity.step),
            groups=groups.opened(self.state.groups, activity.group),
        )

    def open_timer(self, timer: TimerState) -> None:
        self.timers[timer.step] = timer
        self.set(
            timers=(*self.state.timers, timer.step),
            groups=groups.opened(self.state.groups, timer.group),
        )

    def end_activity(self, activity: ActivityState) -> bool:
        """Takes an activity off the open ones; returns whether its end wakes the run."""
        self.activities[activity.step] = None
        left, wakes = groups.resolved(self.state.groups, activity.group)
        self.set(activities=_without(self.state.activities, activity.step), groups=left)
        return wakes

    def end_timer(self, timer: TimerState) -> bool:
        """Takes a timer off the open ones; returns whether its end wakes the run."""
        self.timers[timer.step] = None
        left, wakes = groups.resolved(self.state.groups, timer.group)
        self.set(timers=_without(self.state.timers, timer.step), groups=left)
        return wakes

    def arm(self, name: str, due_ms: int | None) -> None:
        """Sets a timer, or removes it when there is nothing to wait for."""
        self.effects.append(Disarm(name) if due_ms is None else Arm(name, due_ms))

    # -- ends -------------------------------------------------------------------------------

    def close(
        self,
        status: RunStatus,
        reason: str,
        event_type: EventType,
        payload: Mapping[str, Any],
        *,
        workflow_task_id: str | None = None,
    ) -> None:
        """Ends the run: pending events, then the last event; everything open is dropped."""
        self.release()
        self.record(event_type, payload, workflow_task_id=workflow_task_id)
        stored = self._run.state
        self.effects = [Disarm(RUN_TIMER)]
        if stored.task_open:
            task = str(TaskId(self.info.run_id, TaskKind.WORKFLOW, stored.task_index))
            self.effects.append(Disarm(TASK_TIMER) if stored.task_waiting else DropTask(task))
        for step in stored.activities:
            activity = self._run.activities.get(step)
            if activity is None or activity.waiting:
                self.effects.append(Disarm(activity_timer(step)))
            if activity is None or not activity.waiting:
                self.effects.append(DropTask(self.activity_id(step)))
        self.effects += [Disarm(timer_timer(step)) for step in stored.timers]
        self.activities = dict.fromkeys(stored.activities)
        self.timers = dict.fromkeys(stored.timers)
        self.set(
            status=status,
            closed_reason=reason,
            closed_at_us=self.now_us,
            task_open=False,
            task_waiting=False,
            resume={},
            activities=(),
            timers=(),
            groups={},
        )

    def open_workflow_task(self, resume: Mapping[str, Any] | None = None) -> str:
        """Makes the next workflow task ready; returns its id."""
        self.set(
            task_index=self.state.task_index + 1,
            task_open=True,
            task_waiting=False,
            task_attempt=1,
            task_failures=0,
            last_task_failure=None,
            resume=dict(resume or {}),
        )
        self.effects.append(ReadyWorkflowTask(self.state.task_index))
        return self.workflow_task_id()

    def settle(self) -> str | None:
        """Opens a workflow task if an appended event asks for one and none is open; its id if so."""
        cause, self._cause = self._cause, None
        if cause is None or self.state.task_open or self.state.status.closed:
            return None
        if self.info.standalone_activity is not None:  # no workflow code could look at it
            return None
        return self.open_workflow_task(resume_context(cause))

    def changes(self, outcome: Mapping[str, object] | None = None, refusal: Refused | None = None) -> Changes:
        """The finished decision."""
        self.settle()
        self.set(
            history_length=self._run.state.history_length + len(self.events),
            last_progress_at_us=self.now_us,
        )
        return Changes(
            state=self.state,
            events=self.events,
            activities=self.activities,
            timers=self.timers,
            effects=self.effects,
            outcome=dict(outcome or {}),
            closes=self.state.status.closed and not self._run.state.status.closed,
            refusal=refusal,
        )

    def created_task_ids(self) -> list[str]:
        """Ids of the activity, timer and workflow tasks this decision brought into being."""
        created: list[str] = []
        for effect in self.effects:
            match effect:
                case ReadyActivityTask(activity):
                    created.append(self.activity_id(activity.step))
                case ReadyWorkflowTask(index):
                    created.append(str(TaskId(self.info.run_id, TaskKind.WORKFLOW, index)))
                case _:
                    pass
        return created


def untouched(run: Run, *effects: Effect) -> Changes:
    """A decision that finds nothing to do."""
    return Changes(state=run.state, effects=list(effects))


def _without(steps: tuple[int, ...], step: int) -> tuple[int, ...]:
    return tuple(other for other in steps if other != step)
