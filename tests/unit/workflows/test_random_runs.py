"""Random workers, clocks and accidents against one run; the simulation checks every decision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cluster.errors import Refused
from cluster.ids import AttemptId, TaskId, TaskKind
from cluster.workflows import guards, machine
from cluster.workflows.records import RunStatus
from tests.unit.workflows.simulation import (
    BLOB,
    COMPLETE,
    FAIL,
    LEASE_MS,
    RUN_ID,
    START_US,
    WAITING,
    Simulation,
    activity,
    contender,
    member,
    timer,
)

KINDS = {
    "schedule_activity": "activity",
    "start_timer": "timer",
    "start_child_workflow": "child",
    "open_condition_wait": "condition",
}
TIMEOUTS = (
    "start_to_close_timeout",
    "schedule_to_start_timeout",
    "schedule_to_close_timeout",
    "heartbeat_timeout",
)


@st.composite
def activities(draw: st.DrawFn) -> dict[str, Any]:
    lengths = sorted(draw(st.lists(st.integers(1, 40), min_size=3, max_size=3)))
    limits = dict(
        zip(
            ("heartbeat_timeout", "start_to_close_timeout", "schedule_to_close_timeout"), lengths, strict=True
        )
    )
    limits["schedule_to_start_timeout"] = lengths[1]
    wanted = draw(st.sets(st.sampled_from(TIMEOUTS)))
    command = activity(**{name: limits[name] for name in wanted})
    if draw(st.booleans()):
        command["retry_policy"] = {
            "max_attempts": draw(st.integers(1, 4)),
            "backoff_seconds": draw(st.lists(st.integers(0, 15), max_size=3)),
            "non_retryable_error_types": ["ValueError"],
        }
    return command


Commands = st.SearchStrategy[dict[str, Any]]

LEAVES: Commands = activities() | st.builds(timer, st.integers(0, 20))
MARKERS: Commands = st.sampled_from(
    [
        {"type": "record_side_effect", "result": BLOB},
        {"type": "record_version_marker", "change_id": "c", "version": 1},
    ]
)
WAITS: Commands = st.builds(
    lambda timeout: {"type": "open_condition_wait", "timeout_seconds": timeout},
    st.none() | st.integers(0, 20),
)
CHILDREN: Commands = st.builds(
    lambda policy: {"type": "start_child_workflow", "workflow_type": "leaf", "parent_close_policy": policy},
    st.sampled_from(["abandon", "request_cancel", "terminate"]),
)
STEPS: Commands = LEAVES | MARKERS | WAITS | CHILDREN
SHAPES = st.lists(LEAVES | st.lists(LEAVES, min_size=1, max_size=3), min_size=1, max_size=4)


def parallel(base: int, shape: list[Any]) -> list[dict[str, Any]]:
    """The commands of a parallel list, with one level of nesting, as the SDK numbers them."""
    size = sum(len(item) if isinstance(item, list) else 1 for item in shape)
    commands: list[dict[str, Any]] = []
    for item in shape:
        index = len(commands)
        if isinstance(item, list):
            inner = [(base + index, len(item), number) for number in range(len(item))]
            commands += [
                member(leaf, base, size, index + number, inner[number]) for number, leaf in enumerate(item)
            ]
        else:
            commands.append(member(item, base, size, index))
    return commands


WORK = st.sampled_from(
    ["steps", "steps", "steps", "group", "group", "repeat", "waiting", "broken", "lapse", "complete", "fail"]
)
BROKEN = {"type": "NonDeterministicReplayError", "message": "replay failed"}


class RandomRun(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation()
        self.handed_out: list[tuple[AttemptId, str]] = []
        self.last_group: list[dict[str, Any]] = []

    @initialize(limit=st.none() | st.integers(20, 400), steps=st.lists(STEPS, max_size=4), shape=SHAPES)
    def begin(self, limit: int | None, steps: list[dict[str, Any]], shape: list[Any]) -> None:
        due = None if limit is None else START_US // 1000 + limit * 1000
        self.sim = Simulation(run_deadline_ms=due)
        self.last_group = parallel(len(steps) + 2, shape)
        self.sim.complete(*steps, timer(0), *self.last_group)

    @precondition(lambda self: self.sim.task_lease().state == "r")
    @rule()
    def claim_workflow_task(self) -> None:
        self.sim.claim()

    @precondition(lambda self: self.sim.task_lease().state == "l")
    @rule(data=st.data(), work=WORK)
    def answer_workflow_task(self, data: st.DataObject, work: str) -> None:
        sim = self.sim
        match work:
            case "steps":
                sim.complete(*data.draw(st.lists(STEPS, min_size=1, max_size=4)))
            case "group":
                before = data.draw(st.lists(STEPS, max_size=2))
                self.last_group = parallel(sim.state.next_step + len(before), data.draw(SHAPES))
                sim.complete(*before, *self.last_group)
            case "repeat":
                next_step = sim.state.next_step
                sim.complete(*self.last_group)
                assert sim.last.refusal is not None or sim.state.next_step == next_step
            case "waiting" | "broken":
                sim.fail_task(WAITING if work == "waiting" else BROKEN)
            case "lapse":
                sim.advance(LEASE_MS / 1000)
                sim.lapse_task()
            case _:
                sim.complete(
                    COMPLETE if work == "complete" else FAIL, *data.draw(st.lists(STEPS, max_size=2))
                )
                assert sim.state.status.closed

    @precondition(lambda self: any(not item.waiting for item in self.sim.run.activities.values()))
    @rule(data=st.data(), work=st.sampled_from(["finish", "finish", "fail", "fail", "heartbeat", "lapse"]))
    def work_on_activity(self, data: st.DataObject, work: str) -> None:
        """Hands an activity out when it is ready, else its worker or its lease decides."""
        sim = self.sim
        there = [step for step, item in sim.run.activities.items() if not item.waiting]
        step = data.draw(st.sampled_from(there))
        if sim.activity_lease(step).state == "r":
            owner = data.draw(st.sampled_from(["worker-1", "worker-2"]))
            lease = sim.claim_activity(step, owner)
            task = TaskId(RUN_ID, TaskKind.ACTIVITY, step)
            self.handed_out.append((AttemptId(task, lease.attempt, lease.delivery), owner))
            return
        match work:
            case "finish":
                sim.finish_activity(step)
            case "fail":
                name = data.draw(st.sampled_from(["ValueError", "OSError", "OSError"]))
                sim.fail_activity(step, type=name)
            case "heartbeat":
                sim.heartbeat(step, data.draw(st.none() | st.just({"current": 1})))
                sim.check()
            case _:
                sim.lapse_activity(step)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        """Any attempt ever handed out answers: only the current one may get through."""
        attempt, owner = data.draw(st.sampled_from(self.handed_out))
        lease = self.sim.lease(str(attempt.task))
        current = lease.state == "l" and lease.owner == owner and lease.attempt == attempt.attempt
        refused = pytest.raises(Refused, match=r"is over|another worker|is closed")
        over = self.sim.state.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        with contextlib.nullcontext() if current or over else refused:
            guards.activity_task(self.sim.run, lease, attempt.task, attempt, "orders", owner)
        answer = guards.activity_heartbeat(self.sim.run, lease, attempt.task, attempt, "orders", owner)
        assert answer["can_continue"] == current

    # -- clients and children ---------------------------------------------------------------

    @precondition(lambda self: not self.sim.state.status.closed)
    @rule(request_id=st.none() | st.sampled_from(["r1", "r2"]))
    def signal(self, request_id: str | None) -> None:
        before = self.sim.answers.get(f"r:{request_id}")
        told = self.sim.signal(request_id=request_id)
        assert (before is not None) == bool(told.get("retained"))

    @precondition(lambda self: not self.sim.state.status.closed)
    @rule()
    def update(self) -> None:
        self.sim.update()

    @precondition(lambda self: self.sim.task_lease().state == "l" and bool(self.sim.state.updates))
    @rule(data=st.data(), also=st.lists(STEPS, max_size=2), well=st.booleans())
    def answer_update(self, data: st.DataObject, also: list[dict[str, Any]], well: bool) -> None:
        number = data.draw(st.sampled_from([update.number for update in self.sim.state.updates]))
        said: dict[str, Any] = (
            {"type": "complete_update", "result": BLOB} if well else {"type": "fail_update"}
        )
        self.sim.complete({**said, "message": "no", "update_id": f"{RUN_ID}-u{number}"}, *also)

    @precondition(lambda self: self.sim.state.children)
    @rule(data=st.data(), status=st.sampled_from(["completed", "failed", "cancelled", "terminated"]))
    def end_child(self, data: st.DataObject, status: str) -> None:
        payload = {"output": None} if status == "completed" else {"message": "over", "reason": "over"}
        self.sim.end_child(data.draw(st.sampled_from(self.sim.state.children)), status, **payload)

    @precondition(lambda self: self.sim.task_lease().state == "l")
    @rule(members=st.lists(LEAVES | CHILDREN | WAITS, min_size=2, max_size=3))
    def complete_with_race(self, members: list[dict[str, Any]]) -> None:
        base = self.sim.state.next_step
        self.sim.complete(
            *(
                contender(each, base, len(members), index, kind=KINDS[each["type"]])
                for index, each in enumerate(members)
            )
        )

    @precondition(lambda self: not self.sim.state.status.closed)
    @rule(rare=st.integers(0, 20), cancels=st.booleans())
    def stop(self, rare: int, cancels: bool) -> None:
        if rare == 0:
            self.sim.cancel() if cancels else self.sim.terminate()
            assert self.sim.state.status.closed

    # -- time -------

    @rule(seconds=st.integers(0, 25))
    def let_time_pass(self, seconds: int) -> None:
        self.sim.advance(seconds)
        for _ in range(200):
            due = [name for name, due_ms in self.sim.timers.items() if due_ms <= self.sim.now_ms]
            if not due:
                return
            self.sim.fire(min(due))
        raise AssertionError("timers fire for ever")

    @precondition(lambda self: self.sim.timers)
    @rule(data=st.data())
    def fire_early(self, data: st.DataObject) -> None:
        """A housekeeper whose clock is ahead asks too early; only a back-off trusts its timer."""
        name = data.draw(st.sampled_from(sorted(self.sim.timers)))
        if name != "w":
            self.sim.fire(name)

    @precondition(lambda self: self.sim.state.status.closed)
    @rule(step=st.integers(1, 9))
    def nothing_moves_a_closed_run(self, step: int) -> None:
        sim = self.sim
        gone = sim.activity_lease(step)
        task = sim.task_lease()
        late: list[Callable[[], Any]] = [
            lambda: machine.complete_activity(sim.run, step, gone, task, None, sim.now_us),
            lambda: machine.fail_activity(sim.run, step, gone, task, {"message": "late"}, sim.now_us),
            lambda: machine.activity_lapsed(sim.run, step, gone, task, sim.now_us),
            lambda: machine.activity_deadline(sim.run, step, gone, task, sim.now_us),
            lambda: machine.timer_due(sim.run, step, task, sim.now_us),
            lambda: machine.workflow_task_lapsed(sim.run, task, sim.now_us),
            lambda: machine.workflow_task_due(sim.run, sim.now_us),
            lambda: machine.run_deadline(sim.run, task, sim.now_us, sim.limits),
        ]
        for decide in late:
            changes = sim.apply(decide())
            assert not changes.activities
            assert not changes.timers
            assert not changes.closes


TestRandomRun = RandomRun.TestCase
TestRandomRun.settings = settings(
    max_examples=150,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
