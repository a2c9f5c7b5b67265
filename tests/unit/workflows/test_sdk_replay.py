"""The public SDK replays what the state machine writes, whatever the order of things.

The SDK's own replayer stands in for a worker: it reads the history, and its commands go back into
the machine. Chance decides who answers when, who fails and whose lease runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any

import pytest
from durable_workflow import ActivityFailed, Replayer, workflow

from cluster import payloads
from cluster.workflows.decision import Decision
from tests.unit.workflows.simulation import LEASE_MS, WAITING, Simulation

Steps = Generator[Any, Any, Any]
BROKEN = {"type": "WorkerCrashed", "message": "the worker stumbled"}


@workflow.defn(name="sequence")
class Sequence:
    """One thing after the other, with retries, markers and a failure that is caught."""

    def run(self, ctx: Any, who: str) -> Steps:
        greeting = yield ctx.schedule_activity("greet", [who])
        seen = yield ctx.side_effect(lambda: 7)
        version = yield ctx.get_version("c1", 1, 2)
        yield ctx.start_timer(30)
        yield ctx.start_timer(0)
        flaky = yield ctx.schedule_activity(
            "flaky", [3], retry_policy={"max_attempts": 4, "backoff_seconds": [1, 2]}
        )
        try:
            yield ctx.schedule_activity("fatal", [])
        except ActivityFailed as error:
            caught = str(error)
        return [greeting, seen, version, flaky, "no way" in caught, ctx.now().isoformat()]


@workflow.defn(name="parallel")
class Parallel:
    """Nested parallel lists, twice, with timers among them."""

    def run(self, ctx: Any) -> Steps:
        first = yield [
            ctx.schedule_activity("double", [1]),
            ctx.start_timer(0),
            [ctx.schedule_activity("double", [2]), ctx.schedule_activity("double", [3]), ctx.start_timer(5)],
        ]
        single = yield ctx.schedule_activity("double", [10])
        second = yield [ctx.schedule_activity("double", [n]) for n in range(4)]
        return [first[0], first[2][:2], single, second]


@workflow.defn(name="broken-group")
class BrokenGroup:
    """One member of a group fails; the workflow hears of it when all are over, and goes on."""

    def run(self, ctx: Any) -> Steps:
        try:
            yield [
                ctx.schedule_activity("double", [1]),
                ctx.schedule_activity("fatal", []),
                ctx.start_timer(3),
            ]
        except ActivityFailed:
            return (yield ctx.schedule_activity("double", [21]))
        return "unreachable"


@workflow.defn(name="raises")
class Raises:
    def run(self, ctx: Any) -> Steps:
        yield ctx.schedule_activity("fatal", [])


def _flaky(number: int, attempt: int) -> int:
    if attempt < number:
        raise RuntimeError(f"boom {attempt}")
    return attempt


def _fatal(attempt: int) -> None:
    raise LookupError("no way")


ACTIVITIES: dict[str, Callable[..., Any]] = {
    "greet": lambda who, attempt: f"hello, {who}",
    "double": lambda number, attempt: number * 2,
    "flaky": _flaky,
    "fatal": _fatal,
}


class World:
    """Runs one workflow to its end; ``random`` chooses what happens next."""

    def __init__(self, definition: type, arguments: list[Any], random: Random, calm: bool) -> None:
        self.name: str = next(name for name, cls in workflow.registry().items() if cls is definition)
        self.replayer = Replayer(workflows=[definition])
        self.arguments = arguments
        self.random = random
        self.calm = calm
        self.sim = Simulation(workflow_type=self.name)
        self.snapshot: list[dict[str, Any]] = []

    def run(self) -> Any:
        for _ in range(2000):
            if self.sim.state.status.closed:
                return self._result()
            self.random.choice(self._moves())()
        raise AssertionError(f"no end: {self.sim.types}")

    def _result(self) -> Any:
        output = self.sim.state.output
        return self.sim.state.failure if output is None else payloads.decode(output)

    def _moves(self) -> list[Callable[[], None]]:
        sim = self.sim
        moves: list[Callable[[], None]] = []
        state = sim.task_lease().state
        if state == "r":
            moves.append(self.claim)
        elif state == "l":
            moves += [self.answer] * 3
            if not self.calm:
                moves += [self._lapse, self._stumble]
        for step, item in sim.run.activities.items():
            if item.waiting:
                continue
            if sim.activity_lease(step).state == "r":
                moves.append(partial(self.claim_activity, step))
            else:
                moves += [partial(self.work, step)] * 3
                if not self.calm and item.lapses < 2:
                    moves.append(partial(self._lapse_activity, step))
        if sim.timers:
            moves.append(self._fire_next)
        return moves

    def claim(self) -> None:
        self.sim.claim()
        self.snapshot = list(self.sim.history)

    def answer(self) -> None:
        outcome = self.replayer.replay(
            self.snapshot, self.arguments, workflow_type=self.name, payload_codec="avro"
        )
        commands = workflow.commands_to_server_commands(outcome.commands, "main")
        if commands:
            self.sim.complete(*commands)
        else:
            self.sim.fail_task(WAITING)

    def _lapse(self) -> None:
        self.sim.advance(LEASE_MS / 1000)
        self.sim.lapse_task()

    def _stumble(self) -> None:
        self.sim.fail_task(BROKEN)

    def claim_activity(self, step: int) -> None:
        self.sim.claim_activity(step)

    def work(self, step: int) -> None:
        item = self.sim.run.activities[step]
        arguments = payloads.decode(item.arguments) if item.arguments else []
        try:
            result = ACTIVITIES[item.activity_type](*arguments, attempt=item.attempt - item.lapses)
        except Exception as error:
            kind = type(error)
            self.sim.fail_activity(
                step,
                message=str(error),
                type=kind.__name__,
                **{"class": f"{kind.__module__}.{kind.__name__}"},
            )
        else:
            self.sim.finish_activity(step, payloads.encode(result))

    def _lapse_activity(self, step: int) -> None:
        self.sim.lapse_activity(step)

    def _fire_next(self) -> None:
        name, due_ms = min(self.sim.timers.items(), key=lambda timer: timer[1])
        self.sim.now_us = max(self.sim.now_us, due_ms * 1000)
        self.sim.fire(name)


STARTED = "2025-11-30T12:00:00.123000+00:00"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("definition", "arguments", "expected"),
    [
        (Sequence, ["Ada"], ["hello, Ada", 7, 2, 3, True, STARTED]),
        (Parallel, [], [2, [4, 6], 20, [0, 2, 4, 6]]),
        (BrokenGroup, [], 42),
    ],
)
@pytest.mark.parametrize("calm", [True, False])
def test_the_result_does_not_depend_on_chance(
    definition: type, arguments: list[Any], expected: object, seed: int, calm: bool
) -> None:
    world = World(definition, arguments, Random(seed), calm)
    assert world.run() == expected
    scheduled = world.sim.types.count("ActivityScheduled")
    over = sum(world.sim.types.count(f"Activity{end}") for end in ("Completed", "Failed", "TimedOut"))
    assert scheduled == over


def test_an_activity_failure_that_nobody_catches_fails_the_run() -> None:
    world = World(Raises, [], Random(1), calm=True)
    failure = world.run()
    assert world.sim.types[-1] == "WorkflowFailed"
    assert "no way" in failure["message"]


def test_a_timeout_reaches_the_workflow_as_a_failure() -> None:
    world = World(Raises, [], Random(1), calm=True)
    world.claim()
    world.answer()
    for _ in range(4):
        world.sim.claim_activity(1)
        world.sim.lapse_activity(1)
    failure = world.run()
    assert world.sim.types[-1] == "WorkflowFailed"
    assert "lease ran out" in failure["message"]


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_a_wake_in_the_middle_of_a_group_does_no_harm(answered: int) -> None:
    """The SDK repeats the whole group then; nothing of it may be scheduled twice."""
    world = World(Parallel, [], Random(answered), calm=True)
    world.claim()
    world.answer()
    for step in (1, 3, 4)[:answered]:
        world.claim_activity(step)
        world.work(step)
    before = world.sim.types.count("ActivityScheduled")
    if not world.sim.state.task_open:
        wake(world.sim)
    world.claim()
    world.answer()
    assert world.sim.types.count("ActivityScheduled") == before
    assert world.run() == [2, [4, 6], 20, [0, 2, 4, 6]]


def wake(sim: Simulation) -> None:
    """Opens a workflow task that nothing in the history asks for, as a signal will."""
    decision = Decision(sim.run, sim.now_us)
    decision.open_workflow_task()
    sim.apply(decision.changes())
