"""Collects what one decision does to a run.

Three rules of sdk-wire 4.8 live here, so no decision can break them:

* *Freezing.* While the workflow task is leased its worker sees a fixed history. Events that come
  then wait in a list of their own and are appended, in order, when the lease is over.
* *One workflow task.* An event that wakes the run opens a workflow task only when none is open. A
  ready one needs nothing (the history is read at the hand-out), one that backs off keeps backing
  off, and a leased one is followed by another when a waking event is pending. A task is either an
  ordinary one or for one accepted update; the two kinds take turns.
* *Closed is closed.* Closing throws away all effects and leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cluster.errors import Refused
from cluster.ids import TaskId, TaskKind
from cluster.times import iso_us
from cluster.workflows import contests, groups
from cluster.workflows.changes import (
    Arm,
    Changes,
    ChildOver,
    CloseChild,
    Disarm,
    Effect,
    NewRun,
    ReadyActivityTask,
    ReadyWorkflowTask,
)
from cluster.workflows.deadlines import LEASED, due_in
from cluster.workflows.dropping import leftovers
from cluster.workflows.events import EventType, event_id, pending_event_id, resume_context, update_context
from cluster.workflows.names import command_entry
from cluster.workflows.records import (
    ActivityState,
    ChildState,
    Lease,
    OpenUpdate,
    Payload,
    PendingEvent,
    Run,
    RunStatus,
    TimerState,
    UpdateState,
)
from cluster.workflows.update_ends import cut_off, update_ended


class Decision:
    """One decision about ``run`` at ``now_us``; ``task_lease`` is the open workflow task's record."""

    def __init__(self, run: Run, now_us: int, task_lease: Lease | None = None) -> None:
        self.info = run.info
        self.state = run.state
        self.now_us = now_us
        self.now_ms = now_us // 1000
        self.frozen = run.state.task_open and task_lease is not None and task_lease.state == LEASED
        self.events: list[PendingEvent] = []
        self.buffered: list[PendingEvent] = []
        self.releases = 0
        self.tail: list[PendingEvent] = []
        self.activities: dict[int, ActivityState | None] = {}
        self.timers: dict[int, TimerState | None] = {}
        self.children: dict[int, ChildState | None] = {}
        self.updates: dict[int, UpdateState | None] = {}
        self.effects: list[Effect] = []
        self.starts: list[NewRun] = []
        self.signals_to: str | None = None
        self.report: ChildOver | None = None
        self.receipts: dict[str, dict[str, Any]] = {}
        self._run = run
        self._cause: dict[str, Any] | None = None

    def in_seconds(self, seconds: int) -> int:
        """The millisecond at which ``seconds`` from now are over: never before, so it is rounded up."""
        return due_in(self.now_us, seconds)

    # -- names ------------------------------------------------------------------------------

    def workflow_task_id(self) -> str:
        """The id of the newest workflow task."""
        return str(TaskId(self.info.run_id, TaskKind.WORKFLOW, self.state.task_index))

    def activity_id(self, step: int) -> str:
        """The id of an activity execution, which is also that of its task."""
        return str(TaskId(self.info.run_id, TaskKind.ACTIVITY, step))

    def timer_id(self, step: int) -> str:
        return f"{self.info.run_id}-t{step}"

    def wait_id(self, step: int) -> str:
        return f"{self.info.run_id}-q{step}"

    def update_id(self, number: int) -> str:
        return f"{self.info.run_id}-u{number}"

    def child_call_id(self, step: int) -> str:
        return f"{self.info.run_id}-k{step}"

    # -- state and events -------------------------------------------------------------------

    def set(self, **fields: Any) -> None:
        """Changes fields of the run's state."""
        self.state = replace(self.state, **fields)

    def set_info(self, **fields: Any) -> None:
        """Changes facts of the run: memo or search attributes."""
        self.info = replace(self.info, **fields)

    def record(
        self,
        event_type: EventType,
        payload: Mapping[str, Any],
        *,
        wakes: bool = False,
        workflow_task_id: str | None = None,
        workflow_command_id: str | None = None,
    ) -> str:
        """Appends an event, or keeps it pending while the history is frozen; returns its id."""
        event = PendingEvent(
            event_type=event_type.value,
            payload=dict(payload),
            recorded_at_us=self.now_us,
            wakes=wakes,
            workflow_task_id=workflow_task_id,
            workflow_command_id=workflow_command_id,
        )
        context = resume_context(event) if wakes else None
        if self.frozen:
            self.buffered.append(event)
            self.set(pending=self.state.pending + 1, buffered=self.state.buffered + 1)
            if self.state.pending_wake is None:
                self.set(pending_wake=context)
            return pending_event_id(self.info.run_id, self.state.buffered)
        (self.tail if self.releases else self.events).append(event)
        if self._cause is None:
            self._cause = context
        return event_id(self.info.run_id, self.history_length)

    @property
    def history_length(self) -> int:
        """Events in the history so far."""
        return self._run.state.history_length + len(self.events) + self.releases + len(self.tail)

    def release(self) -> None:
        """Ends the freezing: what is pending goes to the history."""
        self.frozen = False
        self.releases += self.state.pending
        if self._cause is None:
            self._cause = self.state.pending_wake
        self.set(pending=0, pending_wake=None, pending_signals=0)

    def hand_over(self, following: NewRun) -> None:
        """Begins the next run of this workflow id; pending signals go there instead of here."""
        self.starts.append(following)
        self.signals_to = following.info.run_id
        self.frozen = False
        self.releases += self.state.pending - self.state.pending_signals
        self.set(pending=0, pending_wake=None, pending_signals=0)

    def command_id(self) -> str:
        """Counts one more client command; returns its id."""
        self.set(commands=self.state.commands + 1)
        return f"{self.info.run_id}-m{self.state.commands}"

    def log_command(
        self, command_id: str, kind: str, context: Mapping[str, Any] | None, **fields: Any
    ) -> None:
        """Keeps, beside the run, who asked for a command; nothing when no client did."""
        if context is not None:
            kept = {"type": kind, "accepted_at": iso_us(self.now_us), **fields, "context": dict(context)}
            self.receipts[command_entry(command_id)] = kept

    # -- open items -------------------------------------------------------------------------

    def open_activity(self, activity: ActivityState) -> None:
        self.activities[activity.step] = activity
        self.set(activities=(*self.state.activities, activity.step))
        self.begin(activity.group)

    def open_timer(self, timer: TimerState) -> None:
        self.timers[timer.step] = timer
        self.set(timers=(*self.state.timers, timer.step))
        self.begin(timer.group)

    def open_child(self, child: ChildState) -> None:
        self.children[child.step] = child
        self.set(children=(*self.state.children, child.step))
        self.begin(child.group)

    def end_activity(self, activity: ActivityState) -> None:
        """Takes an activity off the open ones."""
        self.activities[activity.step] = None
        self.set(activities=_without(self.state.activities, activity.step))

    def end_timer(self, timer: TimerState) -> None:
        """Takes a timer off the open ones."""
        self.timers[timer.step] = None
        self.set(timers=_without(self.state.timers, timer.step))

    def end_child(self, child: ChildState) -> None:
        """Takes a child off the open ones."""
        self.children[child.step] = None
        self.set(children=_without(self.state.children, child.step))

    def begin(self, group: Mapping[str, Any]) -> None:
        """Counts one more unresolved member of a group, if it is one."""
        if groups.is_race(group):
            self.set(races=contests.entered(self.state.races, group))
        else:
            self.set(groups=groups.opened(self.state.groups, group))

    def end(
        self,
        group: Mapping[str, Any],
        event_type: EventType,
        payload: Mapping[str, Any],
        *,
        failed: bool = False,
        wakes: bool = True,
        workflow_task_id: str | None = None,
    ) -> None:
        """Writes the last event of an operation. It wakes the run, if ``wakes``, unless other members
        of its group are not over; in a race it may be the one that decides."""
        if groups.is_race(group):
            self._end_contender(group, event_type, payload, failed=failed, workflow_task_id=workflow_task_id)
            return
        left, over = groups.resolved(self.state.groups, group)
        self.set(groups=left)
        self.record(event_type, payload, wakes=over and wakes, workflow_task_id=workflow_task_id)

    def _end_contender(
        self,
        group: Mapping[str, Any],
        event_type: EventType,
        payload: Mapping[str, Any],
        *,
        failed: bool,
        workflow_task_id: str | None,
    ) -> None:
        over, decides = contests.ends(self.state.races, group, failed=failed)
        event = self.record(event_type, payload, wakes=over or decides, workflow_task_id=workflow_task_id)
        self.leave_race(group, resolved=decides)
        if decides:
            resolved = contests.resolution(group, event_type, payload, event, failed=failed)
            self.record(EventType.SELECTION_RESOLVED, resolved, wakes=True)

    def leave_race(self, group: Mapping[str, Any], *, resolved: bool = False) -> None:
        """Counts one open member of a race less."""
        self.set(races=contests.left(self.state.races, group, resolved=resolved))

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
        workflow_command_id: str | None = None,
        continued: bool = False,
    ) -> None:
        """Ends the run: pending events, then the last event; everything open is dropped.

        Accepted updates fail, children meet their close policy. ``continued`` says that another run
        goes on under this workflow id, so that the parent is not told of an end.
        """
        self.release()
        for update in self.state.updates:
            self.end_update(update, failure=cut_off(reason))
        policies = self._meet_policies()
        self.record(
            event_type,
            payload,
            workflow_task_id=workflow_task_id,
            workflow_command_id=workflow_command_id,
        )
        stored = self._run.state
        self.effects = [*leftovers(self._run), *policies]
        self.activities = dict.fromkeys(stored.activities)
        self.timers = dict.fromkeys(stored.timers)
        self.children = dict.fromkeys(stored.children)
        if self.info.parent is not None and not continued:
            kind = "timed_out" if event_type is EventType.WORKFLOW_TIMED_OUT else status.value
            self.report = ChildOver(kind, self.info.run_id, dict(payload))
        self.set(
            status=status,
            closed_reason=reason,
            closed_at_us=self.now_us,
            task_open=False,
            task_waiting=False,
            task_update=None,
            resume={},
            kept=None,
            activities=(),
            timers=(),
            children=(),
            waits=(),
            updates=(),
            groups={},
            races={},
            signals=0,
        )

    def _meet_policies(self) -> list[Effect]:
        """What becomes of the children of a run that closes. One this decision starts is over at once:
        its run begins, and is closed like the others."""
        effects: list[Effect] = []
        for step in self.state.children:
            child = self.children.get(step) or self._run.children.get(step)
            if child is None or child.policy not in _VERBS:
                continue
            self.record(
                EventType.PARENT_CLOSE_POLICY_APPLIED,
                {
                    "sequence": step,
                    "child_call_id": self.child_call_id(step),
                    "child_workflow_instance_id": child.workflow_id,
                    "child_workflow_run_id": child.run_id,
                    "parent_close_policy": child.policy,
                },
            )
            effects.append(
                CloseChild(
                    child.workflow_id,
                    self.info.run_id,
                    _VERBS[child.policy],
                    "The parent workflow closed.",
                )
            )
        return effects

    def open_update(self, number: int, name: str, arguments: Payload | None) -> None:
        """Accepts an update; ``number`` is that of its command."""
        self.updates[number] = UpdateState(number=number, arguments=arguments)
        self.set(updates=(*self.state.updates, OpenUpdate(number=number, name=name)))

    def end_update(
        self,
        update: OpenUpdate,
        *,
        result: Mapping[str, Any] | None = None,
        failure: Mapping[str, Any] | None = None,
        workflow_task_id: str | None = None,
        wakes: bool = False,
    ) -> None:
        """Writes that an update is over and tells who waits for it."""
        number, update_id = update.number, self.update_id(update.number)
        self.updates[number] = None
        self.set(updates=tuple(other for other in self.state.updates if other.number != number))
        payload, receipt = update_ended(update_id, update.name, result, failure)
        self.record(EventType.UPDATE_COMPLETED, payload, workflow_task_id=workflow_task_id, wakes=wakes)
        self.receipts[f"u:{update_id}"] = receipt

    def open_workflow_task(
        self, resume: Mapping[str, Any] | None = None, update_id: str | None = None
    ) -> str:
        """Makes the next workflow task ready; returns its id."""
        self.set(
            task_index=self.state.task_index + 1,
            task_open=True,
            task_waiting=False,
            task_attempt=1,
            task_failures=0,
            last_task_failure=None,
            task_update=update_id,
            resume=dict(resume or {}),
        )
        self.effects.append(ReadyWorkflowTask(self.state.task_index))
        return self.workflow_task_id()

    def settle(self) -> str | None:
        """Opens a workflow task if something asks for one and none is open; its id if so.

        After an ordinary task the next accepted update has its turn, after an update's task an
        ordinary one, so neither kind can starve the other.
        """
        cause, self._cause = self._cause, None
        if self.state.task_open or self.state.status.closed:
            return None
        if self.info.standalone_activity is not None:  # no workflow code could look at it
            return None
        before = self._run.state.task_update if self._run.state.task_open else None
        if self.state.updates and before is None:
            update_id = self.update_id(self.state.updates[0].number)
            context = {**update_context(update_id), "workflow_update_id": update_id}
            return self.open_workflow_task(context, update_id)
        if cause is None and before is None:
            return None
        return self.open_workflow_task(cause)

    def changes(self, outcome: Mapping[str, object] | None = None, refusal: Refused | None = None) -> Changes:
        """The finished decision."""
        self.settle()
        self.set(history_length=self.history_length, last_progress_at_us=self.now_us)
        return Changes(
            state=self.state,
            events=self.events,
            buffered=self.buffered,
            releases=self.releases,
            tail=self.tail,
            activities=self.activities,
            timers=self.timers,
            children=self.children,
            updates=self.updates,
            effects=self.effects,
            outcome=dict(outcome or {}),
            closes=self.state.status.closed and not self._run.state.status.closed,
            refusal=refusal,
            info=None if self.info is self._run.info else self.info,
            starts=self.starts,
            signals_to=self.signals_to,
            report=self.report,
            receipts=self.receipts,
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


_VERBS = {"request_cancel": "cancel", "terminate": "terminate"}


def untouched(run: Run, *effects: Effect) -> Changes:
    """A decision that finds nothing to do."""
    return Changes(state=run.state, effects=list(effects))


def _without(steps: tuple[int, ...], step: int) -> tuple[int, ...]:
    return tuple(other for other in steps if other != step)
