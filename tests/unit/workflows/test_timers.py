"""Timers fire once, when due, and never for a run that is over."""

from __future__ import annotations

from msgspec.structs import replace

from cluster.workflows import machine
from cluster.workflows.changes import Arm, Disarm
from cluster.workflows.deadlines import due_in
from tests.unit.workflows.simulation import COMPLETE, RUN_ID, Simulation, timer


def test_a_timer_is_armed_and_fires() -> None:
    sim = Simulation()
    sim.complete(timer(30))
    assert sim.payload("TimerScheduled") == {
        "timer_id": f"{RUN_ID}-t1",
        "sequence": 1,
        "delay_seconds": 30,
        "fire_at": "2025-11-30T12:00:30.123000Z",
    }
    assert sim.timers == {"t1": sim.now_ms + 30_000}
    sim.advance(30)
    sim.fire("t1")
    assert sim.payload("TimerFired") == {
        "timer_id": f"{RUN_ID}-t1",
        "sequence": 1,
        "delay_seconds": 30,
        "fired_at": "2025-11-30T12:00:30.123000Z",
    }
    assert sim.state.task_open
    assert sim.fire("t1").effects == [Disarm("t1")]


def test_a_timer_that_is_early_is_set_again() -> None:
    sim = Simulation()
    sim.complete(timer(30))
    due = sim.timers["t1"]
    sim.advance(29.9)
    changes = sim.fire("t1")
    assert changes.effects == [Arm("t1", due)]
    assert changes.state == sim.state


def test_a_firing_is_kept_back_while_the_task_is_leased() -> None:
    sim = Simulation()
    sim.complete(timer(1), timer(0))
    sim.claim()
    sim.advance(1)
    sim.fire("t1")
    assert sim.payload("TimerFired")["sequence"] == 2
    assert [event.payload["sequence"] for _, event in sim.waiting] == [1]
    sim.complete(timer(60))
    assert sim.payload("TimerFired")["sequence"] == 1
    assert sim.state.task_index == 3


def test_a_timer_of_a_closed_run_does_nothing() -> None:
    sim = Simulation()
    sim.complete(timer(1), timer(0))
    stale = sim.run
    sim.complete(COMPLETE)
    closed = replace(stale, state=sim.state)
    changes = machine.timer_due(closed, 1, sim.task_lease(), sim.now_us)
    assert changes.effects == [Disarm("t1")]
    assert not changes.events


def test_no_due_time_is_before_its_time() -> None:
    """A start within a millisecond counts from the end of it: rounding down would fire early."""
    sim = Simulation()
    sim.now_us += 1
    begun_us = sim.now_us
    sim.complete(timer(30))
    due_ms = sim.timers["t1"]
    assert due_ms * 1000 >= begun_us + 30_000_000
    sim.now_us = due_ms * 1000 - 1
    sim.fire("t1")
    assert sim.timers == {"t1": due_ms}
    sim.now_us += 1
    sim.fire("t1")
    assert sim.payload("TimerFired")
    assert due_in(5_001, 2) == due_in(6_000, 2) == 2_006
    assert due_in(5_001, 0) == 5
