"""The rules of flows, one by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

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
from cluster.flows.wire import ExecuteOutput, Failure, RpcOutput, read_failure, read_options, read_output
from tests.unit.flows.simulation import START_MS, Simulation, refusal

SECOND_MS = 1_000
HOUR_MS = 3_600_000


def lead_to(*steps: Any, **more: Any) -> dict[str, Any]:
    named = [{"step_type": step} if isinstance(step, str) else step for step in steps]
    return {"decision": {"next": named}, **more}


DEAD_END = {"decision": {"dead_end": True}}


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


# -- conditions and channels --------------------------------------------------------------------


def waiting_flow(mode: str, *items: dict[str, Any]) -> Simulation:
    flow = Simulation(StepOptions(wait_for=MethodOptions()))
    flow.complete(flow.taken(), {"conditions": {"mode": mode, "items": list(items)}})
    return flow


def found(flow: Simulation) -> dict[str, Any]:
    conditions: dict[str, Any] = orjson.loads(flow.bodies[1].conditions)
    return conditions


def test_without_conditions_execute_follows_at_once() -> None:
    for mode in ("any", "all"):
        assert waiting_flow(mode).taken().method is Method.EXECUTE


def test_all_conditions() -> None:
    flow = waiting_flow("all", {"id": "m", "channel": "c"}, {"id": "t", "timer_seconds": 5})
    flow.publish("c", "x")
    assert flow.tasks == {}
    assert flow.run.state.channels == {"c": 1}
    flow.fire("s1")
    assert found(flow) == {"m": {"satisfied": True, "values": ["x"]}, "t": {"satisfied": True}}


def test_any_condition_takes_only_what_holds() -> None:
    flow = waiting_flow(
        "any",
        {"id": "two", "channel": "c", "count": 2},
        {"id": "one", "channel": "d"},
        {"id": "t", "timer_seconds": 5},
    )
    flow.publish("c", "x")
    flow.publish("d", "y")
    assert found(flow) == {
        "two": {"satisfied": False},
        "one": {"satisfied": True, "values": ["y"]},
        "t": {"satisfied": False},
    }
    assert flow.run.state.channels == {"c": 1}
    assert flow.timers == {}


def test_two_conditions_do_not_share_a_message() -> None:
    flow = waiting_flow("all", {"id": "a", "channel": "c"}, {"id": "b", "channel": "c"})
    flow.publish("c", 1)
    assert flow.tasks == {}
    flow.publish("c", 2)
    assert [found(flow)[name]["values"] for name in "ab"] == [[1], [2]]


def test_who_waits_longer_is_served_first() -> None:
    flow = Simulation()
    listener = {"step_type": "l", "options": {"wait_for": {}}}
    flow.complete(flow.taken(), lead_to(listener, listener))
    wanted = {"conditions": {"items": [{"id": "m", "channel": "c"}]}}
    flow.complete(flow.taken(3), wanted)
    flow.complete(flow.taken(2), wanted)
    flow.publish("c", 1)
    assert list(flow.tasks) == [3]


def test_several_timers_of_one_wait() -> None:
    flow = waiting_flow("all", {"id": "a", "timer_seconds": 1}, {"id": "b", "timer_seconds": 2})
    flow.fire("s1")
    assert flow.timers == {"s1": START_MS + 2_001}
    flow.fire("s1")
    assert found(flow) == {"a": {"satisfied": True}, "b": {"satisfied": True}}


@pytest.mark.parametrize(
    "items",
    [
        [{"id": "a"}],
        [{"id": "a", "channel": "c", "timer_seconds": 1}],
        [{"id": "a", "channel": "c"}, {"id": "a", "channel": "d"}],
        [{"id": "a", "channel": "c", "count": 0}],
        [{"id": "a", "timer_seconds": -1}],
    ],
)
def test_conditions_that_make_no_sense(items: list[dict[str, Any]]) -> None:
    flow = Simulation(StepOptions(wait_for=MethodOptions()))
    attempt = flow.taken()
    assert refusal(lambda: flow.complete(attempt, {"conditions": {"items": items}})) == "invalid_output"


# -- failure policies ---------------------------------------------------------------------------


def test_wait_for_fails_the_flow_unless_told_otherwise() -> None:
    flow = Simulation(StepOptions(wait_for=MethodOptions(max_attempts=1)))
    flow.fail(flow.taken())
    assert flow.run.state.status is FlowStatus.FAILED


def test_a_recovery_step_has_its_own_options_and_policy() -> None:
    options = read_options(
        {
            "execute": {"retry": {"maximum_attempts": 1}},
            "recovery": {
                "step_type": "repair",
                "options": {"execute": {"retry": {"maximum_attempts": 1}}, "recovery": {"step_type": "last"}},
            },
        }
    )
    flow = Simulation(options)
    flow.fail(flow.taken())
    flow.fail(flow.taken())
    assert [step.execution_id for step in flow.run.steps.values()] == ["last-1"]
    (step,) = flow.run.steps.values()
    assert step.failure is not None
    assert step.failure["step_execution_id"] == "repair-1"
    flow.fail(flow.taken(), Failure(non_retryable=True))
    assert flow.run.state.status is FlowStatus.FAILED


# -- locks --------------------------------------------------------------------------------------


def test_a_retry_keeps_its_locks_and_its_snapshot() -> None:
    flow = Simulation()
    locking = {"step_type": "l", "options": {"lock_attributes": ["a"]}}
    flow.complete(flow.taken(), lead_to(locking, locking, "free", attributes={"a": 1}))
    flow.fail(flow.taken(2))
    flow.complete(flow.taken(4), {**DEAD_END, "attributes": {"a": 2}})
    assert flow.hand_out(3) is None
    flow.fire("s2")
    flow.complete(flow.taken(2), DEAD_END)
    assert flow.bodies[2].attributes == b'{"a":1}'
    assert flow.bodies[3].attributes == b'{"a":2}'
    assert flow.taken(3).attempt == 1


def test_locks_are_held_for_a_method_and_not_for_a_wait() -> None:
    flow = Simulation()
    locking = {"step_type": "l", "options": {"lock_attributes": ["a"], "wait_for": {}}}
    flow.complete(flow.taken(), lead_to(locking, locking))
    flow.complete(flow.taken(2), {"conditions": {"items": [{"id": "m", "channel": "c"}]}})
    attempt = flow.taken(3)
    flow.publish("c", 1)
    assert flow.run.steps[2].phase is Phase.LOCKED
    flow.complete(attempt, {"conditions": {"items": [{"id": "m", "channel": "c"}]}})
    assert flow.taken(2).method is Method.EXECUTE


def test_nobody_overtakes_for_half_of_the_locks() -> None:
    flow = Simulation()
    both, one = ({"step_type": "l", "options": {"lock_attributes": names}} for names in (["a", "b"], ["b"]))
    only_a = {"step_type": "l", "options": {"lock_attributes": ["a"]}}
    flow.complete(flow.taken(), lead_to(only_a, both, one))
    assert list(flow.tasks) == [2]
    flow.complete(flow.taken(2), DEAD_END)
    assert list(flow.tasks) == [3]


def test_rpc_locks_are_tried_only() -> None:
    flow = Simulation(StepOptions(locks=("a",)))
    assert refusal(lambda: flow.begin_rpc("1", ["a"])) == "rpc_lock_conflict"
    flow.begin_rpc("2", ["b"])
    assert refusal(lambda: flow.begin_rpc("3", ["b"])) == "rpc_lock_conflict"
    output = read_output(RpcOutput, {"result": 1, "attributes": {"b": 2}, "next": [{"step_type": "n"}]})
    flow.apply_rpc("2", ["b"], output)
    assert flow.run.attributes == {"b": b"2"}
    assert flow.timers == {}
    assert refusal(lambda: flow.apply_rpc("2", ["b"], output)) == "rpc_lock_conflict"
    flow.begin_rpc("4", ["b"])
    flow.fire("l4")
    assert refusal(lambda: flow.apply_rpc("4", ["b"], output)) == "rpc_lock_conflict"
    assert len(flow.run.steps) == 2


# -- stops --------------------------------------------------------------------------------------


def test_a_cancel_lets_running_steps_answer_and_nothing_follow() -> None:
    flow = Simulation()
    waiting = {"step_type": "w", "options": {"wait_for": {}}}
    flow.complete(flow.taken(), lead_to("a", "b", "c", waiting))
    a, b = flow.taken(2), flow.taken(3)
    flow.stop(StopType.CANCEL, wait=True)
    assert flow.hand_out() is None
    flow.fire("z")
    assert flow.run.state.open == (2, 3)
    assert refusal(lambda: flow.publish("x", 1)) == "flow_closing"
    flow.complete(a, lead_to("more", attributes={"done": True}))
    flow.fail(b)
    assert (flow.run.state.status, flow.run.state.close_reason) == (FlowStatus.CANCELED, "why")
    assert flow.run.attributes == {"done": b"true"}


def test_a_cancel_of_what_nobody_runs_is_soon_over() -> None:
    flow = Simulation()
    flow.stop(StopType.CANCEL, wait=True)
    flow.fire("z")
    assert flow.run.state.status is FlowStatus.CANCELED


def test_a_returned_step_of_a_stopping_flow_is_not_handed_out_again() -> None:
    flow = Simulation()
    attempt = flow.taken()
    flow.stop(StopType.FAIL, wait=True)
    flow.fire("z")
    flow.give_back(attempt)
    assert flow.run.state.status is FlowStatus.FAILED
    assert flow.run.state.failure == {"message": "why", "type": "FlowStopped"}


@pytest.mark.parametrize("kind", list(StopType))
def test_stops_at_once(kind: StopType) -> None:
    flow = Simulation()
    attempt = flow.taken()
    flow.stop(kind, wait=False)
    assert flow.run.state.status is kind.status
    assert refusal(lambda: flow.complete(attempt, DEAD_END)) == "flow_closed"
    assert refusal(lambda: flow.stop(kind, wait=False)) == "flow_closed"


def test_termination_overrides_a_stop_that_waits() -> None:
    flow = Simulation()
    flow.taken()
    flow.stop(StopType.CANCEL, wait=True)
    flow.stop(StopType.CANCEL, wait=True)
    flow.stop(StopType.TERMINATE, wait=True)
    assert flow.run.state.status is FlowStatus.TERMINATED
    assert flow.timers == {}


# -- hand-outs ----------------------------------------------------------------------------------


def test_only_the_present_hand_out_counts() -> None:
    flow = Simulation(StepOptions(wait_for=MethodOptions()))
    attempt = flow.taken()
    for wrong in (
        replace(attempt, k=2),
        replace(attempt, attempt=2),
        replace(attempt, delivery=1),
        replace(attempt, worker="x"),
        replace(attempt, method=Method.EXECUTE),
        replace(attempt, session="elsewhere"),
    ):
        assert refusal(partial(flow.fail, wrong)) == "stale"
    flow.complete(attempt, {})
    flow.taken()
    assert refusal(lambda: flow.give_back(attempt)) == "stale"


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
    assert failure.type == "MalformedFailure"
    shown = read_failure({"message": "x" * 100_000, "type": "t" * 1_000}).shown()
    assert (len(shown["message"]), len(shown["type"])) == (16_384, 256)
