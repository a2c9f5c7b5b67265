"""Races, signals, conditions, queries and updates."""

from __future__ import annotations

import asyncio
from typing import Any

from durable_workflow import SignalFailed, UpdateFailed, UpdateRejected
from durable_workflow.errors import DurableWorkflowError, QueryFailed

from tests.e2e.scenarios.stage import Scenario, Stage, planned
from tests.e2e.scenarios.steps import activity, child_plan, echo, every, first, sleep, until

RACES = [
    planned(
        "an activity wins",
        first(a=echo("fast"), t=sleep(60), cancel=True),
        echo(1),
        expected=[["a", "activity", "fast"], 1],
        events={"SelectionOperationCancelled": 1},
    ),
    planned(
        "a timer wins",
        first(a=echo("slow", 20.0), t=sleep(1), cancel=True),
        echo(1),
        expected=[["t", "timer", None], 1],
    ),
    planned(
        "a child wins",
        first(c=child_plan(echo(5)), t=sleep(60), cancel=True),
        expected=lambda result: result[0][0] == "c" and result[0][2] == [5],
    ),
    planned(
        "a condition that times out wins",
        first(c=until(1, timeout=1), t=sleep(60), cancel=True),
        ["inbox"],
        expected=lambda result: result[0][0] == "c" and result[0][2] is False and result[1] == [],
    ),
    planned(
        "a list wins",
        first(both=every(echo(1), echo(2)), t=sleep(60), cancel=True),
        expected=lambda result: result[0][0] == "both" and result[0][2] == [1, 2],
    ),
    planned(
        "the loser is awaited",
        first("slow", fast=echo(1), slow=echo(2, 1.0)),
        expected=[["fast", "activity", 1, 2]],
    ),
    planned(
        "the winner failed",
        first(bad=activity("boom", "first"), t=sleep(60), cancel=True),
        expected=lambda result: result[0][0] == "bad" and "first" in result[0][2],
    ),
    planned(
        "races in a row",
        *[first(a=echo(number), t=sleep(60), cancel=True) for number in range(5)],
        expected=[["a", "activity", number] for number in range(5)],
    ),
    planned(
        "all at once",
        first("b", "c", a=echo(1), b=echo(2), c=echo(3)),
        expected=lambda result: len(result[0]) == 5,
    ),
]


def put(*values: Any) -> Any:
    """Sends the values as signals, one after the other."""

    async def send(stage: Stage) -> None:
        for value in values:
            await stage.signal("put", value)

    return send


async def put_while_it_works(stage: Stage) -> None:
    await stage.happened("ActivityScheduled")
    await put("during", "still")(stage)


async def put_at_once(stage: Stage) -> None:
    """Twenty at the same time; their order is open."""
    async with asyncio.TaskGroup() as group:
        for value in range(20):
            group.create_task(stage.signal("put", value))


async def put_the_same_twice(stage: Stage) -> None:
    for _ in range(3):
        await stage.here.signal_workflow(stage.id, "put", args=["once"], request_id="the-same")
    await stage.signal("put", "other")


async def put_by_handle(stage: Stage) -> None:
    run_id = (await stage.there.describe_workflow(stage.id)).run_id
    await stage.here.get_workflow_handle(stage.id, run_id=run_id).signal("put", ["by run"])


async def refused(stage: Stage, name: str) -> None:
    try:
        await stage.signal(name, 1)
    except (SignalFailed, DurableWorkflowError):
        return
    raise AssertionError(f"took signal {name}")


async def put_nonsense(stage: Stage) -> None:
    await stage.happened("ConditionWaitOpened")
    await refused(stage, "nonsense")
    await stage.signal("put", 1)


async def put_step_by_step(stage: Stage) -> None:
    for count in (1, 2, 3):
        await stage.happened("ConditionWaitOpened", count)
        await stage.signal("put", count)


async def put_after_the_timeout(stage: Stage) -> None:
    await stage.happened("ConditionWaitTimedOut")
    await stage.signal("put", 1)
    await asyncio.sleep(0.3)
    await stage.signal("put", 2)


SIGNALS_AND_CONDITIONS = [
    planned(
        "signals at once after the start",
        until(3),
        ["inbox"],
        meanwhile=put(1, 2, 3),
        expected=[True, [1, 2, 3]],
        events={"SignalReceived": 3},
    ),
    planned(
        "signals while an activity runs",
        echo(1, 1.0),
        until(2),
        ["inbox"],
        meanwhile=put_while_it_works,
        expected=[1, True, ["during", "still"]],
    ),
    planned(
        "twenty signals at once",
        until(20),
        ["inbox"],
        meanwhile=put_at_once,
        expected=lambda result: sorted(result[1]) == list(range(20)),
        events={"SignalReceived": 20},
    ),
    planned(
        "a repeated signal",
        until(2),
        ["inbox"],
        meanwhile=put_the_same_twice,
        expected=[True, ["once", "other"]],
        events={"SignalReceived": 2},
    ),
    planned("a signal to a run", until(1), ["inbox"], meanwhile=put_by_handle, expected=[True, ["by run"]]),
    planned("a signal after the end", expected=[], afterwards=lambda stage: refused(stage, "put")),
    planned("a signal nobody declared", until(1), meanwhile=put_nonsense, expected=[True]),
    planned(
        "a large signal", until(1), ["inbox"], meanwhile=put("y" * 300_000), expected=[True, ["y" * 300_000]]
    ),
    planned(
        "conditions in a row",
        until(1),
        until(2),
        until(3),
        meanwhile=put_step_by_step,
        expected=[True] * 3,
        events={"ConditionWaitSatisfied": 3},
    ),
    planned("a condition that holds already", until(0), echo(1), expected=[True, 1]),
    planned(
        "a condition that times out",
        until(1, timeout=1),
        echo(1),
        expected=[False, 1],
        events={"ConditionWaitTimedOut": 1},
    ),
    planned(
        "a wait that goes on after signals",
        until(3, timeout=60),
        ["inbox"],
        meanwhile=put(1, 2, 3),
        expected=[True, [1, 2, 3]],
        events={"ConditionWaitTimedOut": 0},
    ),
    planned(
        "a wait after one that timed out",
        until(2, timeout=1),
        until(2, timeout=60),
        ["inbox"],
        meanwhile=put_after_the_timeout,
        expected=[False, True, [1, 2]],
    ),
]


async def ask_while_open(stage: Stage) -> None:
    await stage.happened("ConditionWaitOpened")
    assert await stage.query("results") == [1, 2]
    await stage.signal("put", "a")

    async def arrived() -> bool:
        return bool(await stage.query("inbox", 1) == ["a"])

    await stage.eventually(arrived, "signal in query")
    await stage.signal("put", "b")


async def ask_when_closed(stage: Stage) -> None:
    assert await stage.query("results") == [1, [2, 3]]


async def ask_wrongly(stage: Stage) -> None:
    for name, text in (("nonsense", "nonsense"), ("broken", "cannot tell")):
        try:
            await stage.query(name)
        except QueryFailed as error:
            assert text in str(error), error  # noqa: PT017 - the loop tells which
        else:
            raise AssertionError(f"answered {name}")


async def ask_and_change(stage: Stage) -> None:
    assert [await stage.query("grow") for _ in range(3)] == [1, 1, 1]
    await stage.signal("put", 1)


async def ask_many(stage: Stage) -> None:
    await stage.happened("ConditionWaitOpened")
    answers = await asyncio.gather(*[stage.query("results") for _ in range(15)])
    assert answers == [[7]] * 15
    await stage.signal("put", 1)


QUERIES = [
    planned(
        "queries of an open run", echo(1), echo(2), until(2), meanwhile=ask_while_open, expected=[1, 2, True]
    ),
    planned(
        "queries of a closed run",
        echo(1),
        every(echo(2), echo(3)),
        expected=[1, [2, 3]],
        afterwards=ask_when_closed,
    ),
    planned("queries that fail", echo(1), expected=[1], afterwards=ask_wrongly),
    planned("queries change nothing", until(1), ["inbox"], meanwhile=ask_and_change, expected=[True, [1]]),
    planned("many queries at once", echo(7), until(1), meanwhile=ask_many, expected=[7, True]),
]


async def complete_updates(stage: Stage) -> None:
    assert [await stage.update("add", number) for number in range(4)] == [1, 2, 3, 4]


async def accept_updates(stage: Stage) -> None:
    assert await stage.update("add", "x", wait_for="accepted") in ("accepted", 1)
    assert await stage.update("add", "y", wait_for="accepted") in ("accepted", 2)


async def fail_an_update(stage: Stage) -> None:
    try:
        await stage.update("add", "bad")
    except UpdateFailed as error:
        assert "no such thing" in str(error)  # noqa: PT017 - the run must go on
    else:
        raise AssertionError("the update did not fail")
    assert await stage.update("add", "good") == 1


async def repeat_an_update(stage: Stage) -> None:
    answers = [await stage.update("add", "once", request_id="the-same") for _ in range(3)]
    assert answers == [1, 1, 1]
    assert await stage.update("add", "other") == 2


async def update_and_signal(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(stage.update("add", number))
            group.create_task(stage.signal("put", number + 100))


async def update_while_it_works(stage: Stage) -> None:
    await stage.happened("ActivityScheduled")
    assert await stage.update("add", 1) == 1


async def validate_updates(stage: Stage) -> None:
    assert await stage.update("add", 6) == 6
    for wrong in (3, 6):
        try:
            await stage.update("add", wrong)
        except UpdateRejected as error:
            assert "do not go together" in str(error)  # noqa: PT017 - the run must go on
        else:
            raise AssertionError(f"took {wrong}")
    assert await stage.update("add", 4) == 10


async def update_too_late(stage: Stage) -> None:
    try:
        await stage.update("add", 1)
    except DurableWorkflowError:
        return
    raise AssertionError("took an update after the end")


UPDATES = [
    planned(
        "completed updates",
        until(4),
        ["inbox"],
        meanwhile=complete_updates,
        expected=[True, [0, 1, 2, 3]],
        events={"UpdateApplied": 4, "UpdateCompleted": 4},
    ),
    planned("accepted updates", until(2), ["inbox"], meanwhile=accept_updates, expected=[True, ["x", "y"]]),
    planned(
        "a failed update",
        until(1),
        ["inbox"],
        meanwhile=fail_an_update,
        expected=[True, ["good"]],
        events={"UpdateApplied": 1},
    ),
    planned(
        "a repeated update",
        until(2),
        ["inbox"],
        meanwhile=repeat_an_update,
        expected=[True, ["once", "other"]],
        events={"UpdateAccepted": 2},
    ),
    planned(
        "updates and signals at once",
        until(16),
        ["inbox"],
        meanwhile=update_and_signal,
        expected=lambda result: sorted(result[1]) == [*range(8), *range(100, 108)],
        events={"UpdateApplied": 8, "SignalReceived": 8},
    ),
    planned(
        "an update while an activity runs",
        echo(1, 1.0),
        until(1),
        meanwhile=update_while_it_works,
        expected=[1, True],
    ),
    Scenario("validated updates", "guarded", (), 10, validate_updates, events={"UpdateAccepted": 2}),
    planned("an update after the end", expected=[], afterwards=update_too_late),
]
