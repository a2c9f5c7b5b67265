"""Results go to the engine a loop turn at a time, and are held while the store is away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from cluster.errors import HeadraceError, OutcomeUnknown, StoreUnavailable
from cluster.flows.finishing import HeartbeatVerdict, ResultKind, StepResult, Verdict
from cluster.queues.hand_outs import UnderWay
from nodes.streams.results import Results


def result(name: str) -> StepResult:
    return StepResult(name, 1, 0, "execute", "w", "s", ResultKind.COMPLETED)


@dataclass
class FakeEngine:
    """Takes results; first raises what is in ``trouble``, in order."""

    trouble: list[Exception] = field(default_factory=list)
    poison: str = ""
    calls: list[list[str]] = field(default_factory=list)

    async def finish(self, results: Sequence[StepResult]) -> list[Verdict]:
        await trio.lowlevel.checkpoint()
        names = [one.task_id for one in results]
        self.calls.append(names)
        if self.trouble:
            raise self.trouble.pop(0)
        if self.poison in names:
            raise HeadraceError("cannot take this")
        return [Verdict(True, None, name) for name in names]

    async def heartbeat(self, *_: object) -> HeartbeatVerdict:
        raise AssertionError


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def results(engine: FakeEngine, nursery: trio.Nursery) -> Results:
    made = Results(engine, UnderWay())
    await nursery.start(made.run)
    return made


async def test_what_ends_in_one_turn_goes_together(results: Results, engine: FakeEngine) -> None:
    told: list[str] = []
    for name in "abc":
        results.settle(result(name), lambda verdict: told.append(verdict.message))
    assert results.pending == 3
    await results.drained()
    assert (engine.calls, told) == ([["a", "b", "c"]], ["a", "b", "c"])


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("lost")])
async def test_e2_results_wait_for_the_store(
    results: Results, engine: FakeEngine, error: Exception, autojump_clock: MockClock
) -> None:
    engine.trouble = [error] * 20
    told: list[str] = []
    results.settle(result("a"), lambda verdict: told.append(verdict.message))
    await trio.sleep(5)
    assert told == []
    with trio.fail_after(60):
        await results.drained()
    assert told == ["a"]
    assert results.retries == 20


async def test_others_do_not_wait_for_what_is_held(
    results: Results, engine: FakeEngine, autojump_clock: MockClock
) -> None:
    engine.trouble = [StoreUnavailable("away")]
    told: list[str] = []
    results.settle(result("a"), lambda verdict: told.append(verdict.message))
    await wait_all_tasks_blocked()
    results.settle(result("b"), lambda verdict: told.append(verdict.message))
    await results.drained()
    assert told == ["b", "a"]


async def test_one_that_cannot_be_taken_spoils_no_others(results: Results, engine: FakeEngine) -> None:
    engine.poison = "b"
    told: dict[str, bool] = {}
    for name in "abc":
        results.settle(result(name), partial(_note, told, name))
    await results.drained()
    assert told == {"a": True, "b": False, "c": True}


def _note(told: dict[str, bool], name: str, verdict: Verdict) -> None:
    told[name] = verdict.accepted


async def test_large_turns_are_cut(results: Results, engine: FakeEngine) -> None:
    for number in range(600):
        results.settle(result(str(number)), lambda verdict: None)
    await results.drained()
    assert [len(call) for call in engine.calls] == [256, 256, 88]
