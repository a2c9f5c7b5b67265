"""Condition waits: closed first and unconditionally, together with their timers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.workflows.simulation import (
    BLOB,
    COMPLETE,
    WAITING,
    Simulation,
    activity,
    contender,
    timer,
)


def wait(timeout: int | None = None, **fields: Any) -> dict[str, Any]:
    command = {"type": "open_condition_wait", "condition_definition_fingerprint": "sha256:1", **fields}
    return command if timeout is None else {**command, "timeout_seconds": timeout}


def test_key_and_fingerprint_are_echoed_or_left_out() -> None:
    sim = Simulation()
    sim.complete(wait(condition_key="inbox"))
    opened = sim.payload("ConditionWaitOpened")
    assert opened["condition_key"] == "inbox"
    assert opened["condition_definition_fingerprint"] == "sha256:1"
    assert "timeout_seconds" not in opened
    sim.signal()
    sim.complete({"type": "open_condition_wait"})
    assert "condition_key" not in sim.payload("ConditionWaitOpened")


@pytest.mark.parametrize(
    "moves", [wait(), activity(), timer(9), {"type": "record_side_effect", "result": BLOB}]
)
def test_whatever_moves_the_code_closes_the_wait_first(moves: dict[str, Any]) -> None:
    sim = Simulation()
    sim.complete(wait(30))
    sim.signal()
    before = len(sim.history)
    sim.complete(moves)
    assert sim.types[before] == "ConditionWaitSatisfied"
    assert sim.payload("ConditionWaitSatisfied")["sequence"] == 1
    assert "q1" not in sim.timers


def test_a_wait_opened_again_is_a_new_one_with_the_full_timeout() -> None:
    sim = Simulation()
    sim.complete(wait(30))
    sim.advance(20)
    sim.signal()
    sim.complete(wait(30))
    assert [w.step for w in sim.state.waits] == [2]
    assert sim.timers == {"q2": sim.now_ms + 30_000}


def test_a_timer_of_another_step_moves_the_code_too() -> None:
    sim = Simulation()
    sim.complete(contender(activity(), 1, 2, 0, kind="activity"), contender(timer(5), 1, 2, 1))
    sim.claim_activity(1)
    sim.finish_activity(1)
    sim.complete(wait(20))
    sim.advance(5)
    sim.fire("t2")
    sim.complete(wait(20))
    assert [w.step for w in sim.state.waits] == [4]
    assert sim.types.count("ConditionWaitSatisfied") == 1


def test_waiting_for_history_leaves_the_wait_as_it_is() -> None:
    sim = Simulation()
    sim.complete(wait(30))
    sim.signal()
    sim.fail_task(WAITING)
    assert [w.step for w in sim.state.waits] == [1]
    assert "q1" in sim.timers


def test_only_an_answer_to_an_update_leaves_it_too() -> None:
    sim = Simulation()
    sim.complete(wait(30))
    update_id = sim.update()["update_id"]
    sim.complete({"type": "complete_update", "update_id": update_id, "result": BLOB})
    assert [w.step for w in sim.state.waits] == [1]


def test_the_timeout_ends_the_wait_and_wakes() -> None:
    sim = Simulation()
    sim.complete(wait(3, condition_key="k"))
    sim.advance(3)
    sim.fire("q1")
    assert sim.types[-2:] == ["TimerFired", "ConditionWaitTimedOut"]
    assert sim.payload("TimerFired")["timer_kind"] == "condition_timeout"
    resume = sim.state.resume
    assert resume["workflow_wait_kind"] == "condition"
    assert resume["open_wait_id"] == resume["condition_wait_id"]
    assert resume["condition_key"] == "k"


def test_a_timeout_that_comes_after_the_wait_was_closed_does_nothing() -> None:
    sim = Simulation()
    sim.complete(wait(3))
    sim.signal()
    sim.complete(activity())
    before = list(sim.types)
    sim.advance(9)
    sim.fire("q1")
    assert sim.types == before


def test_no_timeout_at_all_is_over_at_once_and_wakes() -> None:
    sim = Simulation()
    sim.complete(wait(0))
    assert sim.types[-1] == "ConditionWaitTimedOut"
    assert sim.task_lease().state == "r"


def test_a_timeout_during_a_leased_task_waits_for_its_end() -> None:
    sim = Simulation()
    sim.complete(wait(3))
    sim.signal()
    sim.claim()
    sim.advance(3)
    sim.fire("q1")
    assert "ConditionWaitTimedOut" not in sim.types
    sim.fail_task(WAITING)
    assert sim.types[-1] == "ConditionWaitTimedOut"
    assert sim.task_lease().state == "r"


def test_the_end_of_the_run_leaves_no_timer() -> None:
    sim = Simulation()
    sim.complete(wait(30))
    sim.signal()
    sim.complete(COMPLETE)
    assert sim.timers == {}
