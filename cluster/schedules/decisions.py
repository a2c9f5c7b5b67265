"""The rules of schedules. Pure: no clock, no randomness, no I/O.

Each function takes a schedule and what happened, and returns the :class:`Decision` to store in one
commit, together with the run it starts and the run it ends.

=============  ==========================  =====================================================
status         may                         leaves by
=============  ==========================  =====================================================
active         fire, drain its buffer      pause, delete, its last allowed run
paused         (skips triggers)            resume, delete
deleted        be created anew             its retention
=============  ==========================  =====================================================

A fire that comes late counts once; occurrences missed before the next one is computed are not made
up for. A backfill does that on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from cluster.errors import Refused
from cluster.schedules.occurrences import next_fire
from cluster.schedules.records import (
    Definition,
    EventType,
    Overlap,
    RecentAction,
    Schedule,
    ScheduleEvent,
    ScheduleState,
    Status,
)
from cluster.times import iso_seconds

RECENT_ACTIONS: Final = 10
LONGEST_BUFFER: Final = 1_000

NOT_TRIGGERABLE: Final = "status_not_triggerable"
EXHAUSTED: Final = "remaining_actions_exhausted"
OVERLAP_SKIP: Final = "overlap_policy_skip"
BUFFER_FULL: Final = "buffer_full"
ALREADY_STARTED: Final = "already_started"
MAX_RUNS_EXHAUSTED: Final = "max_runs_exhausted"

_BUFFERING: Final = (Overlap.BUFFER_ONE, Overlap.BUFFER_ALL)
_ENDING: Final = (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER)


class Cause(StrEnum):
    """Why a schedule is asked to act; the value is the outcome of an action that started."""

    DUE = "started"
    TRIGGER = "triggered"
    BACKFILL = "backfilled"
    DRAIN = "drained"


@dataclass(frozen=True, slots=True)
class NewRun:
    """The ids a run gets if the decision is to start one."""

    workflow_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Occasion:
    """One chance to act. ``previous_open`` says whether the schedule's latest run is open.

    ``overlap`` replaces the schedule's policy; ``context`` says who asked, for the history.
    """

    cause: Cause
    fire_ms: int
    now_ms: int
    previous_open: bool
    new_run: NewRun
    overlap: Overlap | None = None
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Decision:
    """A schedule after a decision, the events it adds and what else belongs into the commit."""

    definition: Definition
    state: ScheduleState
    events: list[ScheduleEvent] = field(default_factory=list)
    starts: NewRun | None = None
    ends_previous: Overlap | None = None
    buffers: bool = False
    """The fire waits for the previous run, which therefore must still be open when this is stored."""
    outcome: dict[str, Any] = field(default_factory=dict)

    def set(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)

    def record(
        self,
        event_type: EventType,
        now_ms: int,
        payload: Mapping[str, Any],
        context: Mapping[str, Any],
        run: NewRun | None = None,
    ) -> None:
        self.set(history_length=self.state.history_length + 1)
        self.events.append(
            ScheduleEvent(
                sequence=self.state.history_length,
                event_type=event_type.value,
                recorded_at_ms=now_ms,
                workflow_id=run.workflow_id if run else None,
                run_id=run.run_id if run else None,
                payload={**payload, "command_context": dict(context)},
            )
        )

    def plan_next(self, after_ms: int, now_ms: int) -> None:
        """Compute when the schedule fires next by itself."""
        fire_ms, due_ms = None, None
        if self.state.status is Status.ACTIVE:
            fire_ms, due_ms = next_fire(self.definition, after_ms, now_ms)
        self.set(next_fire_ms=fire_ms, next_due_ms=due_ms)

    def end(self, now_ms: int, reason: str, context: Mapping[str, Any]) -> None:
        self.set(
            status=Status.DELETED, deleted_at_ms=now_ms, next_fire_ms=None, next_due_ms=None, buffered=()
        )
        self.record(EventType.DELETED, now_ms, {"reason": reason}, context)


# -- what users do ------------------------------------------------------------------------------


def create(
    definition: Definition, old: Schedule | None, *, paused: bool, context: Mapping[str, Any]
) -> Decision:
    """A new schedule. A deleted one of the same name passes on its history.

    Raises Refused ``schedule_already_exists`` (409).
    """
    if old is not None and old.state.status is not Status.DELETED:
        raise Refused(
            "schedule_already_exists",
            f"Schedule {definition.schedule_id!r} already exists.",
            schedule_id=definition.schedule_id,
        )
    now_ms = definition.created_at_ms
    state = ScheduleState(
        remaining_actions=definition.max_runs,
        history_length=old.state.history_length if old else 0,
    )
    decision = Decision(definition, state)
    decision.record(EventType.CREATED, now_ms, _described(definition), context)
    if paused:
        _pause(decision, now_ms, definition.note, context)
    decision.plan_next(now_ms, now_ms)
    decision.outcome = {"schedule_id": definition.schedule_id, "outcome": "created"}
    return decision


def update(
    schedule: Schedule, changes: Mapping[str, Any], now_ms: int, context: Mapping[str, Any]
) -> Decision:
    """Replace fields of the definition; ``changes`` has those that were given."""
    definition = replace(schedule.definition, **changes, updated_at_ms=now_ms)
    decision = Decision(definition, schedule.state)
    if "max_runs" in changes:
        left = max(0, definition.max_runs - schedule.state.fires_count) if definition.max_runs else None
        decision.set(remaining_actions=left)
    decision.record(
        EventType.UPDATED, now_ms, {"changed": sorted(changes), **_described(definition)}, context
    )
    decision.plan_next(now_ms, now_ms)
    return _answered(decision, "updated")


def pause(schedule: Schedule, note: str | None, now_ms: int, context: Mapping[str, Any]) -> Decision:
    """Stop firing. Pausing a paused schedule is accepted."""
    decision = Decision(_noted(schedule.definition, note), schedule.state)
    _pause(decision, now_ms, note, context)
    return _answered(decision, "paused")


def resume(schedule: Schedule, note: str | None, now_ms: int, context: Mapping[str, Any]) -> Decision:
    """Fire again, from the next occurrence on. Raises Refused ``schedule_not_paused`` (409)."""
    if schedule.state.status is not Status.PAUSED:
        raise Refused(
            "schedule_not_paused",
            "Only a paused schedule can be resumed.",
            schedule_id=schedule.definition.schedule_id,
        )
    decision = Decision(_noted(schedule.definition, note), schedule.state)
    decision.set(status=Status.ACTIVE, paused_at_ms=None)
    decision.record(EventType.RESUMED, now_ms, {"note": note}, context)
    decision.plan_next(now_ms, now_ms)
    return _answered(decision, "resumed")


def delete(schedule: Schedule, now_ms: int, context: Mapping[str, Any]) -> Decision:
    """End the schedule; its runs go on, its history stays readable."""
    decision = Decision(schedule.definition, schedule.state)
    decision.end(now_ms, "deleted", context)
    return _answered(decision, "deleted")


def _pause(decision: Decision, now_ms: int, note: str | None, context: Mapping[str, Any]) -> None:
    decision.set(status=Status.PAUSED, paused_at_ms=now_ms, next_fire_ms=None, next_due_ms=None)
    decision.record(EventType.PAUSED, now_ms, {"note": note}, context)


def _noted(definition: Definition, note: str | None) -> Definition:
    return definition if note is None else replace(definition, note=note)


def _answered(decision: Decision, outcome: str) -> Decision:
    decision.outcome = {"schedule_id": decision.definition.schedule_id, "outcome": outcome}
    return decision


def _described(definition: Definition) -> dict[str, Any]:
    """What events keep of a definition: nothing of its payloads."""
    spec = definition.spec
    return {
        "spec": {
            "cron_expressions": list(spec.cron_expressions),
            "intervals": [{"every": i.every, "offset": i.offset} for i in spec.intervals],
            "timezone": spec.timezone,
        },
        "workflow_type": definition.action.workflow_type,
        "overlap_policy": definition.overlap_policy.value,
        "note": definition.note,
    }


# -- what schedules do --------------------------------------------------------------------------


def act(schedule: Schedule, occasion: Occasion) -> Decision:
    """Start, buffer or skip, as the overlap policy says. A due occurrence also moves on to the next."""
    decision = _advance(schedule, occasion)
    policy = occasion.overlap or schedule.definition.overlap_policy
    if occasion.cause is Cause.BACKFILL and policy in _BUFFERING:
        policy = Overlap.ALLOW_ALL
    if schedule.state.status is not Status.ACTIVE:
        return _skip(decision, occasion, NOT_TRIGGERABLE)
    if schedule.state.remaining_actions == 0:
        return _skip(decision, occasion, EXHAUSTED)
    if occasion.previous_open:
        if policy is Overlap.SKIP:
            return _skip(decision, occasion, OVERLAP_SKIP)
        if policy in _BUFFERING:
            return _buffer(decision, occasion, policy)
        if policy in _ENDING:
            decision.ends_previous = policy
    return _start(decision, occasion)


def drain(schedule: Schedule, occasion: Occasion) -> Decision | None:
    """The latest run may have closed: start the first fire that waited for it, if so."""
    state = schedule.state
    if state.status is not Status.ACTIVE or not state.buffered or occasion.previous_open:
        return None
    if state.remaining_actions == 0:
        decision = Decision(schedule.definition, replace(state, buffered=()))
        return _skip(decision, occasion, EXHAUSTED)
    return _start(_advance(schedule, occasion), occasion)


def fail(schedule: Schedule, occasion: Occasion, reason: str) -> Decision:
    """The start that ``act`` or ``drain`` asked for is impossible; the next occurrence is tried again."""
    decision = _advance(schedule, occasion)
    decision.set(failures_count=schedule.state.failures_count + 1)
    _remember(
        decision,
        RecentAction(outcome="failed", fire_ms=occasion.fire_ms, acted_at_ms=occasion.now_ms, reason=reason),
    )
    decision.record(EventType.SKIPPED, occasion.now_ms, {"reason": reason, "failed": True}, occasion.context)
    decision.outcome = {"outcome": "trigger_failed", "reason": reason}
    return decision


def already_started(schedule: Schedule, occasion: Occasion) -> Decision:
    """A run of this very occurrence exists: nothing is started twice."""
    return _skip(_advance(schedule, occasion), occasion, ALREADY_STARTED)


def _advance(schedule: Schedule, occasion: Occasion) -> Decision:
    """The occasion is used up, whatever comes of it."""
    decision = Decision(schedule.definition, schedule.state)
    if occasion.cause is Cause.DUE:
        decision.plan_next(occasion.fire_ms, occasion.now_ms)
    elif occasion.cause is Cause.DRAIN:
        decision.set(buffered=schedule.state.buffered[1:])
    return decision


def _skip(decision: Decision, occasion: Occasion, reason: str) -> Decision:
    decision.set(
        skipped_trigger_count=decision.state.skipped_trigger_count + 1,
        last_skip_reason=reason,
        last_skipped_at_ms=occasion.now_ms,
    )
    payload = {"reason": reason, "fire_time": iso_seconds(occasion.fire_ms)}
    decision.record(EventType.SKIPPED, occasion.now_ms, payload, occasion.context)
    decision.outcome = {"outcome": "skipped", "reason": reason}
    return decision


def _buffer(decision: Decision, occasion: Occasion, policy: Overlap) -> Decision:
    waiting = decision.state.buffered
    room = 1 if policy is Overlap.BUFFER_ONE else LONGEST_BUFFER
    if len(waiting) >= room:
        _skip(decision, occasion, BUFFER_FULL)
        text = f"{len(waiting)} fires wait already for the previous run to close."
        decision.outcome = {"outcome": BUFFER_FULL, "reason": text, "buffer_depth": len(waiting)}
        return decision
    decision.set(buffered=(*waiting, occasion.fire_ms))
    decision.buffers = True
    decision.outcome = {"outcome": "buffered", "buffer_depth": len(waiting) + 1}
    return decision


def _start(decision: Decision, occasion: Occasion) -> Decision:
    run, state = occasion.new_run, decision.state
    left = None if state.remaining_actions is None else state.remaining_actions - 1
    decision.starts = run
    decision.set(
        fires_count=state.fires_count + 1,
        remaining_actions=left,
        last_fired_ms=occasion.now_ms,
        latest_workflow_id=run.workflow_id,
        latest_run_id=run.run_id,
    )
    started = "started" if occasion.cause is Cause.TRIGGER else occasion.cause.value
    _remember(
        decision,
        RecentAction(
            outcome=started,
            fire_ms=occasion.fire_ms,
            acted_at_ms=occasion.now_ms,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
        ),
    )
    payload: dict[str, Any] = {"outcome": started, "fire_time": iso_seconds(occasion.fire_ms)}
    if decision.ends_previous is not None:
        payload["ended_previous"] = state.latest_workflow_id
    decision.record(EventType.TRIGGERED, occasion.now_ms, payload, occasion.context, run)
    if left == 0:
        decision.end(occasion.now_ms, MAX_RUNS_EXHAUSTED, occasion.context)
    decision.outcome = {"outcome": occasion.cause.value, "workflow_id": run.workflow_id, "run_id": run.run_id}
    return decision


def _remember(decision: Decision, action: RecentAction) -> None:
    recent = (*decision.state.recent_actions, action)[-RECENT_ACTIONS:]
    decision.set(recent_actions=recent)
