"""Activities: attempts, results, retries, lapses and the four timeouts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.workflows import machine, retry
from cluster.workflows.changes import Arm, Disarm, DropTask, ReadyActivityTask, Requeue
from cluster.workflows.records import ActivityState, Lease, RetryPolicy
from tests.unit.workflows.simulation import (
    ACTIVITY_LEASE_MS,
    BLOB,
    COMPLETE,
    FAIL,
    RUN_ID,
    Simulation,
    activity,
    timer,
)

POLICY = {
    "max_attempts": 3,
    "backoff_seconds": [2, 5],
    "non_retryable_error_types": ["ValueError", "app.Fatal"],
}
TASK = f"{RUN_ID}-a1"


def scheduled(**fields: Any) -> Simulation:
    sim = Simulation()
    sim.complete(activity(**fields))
    return sim


def test_scheduling_puts_an_attempt_on_the_queue() -> None:
    sim = scheduled(
        queue="other", arguments={"codec": "avro", "blob": BLOB}, cancellation_policy="try_cancel"
    )
    assert sim.payload("ActivityScheduled") == {
        "activity_execution_id": TASK,
        "activity_type": "charge",
        "sequence": 1,
        "task_queue": "other",
        "arguments": {"codec": "avro", "blob": BLOB},
        "cancellation_policy": "try_cancel",
    }
    assert sim.lease(TASK).attempt == 1
    assert sim.run.activities[1].task_queue == "other"
    assert sim.timers == {}


def test_the_queue_of_the_run_is_the_default() -> None:
    sim = scheduled()
    assert sim.run.activities[1].task_queue == "main"
    assert "retry_policy" not in sim.payload("ActivityScheduled")


def test_the_retry_snapshot_names_all_rules() -> None:
    sim = scheduled(retry_policy=POLICY, start_to_close_timeout=10, schedule_to_close_timeout=60)
    assert sim.payload("ActivityScheduled")["retry_policy"] == {
        "snapshot_version": 1,
        "max_attempts": 3,
        "backoff_seconds": [2, 5],
        "start_to_close_timeout": 10,
        "schedule_to_start_timeout": None,
        "schedule_to_close_timeout": 60,
        "heartbeat_timeout": None,
        "non_retryable_error_types": ["ValueError", "app.Fatal"],
    }
    only_timeouts = scheduled(heartbeat_timeout=3).payload("ActivityScheduled")["retry_policy"]
    assert (only_timeouts["max_attempts"], only_timeouts["heartbeat_timeout"]) == (1, 3)


def test_a_result_ends_the_activity_and_wakes_the_run() -> None:
    sim = scheduled()
    sim.claim_activity(1, "worker-7")
    sim.advance(3)
    changes = sim.finish_activity(1)
    assert sim.types[-2:] == ["ActivityStarted", "ActivityCompleted"]
    attempt = {
        "activity_execution_id": TASK,
        "activity_attempt_id": f"{TASK}-1.0",
        "activity_type": "charge",
        "sequence": 1,
        "attempt_number": 1,
    }
    assert sim.payload("ActivityStarted") == attempt | {
        "lease_owner": "worker-7",
        "started_at": "2025-11-30T12:00:00.123000Z",
    }
    assert sim.payload("ActivityCompleted") == attempt | {"result": BLOB, "payload_codec": "avro"}
    assert changes.outcome == {
        "outcome": "completed",
        "recorded": True,
        "reason": None,
        "next_task_id": f"{RUN_ID}-w2",
    }
    assert DropTask(TASK) in changes.effects


def test_no_result_has_no_codec() -> None:
    sim = scheduled()
    sim.claim_activity(1)
    sim.finish_activity(1, None)
    assert sim.payload("ActivityCompleted")["result"] is None
    assert "payload_codec" not in sim.payload("ActivityCompleted")


def test_the_latest_progress_is_written_with_the_end() -> None:
    sim = scheduled()
    sim.claim_activity(1)
    sim.advance(1)
    sim.heartbeat(1, {"current": 1})
    sim.advance(1)
    sim.heartbeat(1, {"current": 2})
    sim.finish_activity(1)
    assert sim.types[-3:] == ["ActivityStarted", "ActivityHeartbeatRecorded", "ActivityCompleted"]
    beat = sim.payload("ActivityHeartbeatRecorded")
    assert beat["progress"] == {"current": 2}
    assert beat["heartbeat_at"] == "2025-11-30T12:00:02.123000Z"


def test_a_failure_without_policy_is_final() -> None:
    sim = scheduled()
    sim.claim_activity(1)
    changes = sim.fail_activity(
        1,
        **{"class": "builtins.RuntimeError", "code": 7, "stack_trace": "...", "kind": "handler_crash"},
        details={"codec": "avro", "blob": BLOB},
    )
    assert changes.outcome["next_task_id"] == f"{RUN_ID}-w2"
    payload = sim.payload("ActivityFailed")
    assert payload["activity_attempt_id"] == f"{TASK}-1.0"
    assert payload["message"] == "boom"
    assert payload["exception_type"] == "RuntimeError"
    assert payload["exception_class"] == "builtins.RuntimeError"
    assert payload["failure_category"] == "handler_crash"
    assert payload["non_retryable"] is False
    assert payload["code"] == 7
    assert payload["exception"] == {
        "message": "boom",
        "type": "RuntimeError",
        "class": "builtins.RuntimeError",
        "code": 7,
        "stack_trace": "...",
        "non_retryable": False,
        "details": BLOB,
        "details_payload_codec": "avro",
    }
    assert "payload_codec" not in payload


@pytest.mark.parametrize(
    ("details", "blob"),
    [
        (42, BLOB),
        ("hello, world", "wwHioz3/VYAiNwoYaGVsbG8sIHdvcmxk"),
        ({"a": 1}, "wwHioz3/VYAiNw4CAmEEAgA="),
    ],
)
def test_plain_details_are_encoded(details: object, blob: str) -> None:
    sim = scheduled()
    sim.claim_activity(1)
    sim.fail_activity(1, details=details)
    assert sim.payload("ActivityFailed")["exception"]["details"] == blob


def test_details_that_cannot_be_encoded_do_not_stop_the_failure() -> None:
    sim = scheduled()
    sim.claim_activity(1)
    sim.fail_activity(1, details={"n": 1 << 63}, timeout_type="heartbeat")
    payload = sim.payload("ActivityFailed")
    assert payload["exception"]["details_payload_codec"] == "avro"
    assert payload["timeout_kind"] == "heartbeat"


@pytest.mark.parametrize(
    ("failure", "retried"),
    [
        ({}, True),
        ({"non_retryable": True}, False),
        ({"non_retryable": False}, True),
        ({"retryable": False}, False),
        ({"retryable": True}, True),
        ({"type": "ValueError"}, False),
        ({"class": "app.Fatal"}, False),
        ({"class": "app.Other"}, True),
    ],
)
def test_what_may_be_tried_again(failure: dict[str, Any], retried: bool) -> None:
    sim = scheduled(retry_policy=POLICY)
    sim.claim_activity(1)
    changes = sim.fail_activity(1, **failure)
    assert sim.types[-1] == ("ActivityRetryScheduled" if retried else "ActivityFailed")
    assert sim.state.task_open is not retried
    assert changes.outcome["next_task_id"] == (TASK if retried else f"{RUN_ID}-w2")
    if not retried:
        assert sim.payload("ActivityFailed")["non_retryable"] is True


def test_retries_back_off_and_are_used_up() -> None:
    sim = scheduled(retry_policy=POLICY)
    for number, delay in ((1, 2), (2, 5)):
        sim.claim_activity(1)
        changes = sim.fail_activity(1)
        payload = sim.payload("ActivityRetryScheduled")
        assert payload["activity_attempt_id"] == f"{TASK}-{number}.0"
        assert payload["attempt_number"] == number
        assert payload["next_attempt_number"] == number + 1
        assert payload["delay_seconds"] == delay
        assert payload["message"] == "boom"
        assert changes.effects == [DropTask(TASK), Arm("a1", sim.now_ms + delay * 1000)]
        assert sim.run.activities[1].last_failure is not None
        sim.advance(delay)
        sim.fire("a1")
        assert sim.lease(TASK).attempt == number + 1
    sim.claim_activity(1)
    sim.fail_activity(1)
    assert sim.types[-1] == "ActivityFailed"
    assert sim.payload("ActivityFailed")["attempt_number"] == 3


def test_a_retry_without_delay_is_ready_at_once() -> None:
    sim = scheduled(retry_policy={"max_attempts": 2}, schedule_to_start_timeout=9)
    sim.claim_activity(1)
    sim.advance(4)
    changes = sim.fail_activity(1)
    again = sim.run.activities[1]
    assert changes.effects == [DropTask(TASK), ReadyActivityTask(again), Arm("a1", sim.now_ms + 9001)]
    assert again.attempt == 2


@pytest.mark.parametrize(
    ("attempt", "lapses", "backoff", "delay"),
    [
        (1, 0, (), 0),
        (1, 0, (3,), 3),
        (2, 0, (3, 4), 4),
        (4, 0, (3, 4), 4),
        (2, 1, (3, 4), 3),
        (5, 0, (3, 4), None),
        (6, 1, (3, 4), None),
        (5, 1, (3, 4), 4),
    ],
)
def test_the_delay_before_an_attempt(
    attempt: int, lapses: int, backoff: tuple[int, ...], delay: int | None
) -> None:
    policy = RetryPolicy(max_attempts=5, backoff_seconds=backoff)
    item = ActivityState(
        step=1,
        activity_type="t",
        task_queue="q",
        scheduled_at_us=0,
        ready_at_ms=0,
        attempt=attempt,
        lapses=lapses,
        retry=policy,
    )
    assert retry.activity_delay(item) == delay
    assert retry.activity_delay(replace(item, retry=None)) is None


def test_a_lapse_hands_the_activity_out_again_for_free() -> None:
    sim = scheduled(retry_policy={"max_attempts": 2})
    for number in (1, 2, 3):
        sim.claim_activity(1)
        sim.advance(ACTIVITY_LEASE_MS / 1000)
        changes = sim.lapse_activity(1)
        assert changes.effects == [Requeue(TASK, number + 1), Disarm("a1")]
        assert sim.payload("ActivityRetryScheduled")["reason"] == "lease_expired"
        assert not sim.state.task_open
    sim.claim_activity(1)
    sim.fail_activity(1)
    assert sim.types[-1] == "ActivityRetryScheduled"
    sim.claim_activity(1)
    sim.fail_activity(1)
    assert sim.types[-1] == "ActivityFailed"


def test_too_many_lapses_time_the_activity_out() -> None:
    sim = scheduled(retry_policy={"max_attempts": 9})
    for _ in range(retry.MAX_LAPSES):
        sim.claim_activity(1)
        sim.lapse_activity(1)
    sim.claim_activity(1)
    sim.lapse_activity(1)
    payload = sim.payload("ActivityTimedOut")
    assert payload["timeout_kind"] == "start_to_close"
    assert "lease ran out" in payload["message"]
    assert sim.state.task_open
    assert sim.state.activities == ()


def test_a_lapse_re_bases_schedule_to_start() -> None:
    sim = scheduled(schedule_to_start_timeout=10)
    sim.advance(9)
    sim.claim_activity(1)
    sim.advance(300)
    changes = sim.lapse_activity(1)
    assert changes.effects == [Requeue(TASK, 2), Arm("a1", sim.now_ms + 10_001)]


def test_a_lapse_after_a_deadline_is_that_timeout() -> None:
    sim = scheduled(start_to_close_timeout=400)
    sim.claim_activity(1)
    sim.advance(405)
    sim.lapse_activity(1)
    assert sim.payload("ActivityTimedOut")["timeout_kind"] == "start_to_close"
    assert "lease" not in sim.payload("ActivityTimedOut")["message"]


def test_a_lapse_of_an_activity_that_is_over_drops_its_task() -> None:
    sim = scheduled()
    lease = sim.claim_activity(1)
    sim.finish_activity(1)
    changes = machine.activity_lapsed(sim.run, 1, lease, sim.task_lease(), sim.now_us)
    assert changes.effects == [DropTask(TASK)]


LIMITS = {
    "schedule_to_start_timeout": 4,
    "heartbeat_timeout": 5,
    "start_to_close_timeout": 8,
    "schedule_to_close_timeout": 20,
}


@pytest.mark.parametrize(
    ("only", "leased", "seconds", "kind"),
    [
        (("schedule_to_start_timeout",), False, 4, "schedule_to_start"),
        (("schedule_to_close_timeout",), False, 20, "schedule_to_close"),
        (("heartbeat_timeout",), True, 5, "heartbeat"),
        (("start_to_close_timeout",), True, 8, "start_to_close"),
        (("schedule_to_close_timeout",), True, 20, "schedule_to_close"),
        (tuple(LIMITS), False, 20, "schedule_to_close"),
        (tuple(LIMITS), False, 4, "schedule_to_start"),
        (tuple(LIMITS), True, 20, "schedule_to_close"),
        (tuple(LIMITS), True, 8, "heartbeat"),
    ],
)
def test_timeouts_are_final_without_attempts_left(
    only: tuple[str, ...], leased: bool, seconds: int, kind: str
) -> None:
    sim = scheduled(**{name: LIMITS[name] for name in only})
    if leased:
        sim.claim_activity(1)
    # Of the times at which an attempt is ready or begins a part of a millisecond is cut off.
    length_ms = seconds * 1000 + (kind != "schedule_to_close")
    if seconds <= min(LIMITS[name] for name in only):
        assert sim.timers["a1"] == sim.now_ms + length_ms
    sim.advance((length_ms - 1) / 1000)
    if len(only) == 1:
        changes = sim.fire("a1")
        assert changes.effects == [Arm("a1", sim.now_ms + 1)]
    sim.advance(0.001)
    changes = sim.fire("a1")
    payload = sim.payload("ActivityTimedOut")
    assert payload["timeout_kind"] == kind
    assert payload["exception"]["message"] == payload["message"]
    assert kind in payload["deadlines"]
    assert ("activity_attempt_id" in payload) is leased
    assert ("ActivityStarted" in sim.types) is leased
    assert DropTask(TASK) in changes.effects
    assert sim.state.task_open


@pytest.mark.parametrize("kind", ["schedule_to_start", "heartbeat", "start_to_close"])
def test_timeouts_use_up_attempts(kind: str) -> None:
    sim = scheduled(
        **{f"{kind}_timeout": 3}, retry_policy={"max_attempts": 2, "non_retryable_error_types": ["X"]}
    )
    if kind != "schedule_to_start":
        sim.claim_activity(1)
    sim.advance(3.001)
    sim.fire("a1")
    assert sim.payload("ActivityRetryScheduled")["timeout_kind"] == kind
    assert sim.lease(TASK).attempt == 2
    assert not sim.state.task_open
    if kind != "schedule_to_start":
        sim.claim_activity(1)
    sim.advance(3.001)
    sim.fire("a1")
    assert sim.payload("ActivityTimedOut")["attempt_number"] == 2


def test_schedule_to_close_ends_a_back_off() -> None:
    sim = scheduled(retry_policy={"max_attempts": 3, "backoff_seconds": [60]}, schedule_to_close_timeout=20)
    sim.claim_activity(1)
    sim.fail_activity(1)
    assert sim.timers["a1"] == sim.now_ms + 20_000
    sim.advance(20)
    changes = sim.fire("a1")
    assert sim.payload("ActivityTimedOut")["timeout_kind"] == "schedule_to_close"
    assert changes.effects[0] == Disarm("a1")


def test_schedule_to_start_counts_from_the_end_of_the_back_off() -> None:
    sim = scheduled(retry_policy={"max_attempts": 2, "backoff_seconds": [60]}, schedule_to_start_timeout=5)
    sim.claim_activity(1)
    sim.fail_activity(1)
    sim.advance(60)
    sim.fire("a1")
    assert sim.timers["a1"] == sim.now_ms + 5001


def test_a_back_off_that_ends_late_does_not_shorten_schedule_to_start() -> None:
    sim = scheduled(retry_policy={"max_attempts": 2, "backoff_seconds": [3]}, schedule_to_start_timeout=5)
    sim.claim_activity(1)
    sim.fail_activity(1)
    sim.advance(60)
    sim.fire("a1")
    assert sim.types[-1] == "ActivityRetryScheduled"
    assert sim.lease(TASK).attempt == 2
    assert sim.timers["a1"] == sim.now_ms + 5001


def test_heartbeats_move_their_own_deadline_only() -> None:
    sim = scheduled(heartbeat_timeout=5, start_to_close_timeout=8)
    start = sim.now_ms
    sim.claim_activity(1)
    assert sim.timers["a1"] == start + 5001
    for _ in range(2):
        sim.advance(3)
        sim.heartbeat(1)
    assert sim.timers["a1"] == start + 8001
    sim.advance(2.001)
    sim.fire("a1")
    assert sim.payload("ActivityTimedOut")["timeout_kind"] == "start_to_close"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0, 0)),
        ({"start_to_close_timeout": 8}, (8000, 0)),
        ({"start_to_close_timeout": 8, "heartbeat_timeout": 5}, (5000, 0)),
        ({"schedule_to_close_timeout": 20}, (20_000, 1_764_504_020_123)),
        ({"start_to_close_timeout": 8, "schedule_to_close_timeout": 20}, (8000, 1_764_504_020_123)),
    ],
)
def test_what_a_hand_out_arms(fields: dict[str, int], expected: tuple[int, int]) -> None:
    assert machine.hand_out_deadline(scheduled(**fields).run.activities[1]) == expected


@pytest.mark.parametrize(
    ("seconds", "lease_ms"), [(None, 300_000), (10, 300_000), (295, 300_000), (600, 605_000)]
)
def test_a_lease_outlives_its_attempt(seconds: int | None, lease_ms: int) -> None:
    item = replace(scheduled().run.activities[1], start_to_close_seconds=seconds)
    assert machine.activity_lease_ms(item, 300_000) == lease_ms


@pytest.mark.parametrize("end", [COMPLETE, FAIL])
def test_outcomes_after_the_run_ended_are_accepted_and_change_nothing(end: dict[str, Any]) -> None:
    sim = Simulation()
    sim.complete(activity(), timer(0))
    sim.claim_activity(1)
    sim.complete(end)
    before = sim.state
    gone = Lease(task_id=TASK, state="")
    completed = machine.complete_activity(sim.run, 1, gone, sim.task_lease(), None, sim.now_us)
    failed = machine.fail_activity(sim.run, 1, gone, sim.task_lease(), {"message": "late"}, sim.now_us)
    for changes, outcome in ((completed, "completed"), (failed, "failed")):
        assert changes.state == before
        assert not changes.events
        assert changes.outcome == {"outcome": outcome, "recorded": True, "reason": None, "next_task_id": None}


def test_a_timer_of_an_activity_that_is_over_does_nothing() -> None:
    sim = scheduled()
    sim.claim_activity(1)
    sim.finish_activity(1)
    assert sim.fire("a1").effects == [Disarm("a1")]


def test_a_timer_with_nothing_to_wait_for_is_removed() -> None:
    sim = scheduled()
    assert sim.fire("a1").effects == [Disarm("a1")]
