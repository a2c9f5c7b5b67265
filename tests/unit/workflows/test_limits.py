"""Structural limits refuse a whole batch and leave the run as it was."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import Refused
from cluster.workflows.limits import Limits
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
