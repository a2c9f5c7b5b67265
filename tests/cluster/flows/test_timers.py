"""No timer of a flow is early, not by a part of a millisecond."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio

from cluster.flows.engine import ResultKind
from tests.cluster.flows.lab import Lab, go_to, wait_for

ROUNDS = 12
Begin = Callable[[Lab, str, float], Awaitable[None]]


async def redis_us(lab: Lab) -> int:
    seconds, rest = await lab.store.call("TIME")
    return int(seconds) * 1_000_000 + int(rest)


async def condition(lab: Lab, flow_id: str, seconds: float) -> None:
    waiting: dict[str, Any] = {"execute": {}, "wait_for": {}}
    await lab.start(flow_id, flow_id, options=waiting)
    await lab.do(wait_for("any", {"id": "t", "timer_seconds": seconds}), flow_id)


async def retry(lab: Lab, flow_id: str, seconds: float) -> None:
    await lab.start(flow_id, flow_id, options={"execute": {"retry": {"initial_interval_seconds": seconds}}})
    await lab.fail(await lab.take_one(flow_id))


async def retry_after(lab: Lab, flow_id: str, seconds: float) -> None:
    await lab.start(flow_id, flow_id)
    await lab.fail(await lab.take_one(flow_id), retry_after_seconds=seconds)


async def method(lab: Lab, flow_id: str, seconds: float) -> None:
    await lab.start(flow_id, flow_id, options={"execute": {"timeout_seconds": seconds}})
    await lab.take_one(flow_id)


async def following(lab: Lab, flow_id: str, seconds: float) -> None:
    """The method of a step that goes straight into the slot of the one before."""
    await lab.start(flow_id, flow_id)
    step = {"step_type": flow_id, "options": {"execute": {"timeout_seconds": seconds}}}
    await lab.do(go_to(step), flow_id)
    await lab.take_one(flow_id)


async def whole_flow(lab: Lab, flow_id: str, seconds: float) -> None:
    await lab.start(flow_id, flow_id, timeout_ms=int(seconds * 1000))


@pytest.mark.parametrize("begin", [condition, retry, retry_after, whole_flow])
async def test_a_timer_is_due_once_all_of_its_time_is_over(lab: Lab, begin: Begin) -> None:
    """Even where nearly a whole millisecond is cut off from the time at which it was set."""
    real, seen = lab.clock.now_us, [0]

    def nearly_the_next_millisecond() -> int:
        seen.append(real() // 1000 * 1000 + 999)
        return seen[-1]

    lab.clock.now_us = nearly_the_next_millisecond  # type: ignore[method-assign]
    for number, seconds in enumerate(delays(begin)):
        known = set(await lab.timers())
        await begin(lab, f"f{number}", seconds)
        waited_us = await due_of_new(lab, known) - seen[-1]
        assert seconds * 1_000_000 - 1 <= waited_us <= seconds * 1_000_000 + 100_000


@pytest.mark.parametrize("begin", [method, following])
async def test_an_attempt_has_all_of_its_time(lab: Lab, begin: Begin) -> None:
    """Its time-out counts from when the store handed it out."""
    for number, seconds in enumerate(delays(begin)):
        known = set(await lab.timers())
        asked_us = await redis_us(lab)
        await begin(lab, f"f{number}", seconds)
        assert await due_of_new(lab, known) >= asked_us + seconds * 1_000_000 - 1


def delays(begin: Begin) -> list[float]:
    """Seconds; of a whole flow they are whole milliseconds."""
    random = Random(7)
    whole = [random.randrange(1, 80) / 1000 for _ in range(ROUNDS)]
    return whole if begin is whole_flow else whole + [random.uniform(0.001, 0.08) for _ in range(ROUNDS)]


async def due_of_new(lab: Lab, known: set[str]) -> int:
    """When the only timer that was not known is due (us)."""
    (due_ms,) = [due for name, due in (await lab.timers()).items() if name not in known]
    return due_ms * 1000


async def test_a_timer_does_nothing_before_it_is_due(lab: Lab) -> None:
    await condition(lab, "f", 0.08)
    ((timer, due_ms),) = (await lab.timers()).items()
    other = lab.new_engine()
    with trio.fail_after(10):
        while True:
            began_us = await redis_us(lab)
            for engine in (lab.engine, other):
                await engine.timer_due(timer, due_ms)
            taken: list[Any] = await lab.take("f")
            if taken:
                break
            assert began_us < due_ms * 1000
    assert await redis_us(lab) >= due_ms * 1000
    assert (await lab.finish(taken[0], go_to("g"), kind=ResultKind.COMPLETED)).accepted
