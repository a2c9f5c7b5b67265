"""The task of a lane: each handler finds it as if it was the first, whatever the one before it did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from headrace import Decision, Flow, StepContext, complete, step
from nodes.worker.context import Attempt
from nodes.worker.flow import bind
from nodes.worker.lane_runner import LaneRunner
from nodes.worker.running import Ended, TaskRunner
from nodes.worker.tasks import TaskBody

Handler = Callable[[], Awaitable[Any]]
color = ContextVar("color", default="none")


class Bench:
    """Runs handlers on one lane; ``ends`` is how they ended."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.ends: list[Ended] = []
        self.lane = LaneRunner(nursery, self._settle)
        self._settled = trio.Event()

    def _settle(self, ended: Ended) -> None:
        self.ends.append(ended)
        self._settled.set()

    def start(self, handler: Handler) -> Attempt:
        class Work(Flow, name="work"):
            @step
            async def run(self, ctx: StepContext) -> Decision:
                return complete(await handler())

        job = TaskRunner([bind(Work)], "w1", 1).job(
            TaskBody("a1", "step", "work", "f1", "r1", step_type="run", method="execute")
        )
        assert job is not None
        attempt = Attempt()
        self._settled = trio.Event()
        self.lane.start(job, attempt)
        return attempt

    async def end(self) -> dict[str, Any]:
        """How the running handler ended, as it goes over the wire."""
        await self._settled.wait()
        found: dict[str, Any] = msgspec.json.decode(self.ends[-1].failure or self.ends[-1].output or b"")
        return found

    async def run(self, handler: Handler) -> dict[str, Any]:
        self.start(handler)
        return await self.end()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Ends by itself: a lane whose task stayed would keep the nursery."""
    async with open_bench() as made:
        yield made


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        made = Bench(nursery)
        yield made
        made.lane.end()


async def one() -> int:
    await trio.lowlevel.checkpoint()
    return 1


def completed(result: Any) -> dict[str, Any]:
    return {"decision": {"complete": result}}


async def test_handlers_share_a_task_and_no_context(bench: Bench) -> None:
    tasks = set()

    async def paint() -> str:
        tasks.add(trio.lowlevel.current_task())
        before = color.get()
        color.set("red")
        await trio.lowlevel.checkpoint()
        return f"{before}, {color.get()}"

    for _ in range(3):
        assert await bench.run(paint) == completed("none, red")
    assert len(tasks) == 1


async def test_a_cancelled_handler_ends_as_a_failure_and_the_next_one_runs(bench: Bench) -> None:
    for number in range(3):
        attempt = bench.start(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        attempt.cancel("flow_closed")
        attempt.cancel("the second reason does not count")
        assert await bench.end() == {"message": "Cancelled: flow_closed.", "type": "Cancelled"}
        assert await bench.run(one) == completed(1)
        assert len(bench.ends) == 2 * number + 2


async def test_a_handler_that_is_cancelled_before_its_first_turn(bench: Bench) -> None:
    for _ in range(2):
        began = trio.Event()

        async def begin(began: trio.Event = began) -> None:
            began.set()
            await trio.lowlevel.checkpoint()

        bench.start(begin).cancel("early")
        assert (await bench.end())["type"] == "Cancelled"
        assert began.is_set()
        assert await bench.run(one) == completed(1)


async def test_a_handler_that_ends_well_in_spite_of_its_cancellation(bench: Bench) -> None:
    async def persist() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "all the same"

    attempt = bench.start(persist)
    await trio.testing.wait_all_tasks_blocked()
    attempt.cancel("late")
    assert await bench.end() == completed("all the same")
    assert await bench.run(one) == completed(1)


async def test_what_fails_beside_a_cancellation_is_a_failure_of_the_attempt(bench: Bench) -> None:
    async def fall() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("fell")

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fall)
            nursery.start_soon(trio.sleep_forever)

    attempt = bench.start(both)
    await trio.testing.wait_all_tasks_blocked()
    attempt.cancel("flow_closed")
    assert "fell" in (await bench.end())["stack_trace"]
    assert await bench.run(one) == completed(1)


async def test_a_scope_that_was_left_open_fails_its_own_attempt_only(bench: Bench) -> None:
    async def leave() -> None:
        trio.move_on_after(1_000).__enter__()

    assert "Cancel scope stack corrupted" in (await bench.run(leave))["message"]
    assert await bench.run(one) == completed(1)


async def test_a_lane_may_run_under_a_deadline() -> None:
    with trio.fail_after(1_000):
        async with open_bench() as bench:
            for _ in range(3):
                assert await bench.run(one) == completed(1)


async def test_a_lane_that_ran_nothing_or_whose_worker_is_cancelled_ends() -> None:
    async with open_bench():
        pass
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery)
        bench.start(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not bench.ends
