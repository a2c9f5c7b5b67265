"""Structural limits refuse a whole batch and leave the run as it was."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import Refused
from cluster.workflows.limits import Limits, grows_long
from tests.unit.workflows.simulation import RUN_ID, Simulation, activity, member, timer

LONG = {"codec": "avro", "blob": "A" * 11}


@pytest.mark.parametrize(
    ("limits", "commands", "current"),
    [
        ({"pending_activity_count": 2}, [activity()] * 3, 2),
        ({"pending_timer_count": 1}, [timer(), timer()], 1),
        ({"command_batch_size": 2}, [timer()] * 3, 3),
        ({"payload_size": 10}, [activity(arguments=LONG)], 11),
        ({"payload_size": 10}, [{"type": "complete_workflow", "result": LONG}], 11),
        ({"payload_size": 10}, [{"type": "record_side_effect", "result": LONG["blob"]}], 11),
        ({"history_transaction_size": 3}, [timer(0), timer(0)], 4),
        ({"history_transaction_size": 1}, [timer(), {"type": "complete_workflow"}], 2),
    ],
)
def test_a_limit_refuses_the_batch(
    limits: dict[str, int], commands: list[dict[str, Any]], current: int
) -> None:
    ((kind, limit),) = limits.items()
    sim = Simulation(Limits(**limits))
    before = sim.claim()
    with pytest.raises(Refused) as refused:
        sim.complete(*commands)
    assert refused.value.status == 422
    assert refused.value.reason == "structural_limit_exceeded"
    assert refused.value.fields == {
        "task_id": f"{RUN_ID}-w1",
        "workflow_task_attempt": 1,
        "outcome": "rejected",
        "recorded": False,
        "run_id": RUN_ID,
        "run_status": "pending",
        "created_task_ids": [],
        "limit_kind": kind,
        "current_value": current,
        "configured_limit": limit,
    }
    assert sim.task_lease() == before
    sim.check()


def test_a_limit_counts_what_is_open_already() -> None:
    sim = Simulation(Limits(pending_activity_count=2))
    sim.complete(activity(), activity(), timer(0))
    sim.claim()
    with pytest.raises(Refused, match="pending_activity_count of 2 is reached"):
        sim.complete(activity())


def test_members_that_come_again_need_no_room() -> None:
    sim = Simulation(Limits(pending_activity_count=2))
    group = [member(activity(), 1, 2, index) for index in range(2)]
    sim.complete(*group, timer(0))
    sim.complete(*group)


def test_zero_switches_a_limit_off() -> None:
    off = Limits(pending_activity_count=0, command_batch_size=0, payload_size=0, history_transaction_size=0)
    sim = Simulation(off)
    sim.complete(*[activity(arguments=LONG)] * 1001)
    assert len(sim.state.activities) == 1001


def test_at_the_limit_is_within_it() -> None:
    sim = Simulation(Limits(pending_timer_count=2, command_batch_size=2, history_transaction_size=2))
    sim.complete(timer(), timer())


def too_long(limit: int, *commands: dict[str, Any]) -> Simulation:
    """A run whose workflow task answered with ``commands`` while so many events were allowed."""
    sim = Simulation(Limits(history_event_count=limit))
    sim.complete(*commands)
    return sim


def test_a_run_with_too_long_a_history_fails() -> None:
    sim = too_long(3, timer(60), timer(60))
    events = len(sim.types)
    assert events > 3
    assert sim.timers["r"] == sim.now_ms
    sim.fire("r")
    assert (sim.state.status.value, sim.state.closed_reason) == ("failed", "history_limit_exceeded")
    payload = sim.payload("WorkflowFailed")
    assert payload["limit_kind"] == "history_event_count"
    assert (payload["current_value"], payload["configured_limit"]) == (events, 3)
    assert str(events) in payload["message"]
    assert sim.timers == {}


def test_a_run_that_ends_with_a_long_history_has_ended() -> None:
    sim = too_long(3, timer(60), timer(60), {"type": "complete_workflow"})
    assert (sim.state.status.value, sim.state.closed_reason) == ("completed", "completed")
    assert "r" not in sim.timers


@pytest.mark.parametrize("limit", [0, 4])
def test_a_history_that_may_be_so_long_goes_on(limit: int) -> None:
    sim = too_long(limit, timer(60), timer(60))
    assert len(sim.types) == 4 or limit == 0
    assert "r" not in sim.timers


def test_a_history_grows_long_once() -> None:
    limits = Limits(history_event_count=10)
    assert [grows_long(limits, n, n + 1) for n in range(12)].count(True) == 1
    assert grows_long(limits, 2, 12)
    assert not grows_long(Limits(history_event_count=0), 0, 1 << 40)
