"""Starts, payloads, activities, local activities, timers and lists."""

from __future__ import annotations

from typing import Any

from durable_workflow import WorkflowAlreadyStarted, WorkflowFailed, WorkflowTimedOut
from durable_workflow.errors import WorkflowNotFound

from tests.e2e.scenarios.stage import Ends, Scenario, Stage, planned
from tests.e2e.scenarios.steps import activity, again, child_plan, echo, every, local, sleep, until


async def start_again(stage: Stage, policy: str | None) -> str | None:
    """A second start of the same id; returns the run it gave, None when refused."""
    try:
        handle = await stage.there.start_workflow(
            workflow_type="plan",
            workflow_id=stage.id,
            task_queue=stage.queue,
            input=[[]],
            duplicate_policy=policy,
        )
    except WorkflowAlreadyStarted:
        return None
    return handle.run_id


async def duplicates_while_open(stage: Stage) -> None:
    run_id = (await stage.there.describe_workflow(stage.id)).run_id
    assert await start_again(stage, None) is None
    assert await start_again(stage, "fail") is None
    assert await start_again(stage, "use-existing") == run_id
    await stage.signal("put", 1)


async def duplicates_when_closed(stage: Stage) -> None:
    assert await start_again(stage, "fail") is None
    assert await start_again(stage, "use-existing") is None
    assert len((await stage.there.list_workflow_runs(stage.id)).runs) == 1


async def nobody_there(stage: Stage) -> None:
    try:
        await stage.there.describe_workflow(f"{stage.id}-none")
    except WorkflowNotFound:
        return
    raise AssertionError("describes what does not exist")


async def is_listed(stage: Stage) -> None:
    async def look() -> bool:
        listed = await stage.there.list_workflows(workflow_type="plan", status="completed", query=stage.id)
        return [found.workflow_id for found in listed.executions] == [stage.id]

    await stage.eventually(look, "listing")


async def shows_what_it_was_started_with(stage: Stage) -> None:
    shown = await stage.there.describe_workflow(stage.id)
    assert shown.memo == {"owner": "me", "tags": [1, None]}
    assert shown.search_attributes == {"Customer": "c1"}


async def is_retried_with_pauses(stage: Stage) -> None:
    assert [attempt["attempt_number"] for attempt in stage.attempts()] == [1, 2, 3]


PAYLOADS: dict[str, Any] = {
    "null": None,
    "booleans": [True, False],
    "numbers": [0, -1, 2**31, 2**53 - 1, -(2**53), 0.5, 1e300, -0.25],
    "unicode": "Grüße, 世界, \U0001f680, \x00 and \\u0000",
    "empty": ["", [], {}, [[]], {"": {}}],
    "nested": {"a": [{"b": [1, {"c": None}]}], "d": {"e": {"f": [[["x"]]]}}},
    "long text": "x" * 500_000,
    "many items": [{"n": number, "square": number**2} for number in range(2000)],
}

STARTS = [
    planned("duplicates of an open one", until(1), expected=[True], meanwhile=duplicates_while_open),
    planned("duplicates of a closed one", expected=[], afterwards=duplicates_when_closed),
    Scenario("an unknown id", meanwhile=nobody_there),
    planned("listed by id and type", echo(1), expected=[1], afterwards=is_listed),
    planned(
        "memo and attributes from the start",
        expected=[],
        options={"memo": {"owner": "me", "tags": [1, None]}, "search_attributes": {"Customer": "c1"}},
        afterwards=shows_what_it_was_started_with,
    ),
    planned(
        "priority and fairness",
        echo(1),
        expected=[1],
        options={"priority": 1, "fairness_key": "tenant", "fairness_weight": 10},
    ),
    planned("run timeout", sleep(60), expected=Ends(WorkflowTimedOut), options={"run_timeout_seconds": 1}),
    planned(
        "execution timeout over a chain",
        again(again(sleep(60))),
        expected=Ends(WorkflowTimedOut),
        options={"execution_timeout_seconds": 2, "run_timeout_seconds": 60},
        events={"WorkflowTimedOut": 1},
    ),
    Scenario("a failing workflow", "plan", ([["raise", "too bad"]],), Ends(WorkflowFailed, "too bad")),
    *[
        planned(f"payload: {name}", echo(value), expected=[value], events={"ActivityCompleted": 1})
        for name, value in PAYLOADS.items()
    ],
]


def failed(text: str) -> Any:
    """An expected result: the only step failed with this text."""
    return lambda result: result[0][:2] == ["failed", "ActivityFailed"] and text in result[0][2]


ACTIVITIES = [
    planned(
        "retried until it succeeds",
        activity("flaky", 3, attempts=5),
        expected=[4],
        events={"ActivityRetryScheduled": 3},
    ),
    planned("attempts used up", activity("flaky", 9, attempts=2), expected=failed("attempt 2 fails")),
    planned(
        "pauses between attempts",
        activity("flaky", 2, retry_policy={"max_attempts": 4, "backoff_seconds": [1, 1]}),
        expected=[3],
        afterwards=is_retried_with_pauses,
    ),
    planned(
        "uncaught failure",
        activity("boom", "uncaught"),
        caught=False,
        expected=Ends(WorkflowFailed, "uncaught"),
    ),
    planned(
        "non-retryable failure",
        activity("final", "never again", attempts=5),
        expected=failed("never again"),
        events={"ActivityRetryScheduled": 0},
    ),
    planned(
        "a failure type that is not retried",
        activity(
            "limited",
            "slow down",
            retry_policy={
                "max_attempts": 5,
                "backoff_seconds": [0],
                "non_retryable_error_types": ["RateLimited"],
            },
        ),
        expected=failed("slow down"),
        events={"ActivityRetryScheduled": 0},
    ),
    planned("start to close", activity("stuck_once", 5, start_to_close_timeout=1), expected=failed("")),
    planned("schedule to close", activity("stuck_once", 5, schedule_to_close_timeout=1), expected=failed("")),
    planned("heartbeat timeout", activity("stuck_once", 5, heartbeat_timeout=1), expected=failed("")),
    planned("schedule to start", activity("nobody", schedule_to_start_timeout=1), expected=failed("")),
    planned(
        "a timed out attempt is tried again",
        activity("stuck_once", 5, start_to_close_timeout=1, attempts=3),
        expected=[2],
    ),
    planned("heartbeats keep it alive", activity("beating", 10, 0.5, heartbeat_timeout=4), expected=[10]),
    planned(
        "compensation after a failure",
        echo("reserve"),
        activity("boom", "pay"),
        echo("release"),
        expected=lambda result: [result[0], result[1][0], result[2]] == ["reserve", "failed", "release"],
    ),
    planned("twenty in a row", *[echo(number) for number in range(20)], expected=list(range(20))),
    planned("local", local("nap", "here", 0.0), expected=["here"]),
    planned(
        "local failure",
        local("boom", "local"),
        echo(1),
        expected=lambda result: "local" in result[0][2] and result[1] == 1,
    ),
    planned(
        "local then remote then local",
        local("nap", 1, 0.1),
        echo(2),
        local("nap", 3, 0.0),
        expected=[1, 2, 3],
    ),
]

TIMERS_AND_LISTS = [
    planned("a timer of no time", sleep(0), echo(1), expected=[None, 1]),
    planned("a timer of a second", sleep(1), expected=[None], events={"TimerFired": 1}),
    planned(
        "timers side by side",
        every(*[sleep(1) for _ in range(20)]),
        expected=[[None] * 20],
        events={"TimerFired": 20},
    ),
    planned("timers in a row", *[sleep(0) for _ in range(10)], expected=[None] * 10),
    planned(
        "thirty activities side by side",
        every(*[echo(number) for number in range(30)]),
        expected=[list(range(30))],
        events={"ActivityCompleted": 30},
    ),
    planned(
        "a list of all kinds",
        every(echo(1), sleep(0), child_plan(echo(2)), echo(3, 0.5)),
        expected=[[1, None, [2], 3]],
    ),
    planned(
        "nested lists",
        every(every(echo(1), every(echo(2), sleep(0))), echo(3)),
        expected=[[[1, [2, None]], 3]],
    ),
    planned(
        "a list with a failure",
        every(echo(1), activity("boom", "one of many"), echo(3)),
        echo(4),
        expected=lambda result: "one of many" in result[0][2] and result[1] == 4,
    ),
    planned(
        "lists in a row",
        *[every(echo(number), echo(-number)) for number in range(5)],
        expected=[[number, -number] for number in range(5)],
    ),
]
