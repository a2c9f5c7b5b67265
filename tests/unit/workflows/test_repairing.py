"""What a run lacks, and the decision that brings it back."""

from __future__ import annotations

from msgspec.structs import replace

from cluster.workflows import machine, repairing
from cluster.workflows.changes import Arm, Disarm, ReadyActivityTask, ReadyWorkflowTask
from cluster.workflows.records import ActivityState, Lease, Run, RunStatus, TimerState, WaitState
from cluster.workflows.repairing import Findings, TaskFinding
from tests.unit.workflows.simulation import RUN_ID, START_US, run_info

NOW_MS = START_US // 1000
NO_LEASE = Lease(task_id="", state="")
WORKFLOW_TASK = f"{RUN_ID}-w1"


def _run(**fields: object) -> Run:
    """A run right after its start."""
    info = run_info()
    state = machine.start(info, START_US).state
    return Run(info=info, state=replace(state, **fields), version=1)


def _activity(**fields: object) -> ActivityState:
    return replace(
        ActivityState(
            step=1, activity_type="a", task_queue="q", scheduled_at_us=START_US, ready_at_ms=NOW_MS + 5
        ),
        **fields,
    )


def _found(run: Run, missing: str = "") -> Findings:
    """Everything is there but what ``missing`` names."""
    tasks = {task: TaskFinding("" if task == missing else "r") for task in repairing.expected_tasks(run)}
    timers = {name: None if name == missing else due for name, due in repairing.expected_timers(run).items()}
    return Findings(NOW_MS, tasks, timers)


def test_a_healthy_run_lacks_nothing() -> None:
    run = _run()

    assert repairing.expected_tasks(run) == [WORKFLOW_TASK]
    assert not repairing.lacks(run, _found(run))
    assert repairing.mend(run, _found(run), NO_LEASE, START_US, None) is None


def test_a_missing_workflow_task_comes_back_under_its_attempt() -> None:
    run = _run(task_attempt=4)

    changes = repairing.mend(run, _found(run, WORKFLOW_TASK), NO_LEASE, START_US, "c1")

    assert changes is not None
    assert changes.effects == [ReadyWorkflowTask(1, 4)]
    assert changes.outcome == {"existing": 0, "missing": 1}
    assert changes.events[-1].event_type == "RepairRequested"
    assert changes.events[-1].payload["task_ids"] == [WORKFLOW_TASK]
    assert changes.events[-1].payload["workflow_command_id"] == "c1"


def test_a_failing_workflow_task_is_tried_now() -> None:
    run = _run(task_waiting=True, task_failures=3, task_attempt=4)

    changes = repairing.mend(run, _found(run), NO_LEASE, START_US, None)

    assert changes is not None
    assert changes.effects == [Disarm("w"), ReadyWorkflowTask(1, 4)]
    assert (changes.state.task_waiting, changes.state.task_failures) == (False, 3)
    assert changes.outcome == {"existing": 1, "missing": 0}


def test_a_run_that_starts_later_keeps_waiting() -> None:
    run = _run(task_waiting=True, task_failures=0)

    assert repairing.mend(run, _found(run), NO_LEASE, START_US, None) is None


def test_missing_items_come_back() -> None:
    ready, waiting = _activity(), _activity(step=2, waiting=True)
    timer = TimerState(step=3, delay_seconds=60, fire_at_ms=NOW_MS + 60_000)
    wait = WaitState(step=4, timeout_seconds=9, due_ms=NOW_MS + 9_000)
    run = replace(
        _run(status=RunStatus.WAITING, task_open=False, activities=(1, 2), timers=(3,), waits=(wait,)),
        activities={1: ready, 2: waiting},
        timers={3: timer},
    )
    expected = {
        f"{RUN_ID}-a1": ReadyActivityTask(ready),
        "a2": Arm("a2", NOW_MS + 5),
        "t3": Arm("t3", NOW_MS + 60_000),
        "q4": Arm("q4", NOW_MS + 9_000),
    }

    for missing, effect in expected.items():
        changes = repairing.mend(run, _found(run, missing), NO_LEASE, START_US, None)
        assert changes is not None
        assert changes.effects == [effect], missing
    assert repairing.mend(run, _found(run), NO_LEASE, START_US, None) is None


def test_a_closed_run_is_left_alone() -> None:
    run = _run(status=RunStatus.COMPLETED)

    assert repairing.mend(run, _found(run, WORKFLOW_TASK), NO_LEASE, START_US, None) is None


def test_lapsed_and_due() -> None:
    tasks = {"a": TaskFinding("l", NOW_MS), "b": TaskFinding("l", NOW_MS + 1), "c": TaskFinding("r")}
    found = Findings(NOW_MS, tasks, {"t1": NOW_MS, "t2": NOW_MS + 1, "t3": None})

    assert found.lapsed() == ["a"]
    assert found.due() == {"t1": NOW_MS}
