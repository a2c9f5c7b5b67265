"""What schedules decide: every cause in every status under every overlap policy (R09, R10, R14)."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster.errors import Refused
from cluster.schedules import decisions
from cluster.schedules.decisions import LONGEST_BUFFER, Cause, Decision, NewRun, Occasion
from cluster.schedules.records import (
    Action,
    Definition,
    Interval,
    Overlap,
    Schedule,
    ScheduleState,
    Spec,
    Status,
)

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
RUN = NewRun("wf", "run")
CONTEXT = {"caller": {"type": "test"}}


def definition(**fields: Any) -> Definition:
    given = Definition(
        namespace="default",
        schedule_id="s",
        spec=Spec(intervals=(Interval(every="PT1M"),)),
        action=Action(workflow_type="t"),
        created_at_ms=NOW_MS,
        updated_at_ms=NOW_MS,
    )
    return replace(given, **fields)


def schedule(state: ScheduleState | None = None, **fields: Any) -> Schedule:
    active = ScheduleState(next_fire_ms=NOW_MS, next_due_ms=NOW_MS)
    return Schedule(definition=definition(**fields), state=state or active, version=3)


def occasion(cause: Cause, *, open: bool = False, overlap: Overlap | None = None) -> Occasion:
    return Occasion(
        cause=cause,
        fire_ms=NOW_MS,
        now_ms=NOW_MS + 5,
        previous_open=open,
        new_run=RUN,
        overlap=overlap,
        context=CONTEXT,
    )


def kinds(decision: Decision) -> list[str]:
    return [event.event_type for event in decision.events]


ACTS = (Cause.DUE, Cause.TRIGGER, Cause.BACKFILL)


@pytest.mark.parametrize(
    ("cause", "status", "overlap", "open"), list(product(ACTS, Status, Overlap, (False, True)))
)
def test_the_whole_table(cause: Cause, status: Status, overlap: Overlap, open: bool) -> None:
    before = schedule(ScheduleState(status=status, next_fire_ms=NOW_MS, next_due_ms=NOW_MS))
    decision = decisions.act(before, occasion(cause, open=open, overlap=overlap))
    state = decision.state
    buffering = overlap in (Overlap.BUFFER_ONE, Overlap.BUFFER_ALL) and cause is not Cause.BACKFILL
    if status is not Status.ACTIVE:
        expected: tuple[str, str | None] = ("skipped", "status_not_triggerable")
    elif open and overlap is Overlap.SKIP:
        expected = ("skipped", "overlap_policy_skip")
    elif open and buffering:
        expected = ("buffered", None)
    else:
        expected = (cause.value, None)
    assert (decision.outcome["outcome"], decision.outcome.get("reason")) == expected
    started = expected[0] == cause.value
    assert decision.starts == (RUN if started else None)
    assert state.fires_count == started
    assert state.skipped_trigger_count == (expected[0] == "skipped")
    assert state.buffered == ((NOW_MS,) if expected[0] == "buffered" else ())
    assert decision.buffers == (expected[0] == "buffered")
    ends = started and open and overlap in (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER)
    assert decision.ends_previous == (overlap if ends else None)
    if started:
        assert (state.latest_workflow_id, state.latest_run_id) == ("wf", "run")
        assert kinds(decision) == ["ScheduleTriggered"]
        assert decision.events[0].payload["command_context"] == CONTEXT
    if cause is Cause.DUE:
        later = NOW_MS + MINUTE_MS if status is Status.ACTIVE else None
        assert (state.next_fire_ms, state.next_due_ms) == (later, later)
    else:
        assert (state.next_fire_ms, state.next_due_ms) == (NOW_MS, NOW_MS)
    assert [event.sequence for event in decision.events] == list(range(1, state.history_length + 1))


def test_buffer_one_holds_one_and_buffer_all_many() -> None:
    full = schedule(ScheduleState(buffered=(1,)))
    decision = decisions.act(full, occasion(Cause.TRIGGER, open=True, overlap=Overlap.BUFFER_ONE))
    assert (decision.outcome["outcome"], decision.outcome["buffer_depth"]) == ("buffer_full", 1)
    assert decision.state.last_skip_reason == "buffer_full"
    assert decision.state.buffered == (1,)
    assert not decision.buffers
    decision = decisions.act(full, occasion(Cause.TRIGGER, open=True, overlap=Overlap.BUFFER_ALL))
    assert decision.outcome == {"outcome": "buffered", "buffer_depth": 2}
    brimful = schedule(ScheduleState(buffered=tuple(range(LONGEST_BUFFER))))
    decision = decisions.act(brimful, occasion(Cause.DUE, open=True, overlap=Overlap.BUFFER_ALL))
    assert decision.outcome["outcome"] == "buffer_full"


def test_what_waits_is_drained_in_order_once_the_run_before_closed() -> None:
    waiting = schedule(ScheduleState(buffered=(1, 2)))
    assert decisions.drain(waiting, occasion(Cause.DRAIN, open=True)) is None
    assert decisions.drain(schedule(), occasion(Cause.DRAIN)) is None
    paused = schedule(ScheduleState(status=Status.PAUSED, buffered=(1,)))
    assert decisions.drain(paused, occasion(Cause.DRAIN)) is None
    decision = decisions.drain(waiting, occasion(Cause.DRAIN))
    assert decision is not None
    assert decision.starts == RUN
    assert decision.state.buffered == (2,)
    assert decision.state.recent_actions[-1].outcome == "drained"
    exhausted = schedule(ScheduleState(buffered=(1, 2), remaining_actions=0))
    decision = decisions.drain(exhausted, occasion(Cause.DRAIN))
    assert decision is not None
    assert (decision.state.buffered, decision.state.last_skip_reason) == ((), "remaining_actions_exhausted")


def test_the_last_run_ends_the_schedule() -> None:
    last = schedule(ScheduleState(remaining_actions=1, buffered=(1,)))
    decision = decisions.act(last, occasion(Cause.TRIGGER))
    assert decision.starts == RUN
    assert decision.state.status is Status.DELETED
    assert (decision.state.next_due_ms, decision.state.buffered) == (None, ())
    assert kinds(decision) == ["ScheduleTriggered", "ScheduleDeleted"]
    assert decision.events[1].payload["reason"] == "max_runs_exhausted"
    none_left = schedule(ScheduleState(remaining_actions=0))
    decision = decisions.act(none_left, occasion(Cause.DUE))
    assert (decision.starts, decision.outcome["reason"]) == (None, "remaining_actions_exhausted")


@pytest.mark.parametrize("cause", list(Cause))
def test_a_start_that_fails_is_counted_and_the_next_is_tried(cause: Cause) -> None:
    before = schedule(ScheduleState(next_fire_ms=NOW_MS, next_due_ms=NOW_MS, buffered=(7, 8)))
    decision = decisions.fail(before, occasion(cause), "too large")
    state = decision.state
    assert (state.failures_count, state.fires_count) == (1, 0)
    assert (state.recent_actions[-1].outcome, state.recent_actions[-1].reason) == ("failed", "too large")
    assert decision.outcome == {"outcome": "trigger_failed", "reason": "too large"}
    assert state.next_due_ms == (NOW_MS + MINUTE_MS if cause is Cause.DUE else NOW_MS)
    assert state.buffered == ((8,) if cause is Cause.DRAIN else (7, 8))


@pytest.mark.parametrize("cause", list(Cause))
def test_an_occurrence_that_was_started_is_passed_over(cause: Cause) -> None:
    before = schedule(ScheduleState(next_fire_ms=NOW_MS, next_due_ms=NOW_MS, buffered=(7,)))
    decision = decisions.already_started(before, occasion(cause))
    assert (decision.starts, decision.outcome["reason"]) == (None, "already_started")
    assert decision.state.next_due_ms == (NOW_MS + MINUTE_MS if cause is Cause.DUE else NOW_MS)
    assert decision.state.buffered == (() if cause is Cause.DRAIN else (7,))


def test_create() -> None:
    decision = decisions.create(definition(max_runs=3), None, paused=False, context=CONTEXT)
    assert decision.state.next_fire_ms == NOW_MS + MINUTE_MS
    assert decision.state.remaining_actions == 3
    assert kinds(decision) == ["ScheduleCreated"]
    paused = decisions.create(definition(), None, paused=True, context=CONTEXT)
    assert (paused.state.status, paused.state.next_fire_ms) == (Status.PAUSED, None)
    assert kinds(paused) == ["ScheduleCreated", "SchedulePaused"]
    with pytest.raises(Refused) as refused:
        decisions.create(definition(), schedule(), paused=False, context=CONTEXT)
    assert (refused.value.reason, refused.value.status) == ("schedule_already_exists", 409)


def test_a_name_is_free_again_after_deletion_and_its_history_goes_on() -> None:
    gone = decisions.delete(schedule(ScheduleState(history_length=4, fires_count=9)), NOW_MS, CONTEXT)
    old = Schedule(definition=gone.definition, state=gone.state, version=4)
    decision = decisions.create(definition(), old, paused=False, context=CONTEXT)
    assert decision.events[0].sequence == 6
    assert (decision.state.status, decision.state.fires_count) == (Status.ACTIVE, 0)


def test_pause_resume_delete() -> None:
    paused = decisions.pause(schedule(), "holiday", NOW_MS, CONTEXT)
    assert (paused.state.status, paused.state.next_due_ms, paused.definition.note) == (
        Status.PAUSED,
        None,
        "holiday",
    )
    known = Schedule(definition=paused.definition, state=paused.state)
    assert decisions.pause(known, None, NOW_MS, CONTEXT).definition.note == "holiday"
    resumed = decisions.resume(known, None, NOW_MS + 90_000, CONTEXT)
    assert (resumed.state.status, resumed.state.next_fire_ms) == (Status.ACTIVE, NOW_MS + 2 * MINUTE_MS)
    with pytest.raises(Refused, match="Only a paused schedule"):
        decisions.resume(schedule(), None, NOW_MS, CONTEXT)
    deleted = decisions.delete(known, NOW_MS, CONTEXT)
    assert (deleted.state.status, deleted.state.deleted_at_ms) == (Status.DELETED, NOW_MS)


def test_update() -> None:
    spec = Spec(intervals=(Interval(every="PT1H"),))
    before = schedule(ScheduleState(fires_count=4, next_fire_ms=NOW_MS, next_due_ms=NOW_MS))
    decision = decisions.update(before, {"spec": spec, "max_runs": 10}, NOW_MS + 1, CONTEXT)
    assert decision.state.next_fire_ms == NOW_MS - NOW_MS % 3_600_000 + 3_600_000
    assert decision.state.remaining_actions == 6
    assert decision.definition.updated_at_ms == NOW_MS + 1
    assert decision.events[0].payload["changed"] == ["max_runs", "spec"]
    fewer = decisions.update(before, {"max_runs": 2}, NOW_MS, CONTEXT)
    assert fewer.state.remaining_actions == 0
    paused = schedule(ScheduleState(status=Status.PAUSED))
    assert decisions.update(paused, {"spec": spec}, NOW_MS, CONTEXT).state.next_fire_ms is None


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Cause)), st.booleans(), st.sampled_from(list(Overlap))), max_size=60
    ),
    st.integers(1, 20),
)
def test_any_story_keeps_its_books(steps: list[tuple[Cause, bool, Overlap]], max_runs: int) -> None:
    """Runs never exceed the limit, the buffer never grows without bound, events have no gap."""
    known = schedule(ScheduleState(remaining_actions=max_runs, next_fire_ms=NOW_MS, next_due_ms=NOW_MS))
    starts, events = 0, []
    for cause, previous_open, overlap in steps:
        chance = occasion(cause, open=previous_open, overlap=overlap)
        decision = decisions.drain(known, chance) if cause is Cause.DRAIN else decisions.act(known, chance)
        if decision is None:
            continue
        starts += decision.starts is not None
        events += decision.events
        known = Schedule(definition=decision.definition, state=decision.state, version=known.version + 1)
        state = known.state
        assert state.fires_count == starts <= max_runs
        assert state.remaining_actions == max_runs - starts
        assert len(state.recent_actions) <= 10
        assert (state.status is Status.DELETED) == (starts == max_runs)
        assert (state.next_due_ms is None) == (state.status is not Status.ACTIVE)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
