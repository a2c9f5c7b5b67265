"""The rules of flows, one by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from cluster.errors import Refused
from cluster.flows.changes import DropTask
from cluster.flows.decision import StepEvent
from cluster.flows.limits import FlowLimits
from cluster.flows.machine import StopType
from cluster.flows.records import (
    FlowStatus,
    Method,
    MethodOptions,
    Phase,
    StepOptions,
    TimeoutHandler,
    TimeoutPolicy,
)
from cluster.flows.retry import retry_delay_ms, return_pause_ms
from cluster.flows.wire import ExecuteOutput, Failure, read_failure, read_output
from tests.unit.flows.simulation import DEAD_END, START_MS, Simulation, lead_to, refusal

SECOND_MS = 1_000
HOUR_MS = 3_600_000


# -- retries ------------------------------------------------------------------------------------


def test_the_default_pauses() -> None:
    flow = Simulation()
    pauses = []
    for _ in range(10):
        flow.fail(flow.taken())
        step = flow.run.steps[1]
        pauses.append((step.ready_at_ms - flow.now_ms) // SECOND_MS)
        flow.fire("s1")
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]
    assert flow.run.steps[1].attempt == 11


def test_the_total_duration_counts_from_the_first_hand_out() -> None:
    flow = Simulation()
    flow.now_ms += 10 * HOUR_MS  # in the queue
    flow.fail(flow.taken())
    flow.fire("s1")
    flow.now_ms += 4 * HOUR_MS  # in the queue again: the attempt still runs
    attempt = flow.taken()
    flow.now_ms += HOUR_MS
    flow.fail(attempt)
    assert flow.run.state.status is FlowStatus.FAILED


def test_a_returned_hand_out_starts_no_clock() -> None:
    flow = Simulation()
    flow.give_back(flow.taken())
    flow.now_ms += 5 * HOUR_MS
    flow.fail(flow.taken())
    assert flow.run.steps[1].phase is Phase.BACKOFF


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_most_attempts_count_the_first(attempts: int) -> None:
    flow = Simulation(StepOptions(execute=MethodOptions(max_attempts=attempts)))
    for _ in range(attempts - 1):
        flow.fail(flow.taken())
        flow.fire("s1")
    flow.fail(flow.taken(), event=StepEvent.LOST)
    assert flow.run.state.status is FlowStatus.FAILED
    assert flow.run.state.failure is not None
    assert flow.run.state.failure["attempt"] == attempts


def test_a_handler_asks_for_its_pause() -> None:
    flow = Simulation()
    flow.fail(flow.taken(), Failure(retry_after_seconds=7.5))
    assert flow.run.steps[1].ready_at_ms - flow.now_ms == 7_501  # now_ms is cut off
    flow.fire("s1")
    flow.fail(flow.taken(), Failure(retry_after_seconds=0))
    assert flow.run.steps[1].phase is Phase.READY
    assert flow.taken().attempt == 3


def test_a_constant_pause_stays_and_a_huge_number_of_attempts_is_no_work() -> None:
    flow = Simulation(StepOptions(execute=MethodOptions(coefficient=1.0)))
    flow.fail(flow.taken())
    step = flow.run.steps[1]
    far = type(step)(**{name: getattr(step, name) for name in step.__struct_fields__} | {"attempt": 10**9})
    assert retry_delay_ms(far, Failure(), flow.now_ms) == SECOND_MS


def test_both_methods_have_their_own_attempts() -> None:
    flow = Simulation(StepOptions(wait_for=MethodOptions(max_attempts=2)))
    flow.fail(flow.taken())
    flow.fire("s1")
    flow.complete(flow.taken(), {})
    attempt = flow.taken()
    assert (attempt.method, attempt.attempt) == (Method.EXECUTE, 1)


# -- timeouts -----------------------------------------------------------------------------------


def test_the_clocks_start_at_the_hand_out() -> None:
    flow = Simulation(StepOptions(execute=MethodOptions(timeout_ms=2_000)))
    flow.now_ms += 10 * SECOND_MS
    assert flow.timers == {}
    attempt = flow.taken()
    assert flow.timers == {"s1": flow.now_ms + 2_001}
    flow.now_ms += SECOND_MS
    flow.complete(attempt, {"decision": {"complete": 1}})
    assert flow.run.state.status is FlowStatus.COMPLETED


def test_a_method_that_takes_too_long_fails_its_attempt() -> None:
    flow = Simulation(StepOptions(execute=MethodOptions(timeout_ms=2_000)))
    attempt = flow.taken()
    flow.fire("s1")
    step = flow.run.steps[1]
    assert (step.attempt, step.phase) == (2, Phase.BACKOFF)
    assert step.last_failure is not None
    assert step.last_failure["type"] == "MethodTimeout"
    assert flow.history[-1]["event"] == "timed_out"
    assert refusal(lambda: flow.complete(attempt, DEAD_END)) == "stale"


def test_heartbeats_move_the_heartbeat_timeout_only() -> None:
    flow = Simulation(StepOptions(execute=MethodOptions(timeout_ms=100_000, heartbeat_ms=40_000)))
    attempt = flow.taken()
    for _ in range(2):
        flow.now_ms += 30_000
        flow.heartbeat(attempt)
        flow.fire("s1")
        assert flow.run.steps[1].phase is Phase.READY
    assert flow.timers == {"s1": START_MS + 100_001}
    flow.fire("s1")
    assert flow.history[-1]["failure"]["type"] == "MethodTimeout"


def test_a_silent_worker() -> None:
    flow = Simulation()
    flow.taken()
    flow.fire("s1")
    assert flow.history[-1]["failure"]["type"] == "HeartbeatTimeout"


def test_a_timeout_of_a_task_that_came_back_is_nothing() -> None:
    flow = Simulation()
    flow.give_back(flow.taken())
    flow.timers["s1"] = flow.now_ms
    flow.fire("s1")
    assert flow.run.steps[1].attempt == 1


@pytest.mark.parametrize(
    ("policy", "status"),
    [(TimeoutPolicy.FAIL, FlowStatus.FAILED), (TimeoutPolicy.CANCEL, FlowStatus.CANCELED)],
)
def test_the_timeout_of_a_flow(policy: TimeoutPolicy, status: FlowStatus) -> None:
    flow = Simulation(timeout_ms=HOUR_MS, timeout_policy=policy)
    flow.fire("r")
    if policy is TimeoutPolicy.CANCEL:
        assert flow.halted
        flow.fire("z")
    assert flow.run.state.status is status
    assert flow.run.state.close_reason == "timeout"
    assert flow.tasks == {}


def test_a_timeout_handler_decides_how_the_flow_ends_and_runs_once() -> None:
    handler = TimeoutHandler(step_type="late", input=b'"in"')
    flow = Simulation(timeout_ms=HOUR_MS, timeout_policy=TimeoutPolicy.HANDLER, timeout_handler=handler)
    flow.complete(flow.taken(), lead_to("a", "b", {"step_type": "c", "options": {"wait_for": {}}}))
    a = flow.taken(2)
    changes = flow.fire("r")
    assert [entry["step_type"] for entry in changes.history] == ["a", "b", "c"]
    assert {entry["event"] for entry in changes.history} == {StepEvent.CANCELED}
    assert DropTask(2, told=True) in changes.effects
    assert refusal(partial(flow.complete, a, DEAD_END)) == "stale"
    (step,) = flow.run.steps.values()
    assert (step.step_type, step.input) == ("late", b'"in"')
    assert step.failure == {"message": "The flow did not end within its timeout.", "type": "FlowTimeout"}
    assert flow.timers == {}

    flow.timers["r"] = flow.now_ms + HOUR_MS
    flow.fire("r")
    assert [step.k for step in flow.run.steps.values()] == [5]
    flow.complete(flow.taken(), lead_to("more"))
    flow.complete(flow.taken(), {"decision": {"complete": "sorry"}})
    assert (flow.run.state.status, flow.run.state.result) == (FlowStatus.COMPLETED, b'"sorry"')


def test_a_timeout_handler_follows_the_stop_that_was_first() -> None:
    handler = TimeoutHandler(step_type="late")
    flow = Simulation(timeout_ms=HOUR_MS, timeout_policy=TimeoutPolicy.HANDLER, timeout_handler=handler)
    running = flow.taken()
    flow.stop(StopType.CANCEL, wait=True)
    flow.fire("z")
    flow.fire("r")
    flow.complete(running, DEAD_END)
    assert flow.run.state.status is FlowStatus.CANCELED


def test_a_timeout_handler_there_is_no_room_for_fails_the_flow() -> None:
    handler = TimeoutHandler(step_type="late")
    flow = Simulation(
        timeout_ms=HOUR_MS,
        timeout_policy=TimeoutPolicy.HANDLER,
        timeout_handler=handler,
        limits=FlowLimits(step_type_count=1),
    )
    flow.fire("r")
    assert (flow.run.state.status, flow.run.state.close_reason) == (FlowStatus.FAILED, "timeout")


# -- returns ------------------------------------------------------------------------------------


def test_d11_an_attempt_that_comes_back_again_and_again_waits_longer_each_time() -> None:
    pauses = [return_pause_ms(delivery) for delivery in range(40)]
    assert pauses[:6] == [0] * 6
    assert pauses[6:10] == [100, 200, 400, 800]
    assert pauses[-1] == 10_000
    assert pauses == sorted(pauses)


def test_what_closes_a_flow_tells_those_who_still_run_something() -> None:
    flow = Simulation()
    flow.complete(flow.taken(), lead_to("a", "b"))
    a, _b = flow.taken(2), flow.taken(3)
    changes = flow.complete(a, {"decision": {"complete": None}})
    assert {effect for effect in changes.effects if isinstance(effect, DropTask)} == {
        DropTask(2, told=False),
        DropTask(3, told=True),
    }


# -- decisions ----------------------------------------------------------------------------------


def test_executions_are_numbered_by_type() -> None:
    flow = Simulation()
    changes = flow.complete(flow.taken(), lead_to("a", "b", "a"))
    assert changes.history[0]["next"] == ["a-1", "b-1", "a-2"]
    assert changes.effects[0] == DropTask(1)


@pytest.mark.parametrize(
    "decision",
    [
        {},
        {"complete": 1, "dead_end": True},
        {"next": [{"step_type": "a"}], "fail": {"message": "no"}},
        {"complete": 1, "cancel": {"siblings": True}},
        {"next": [{"step_type": ""}]},
        {"next": [{"step_type": "a", "colour": "red"}]},
        {"nonsense": 1},
        {"next": [{"step_type": "a", "options": {"execute": {"timeout_seconds": 0}}}]},
    ],
)
def test_decisions_that_make_no_sense(decision: dict[str, Any]) -> None:
    flow = Simulation()
    attempt = flow.taken()
    assert refusal(lambda: flow.complete(attempt, {"decision": decision})) == "invalid_output"
    assert flow.tasks[1].state == "l"


@pytest.mark.parametrize(
    "output", [b'{"decision": {"complete": "\xff"}}', b'{"decision": {"complete": [1,}}', b""]
)
def test_outputs_that_are_no_json(output: bytes) -> None:
    with pytest.raises(Refused, match="not valid"):
        read_output(ExecuteOutput, output)


def test_siblings_are_those_of_the_same_decision() -> None:
    flow = Simulation()
    flow.complete(flow.taken(), lead_to("a", "b", "c"))
    flow.complete(flow.taken(2), lead_to("child"))
    flow.complete(flow.taken(3), {"decision": {"next": [{"step_type": "d"}], "cancel": {"siblings": True}}})
    assert sorted(step.execution_id for step in flow.run.steps.values()) == ["child-1", "d-1"]
    assert flow.history[-2]["event"] == "canceled"


def test_cancelled_by_type_whatever_they_wait_for() -> None:
    flow = Simulation()
    waiting = {"step_type": "x", "options": {"wait_for": {}}}
    flow.complete(flow.taken(), lead_to(waiting, "x", "x", "x", "judge"))
    flow.complete(flow.taken(2), {"conditions": {"items": [{"id": "t", "timer_seconds": 9}]}})
    flow.fail(flow.taken(3))
    running = flow.taken(4)
    flow.complete(flow.taken(6), {"decision": {"dead_end": True, "cancel": {"step_types": ["x"]}}})
    assert flow.run.state.status is FlowStatus.COMPLETED
    assert refusal(lambda: flow.complete(running, DEAD_END)) == "flow_closed"


def test_the_flow_ends_with_its_last_step_and_not_before() -> None:
    flow = Simulation()
    flow.complete(flow.taken(), lead_to("a", "b"))
    flow.complete(flow.taken(), DEAD_END)
    assert flow.run.state.status is FlowStatus.RUNNING
    flow.complete(flow.taken(), DEAD_END)
    assert (flow.run.state.status, flow.run.state.result) == (FlowStatus.COMPLETED, b"null")


def test_a_decision_to_fail() -> None:
    flow = Simulation()
    flow.complete(flow.taken(), {"decision": {"fail": {"message": "sold out", "type": "SoldOut"}}})
    assert flow.run.state.failure == {"message": "sold out", "type": "SoldOut"}


# -- limits -------------------------------------------------------------------------------------


def test_limits() -> None:
    limits = FlowLimits(
        open_step_count=3,
        attribute_count=2,
        attribute_size=40,
        payload_size=20,
        channel_backlog=2,
        channel_count=2,
        decision_size=60,
    )
    flow = Simulation(limits=limits)
    attempt = flow.taken()
    for output in (
        lead_to("a", "a", "a", "a"),
        lead_to("a", attributes={"a": 1, "b": 2, "c": 3}),
        lead_to(
            "a",
            attributes={
                "a": "x" * 18,
                "b" * 25: 1,
            },
        ),
        lead_to("a", attributes={"a": "x" * 30}),
        lead_to({"step_type": "a", "input": "x" * 30}),
        lead_to({"step_type": "a", "input": "x" * 15}, {"step_type": "a", "input": "x" * 15}),
        lead_to("a", publish=[{"channel": "c", "value": v} for v in range(3)]),
        lead_to("a", publish=[{"channel": c, "value": 1} for c in "cde"]),
        {"decision": {"complete": "x" * 30}},
    ):
        assert refusal(partial(flow.complete, attempt, output)) == "structural_limit_exceeded", output
    flow.complete(attempt, lead_to("a", "a", "a"))


def test_failures_are_kept_in_bounds() -> None:
    failure = read_failure({"message": "x" * 100_000, "stack_trace": "y" * 100_000, "type": 3})
    assert (failure.type, failure.non_retryable) == ("MalformedFailure", False)
    shown = read_failure({"message": "x" * 100_000, "type": "t" * 1_000}).shown()
    assert (len(shown["message"]), len(shown["type"])) == (16_384, 256)


def test_a_malformed_failure_stays_as_final_as_the_worker_said() -> None:
    told = {"message": "m", "non_retryable": True, "retry_after_seconds": -1}
    failure = read_failure(told)
    assert (failure.message, failure.type, failure.non_retryable) == ("m", "MalformedFailure", True)
    assert not read_failure(told | {"non_retryable": "yes"}).non_retryable
