"""The rules of whole flows: conditions, failure policies, locks, stops and hand-outs."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from cluster.flows.machine import StopType
from cluster.flows.records import (
    FlowStatus,
    Method,
    MethodOptions,
    Phase,
    StepOptions,
)
from cluster.flows.wire import Failure, RpcOutput, read_options, read_output
from tests.unit.flows.simulation import DEAD_END, START_MS, Simulation, lead_to, refusal

SECOND_MS = 1_000
HOUR_MS = 3_600_000


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
