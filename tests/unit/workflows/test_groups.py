"""Parallel groups: metadata, wakes by the outermost group, repeated members (sdk-wire 4.7)."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import ValidationFailed
from cluster.workflows.commands import check_fields
from tests.unit.workflows.simulation import RUN_ID, WAITING, Simulation, activity, contender, member, timer


def metadata(command: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in command.items() if name.startswith("parallel_group_")}


def test_the_run_wakes_only_with_the_last_member() -> None:
    sim = Simulation()
    sim.complete(*(member(activity(), 1, 3, index) for index in range(3)))
    for step in (2, 1):
        sim.claim_activity(step)
        sim.finish_activity(step)
        assert not sim.state.task_open
    sim.claim_activity(3)
    changes = sim.fail_activity(3)
    assert changes.outcome["next_task_id"] == f"{RUN_ID}-w2"
    assert sim.state.groups == {}


def test_every_event_of_a_member_carries_its_metadata() -> None:
    sim = Simulation()
    first = member(activity(retry_policy={"max_attempts": 2}), 1, 2, 0)
    second = member(timer(1), 1, 2, 1)
    sim.complete(first, second)
    sim.claim_activity(1)
    sim.heartbeat(1, {"done": 1})
    sim.fail_activity(1)
    sim.claim_activity(1)
    sim.finish_activity(1)
    sim.advance(1)
    sim.fire("t2")
    for event in sim.history[2:]:
        expected = first if event["payload"]["sequence"] == 1 else second
        for name, value in metadata(expected).items():
            assert event["payload"][name] == value, event["event_type"]


def test_nested_groups_wait_for_the_outermost() -> None:
    sim = Simulation()
    sim.complete(
        member(activity(), 1, 3, 0),
        member(activity(), 1, 3, 1, (2, 2, 0)),
        member(activity(), 1, 3, 2, (2, 2, 1)),
    )
    for step in (2, 3):
        sim.claim_activity(step)
        sim.finish_activity(step)
    assert not sim.state.task_open
    assert sim.state.groups == {"1:3": 1}
    sim.claim_activity(1)
    sim.finish_activity(1)
    assert sim.state.task_open
    payload = sim.history[3]["payload"]
    assert payload["parallel_group_base_sequence"] == 2
    assert [level["parallel_group_base_sequence"] for level in payload["parallel_group_path"]] == [1, 2]


def test_timers_without_delay_do_not_wake_a_group_early() -> None:
    sim = Simulation()
    sim.complete(member(timer(0), 1, 3, 0), member(activity(), 1, 3, 1), member(timer(0), 1, 3, 2))
    assert not sim.state.task_open
    sim.claim_activity(2)
    sim.finish_activity(2)
    assert sim.state.task_open


def test_a_group_of_timers_without_delay_wakes_at_once() -> None:
    sim = Simulation()
    sim.complete(member(timer(0), 1, 2, 0), member(timer(0), 1, 2, 1))
    assert sim.state.task_open


def test_members_that_come_again_are_ignored() -> None:
    sim = Simulation()
    group = [member(activity(), 2, 2, index) for index in range(2)]
    sim.complete(timer(1), *group)
    before = list(sim.types)
    sim.advance(1)
    sim.fire("t1")
    changes = sim.complete(*group)
    assert sim.types == [*before, "TimerFired"]
    assert changes.outcome["created_task_ids"] == []
    assert sim.state.next_step == 4
    assert sim.state.groups == {"2:2": 2}
    sim.claim_activity(2)
    sim.finish_activity(2)
    sim.claim_activity(3)
    sim.finish_activity(3)
    assert sim.state.task_open


def test_the_counter_goes_on_behind_a_group() -> None:
    sim = Simulation()
    sim.complete(member(timer(1), 1, 2, 0), member(timer(1), 1, 2, 1), timer(2))
    assert [event["payload"]["sequence"] for event in sim.history[2:]] == [1, 2, 3]


def test_a_gated_end_that_was_pending_opens_no_task() -> None:
    sim = Simulation()
    sim.complete(member(activity(), 1, 2, 0), member(activity(), 1, 2, 1), timer(0))
    sim.claim_activity(1)
    sim.claim()
    sim.finish_activity(1)
    sim.fail_task(WAITING)
    assert not sim.state.task_open
    sim.claim_activity(2)
    sim.finish_activity(2)
    assert sim.state.task_open


def test_a_member_given_without_a_path_is_its_own_outermost_group() -> None:
    sim = Simulation()
    commands = [member(activity(), 1, 2, index) for index in range(2)]
    for command in commands:
        del command["parallel_group_path"]
    sim.complete(*commands)
    assert sim.state.groups == {"1:2": 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("selection_member_key", None),
        ("selection_member_kind", 3),
        ("selection_member_base_sequence", 4),
        ("selection_member_size", 0),
        ("selection_member_index", 3),
    ],
)
def test_the_fields_of_a_race_are_checked(field: str, value: object) -> None:
    command = contender(timer(), 1, 3, 0)
    command["parallel_group_path"][0][field] = value
    with pytest.raises(ValidationFailed) as failed:
        check_fields([command])
    assert list(failed.value.errors) == [f"commands.0.{field}"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parallel_group_path", "x"),
        ("parallel_group_path", ["x"]),
        ("parallel_group_base_sequence", 0),
        ("parallel_group_base_sequence", None),
        ("parallel_group_base_sequence", True),
        ("parallel_group_base_sequence", 1_000_000_000),
        ("parallel_group_size", 0),
        ("parallel_group_index", 2),
        ("parallel_group_index", -1),
        ("parallel_group_index", "0"),
    ],
)
def test_group_fields_are_checked(field: str, value: object) -> None:
    command = {**member(activity(), 1, 2, 0), field: value}
    with pytest.raises(ValidationFailed) as failed:
        check_fields([command])
    assert list(failed.value.errors) == [f"commands.0.{field}"]


def test_levels_of_the_path_are_checked() -> None:
    command = member(activity(), 1, 2, 0)
    command["parallel_group_path"] = [{**command["parallel_group_path"][0], "parallel_group_size": -1}]
    with pytest.raises(ValidationFailed) as failed:
        check_fields([command])
    assert list(failed.value.errors) == ["commands.0.parallel_group_path.0.parallel_group_size"]
