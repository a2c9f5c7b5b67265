"""Records, children, chains of runs and ends from outside."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from durable_workflow import WorkflowTerminated
from durable_workflow.errors import WorkflowCancelled

from tests.e2e.scenarios.stage import Ends, Scenario, Stage, planned
from tests.e2e.scenarios.steps import activity, again, child, child_plan, echo, every, first, sleep, until


async def notes_are_kept(stage: Stage) -> None:
    shown = await stage.there.describe_workflow(stage.id)
    assert shown.memo == {"b": {"x": [1, None]}, "c": 2}
    assert shown.search_attributes == {"Customer": "y"}


RECORDS = [
    planned(
        "side effects",
        ["effect", 7],
        echo(1),
        ["effect", {"x": [1]}],
        expected=[7, 1, {"x": [1]}],
        events={"SideEffectRecorded": 2},
    ),
    planned(
        "versions",
        ["version", "v", 1, 3],
        sleep(0),
        ["version", "v", 1, 3],
        ["version", "w", -1, 1],
        expected=[3, None, 3, 1],
    ),
    planned(
        "patches",
        ["patched", "p"],
        echo(1),
        ["patched", "p"],
        ["deprecated", "q"],
        expected=lambda result: result[:3] == [True, 1, True],
    ),
    planned(
        "memo and search attributes",
        ["memo", {"a": 1, "b": {"x": [1, None]}}],
        ["attributes", {"Customer": "x", "Count": 3}],
        sleep(0),
        ["memo", {"a": None, "c": 2}],
        ["attributes", {"Count": None, "Customer": "y"}],
        expected=lambda result: len(result) == 5,
        afterwards=notes_are_kept,
    ),
    planned(
        "constants of a run",
        ["constants"],
        sleep(0),
        echo(1),
        sleep(0),
        expected=lambda result: len(set(result[0])) == 4,
    ),
]


async def child_of(stage: Stage) -> str:
    started = await stage.happened("ChildRunStarted")
    return str(started["payload"]["child_workflow_instance_id"])


async def stop_the_child(stage: Stage, verb: str) -> None:
    await stop(stage, verb, await child_of(stage))


async def stop(stage: Stage, verb: str, workflow_id: str) -> None:
    """Cancel or terminate, whatever happens to the first answer."""
    status = {"cancel": "cancelled", "terminate": "terminated"}[verb]
    try:
        await getattr(stage.here, f"{verb}_workflow")(workflow_id, reason="enough")
    except Exception:
        if not stage.dying:
            raise
    await stage.closed(workflow_id, status)


async def leave(stage: Stage) -> None:
    await child_of(stage)
    await stage.signal("leave")


async def child_becomes(stage: Stage, status: str) -> None:
    child_id = await child_of(stage)
    if status != "waiting":
        await stage.closed(child_id, status)
        return
    assert (await stage.there.describe_workflow(child_id)).status == "waiting"
    await stop(stage, "terminate", child_id)


async def child_ran(stage: Stage, times: int) -> None:
    runs = await stage.there.list_workflow_runs(await child_of(stage))
    assert (runs.run_count, runs.runs[-1].status) == (times, "failed")


def told(*texts: str) -> Any:
    """An expected result: the last step failed and says so."""
    return lambda result: result[-1][0] == "failed" and all(text in str(result[-1]) for text in texts)


CHILDREN = [
    planned("a child", child_plan(echo("deep")), expected=[["deep"]], events={"ChildRunCompleted": 1}),
    planned(
        "children side by side",
        every(*[child_plan(echo(number)) for number in range(6)]),
        expected=[[[number] for number in range(6)]],
        events={"ChildRunCompleted": 6},
    ),
    planned("a grandchild", child_plan(child_plan(child_plan(echo("down")))), expected=[[[["down"]]]]),
    planned(
        "a failing child",
        child_plan(activity("boom", "in the child")),
        expected=told("ChildWorkflowFailed", "in the child"),
    ),
    planned(
        "a failing grandchild", child_plan(child_plan(["raise", "deep down"])), expected=told("deep down")
    ),
    planned(
        "a cancelled child",
        child("sleeper"),
        meanwhile=partial(stop_the_child, verb="cancel"),
        expected=told("enough"),
        events={"ChildRunCancelled": 1},
    ),
    planned(
        "a terminated child",
        child("sleeper"),
        meanwhile=partial(stop_the_child, verb="terminate"),
        expected=told("enough"),
        events={"ChildRunTerminated": 1},
    ),
    planned(
        "a child that times out",
        child("sleeper", run_timeout_seconds=1),
        expected=told(),
        events={"ChildRunFailed": 1},
    ),
    planned(
        "a child tried again",
        child("bad_leaf", "again", retry_policy={"max_attempts": 3, "backoff_seconds": [0]}),
        expected=told("again"),
        afterwards=partial(child_ran, times=3),
        events={"ChildRunFailed": 1},
    ),
    planned("a child of many runs", child("count_down", 4), expected=["done"]),
    planned(
        "a child beside everything",
        every(child("count_down", 1), echo(1), sleep(1)),
        expected=[["done", 1, None]],
    ),
    planned(
        "a loser child is cancelled",
        first(t=sleep(1), c=child("sleeper"), cancel=True),
        echo(1),
        expected=[["t", "timer", None], 1],
    ),
    *[
        Scenario(
            f"children after the end: {policy}",
            "guardian",
            (policy,),
            "left",
            leave,
            partial(child_becomes, status=status),
        )
        for policy, status in (
            ("request_cancel", "cancelled"),
            ("terminate", "terminated"),
            ("abandon", "waiting"),
        )
    ],
]


async def counts_its_runs(stage: Stage, runs: int) -> None:
    listed = await stage.there.list_workflow_runs(stage.id)
    assert listed.run_count == len(listed.runs) == runs
    assert [run.is_current_run for run in listed.runs] == [False] * (runs - 1) + [True]
    assert [run.run_number for run in listed.runs] == list(range(1, runs + 1))


async def has_the_memo(stage: Stage) -> None:
    assert (await stage.there.describe_workflow(stage.id)).memo == {"kept": [1], "more": 2}


CHAINS = [
    Scenario("eight runs", "count_down", (7,), "done", afterwards=partial(counts_its_runs, runs=8)),
    planned(
        "runs with different plans",
        echo(1),
        again(sleep(0), again(echo("last"))),
        expected=["last"],
        afterwards=partial(counts_its_runs, runs=3),
    ),
    planned("on as another type", ["again", [3], {"workflow_type": "count_down"}], expected="done"),
    planned(
        "the memo goes along",
        ["memo", {"more": 2}],
        again(echo(1)),
        expected=[1],
        options={"memo": {"kept": [1]}},
        afterwards=has_the_memo,
    ),
    planned(
        "a signal to the second run",
        again(until(1), ["inbox"]),
        expected=[True, ["later"]],
        meanwhile=lambda stage: put_to_the_second(stage),
    ),
]


async def put_to_the_second(stage: Stage) -> None:
    async def second() -> bool:
        return (await stage.there.list_workflow_runs(stage.id)).run_count == 2

    await stage.eventually(second, "second run")
    await stage.signal("put", "later")


async def stop_in_time(stage: Stage, verb: str, after: str) -> None:
    await stage.happened(after)
    await stop(stage, verb, stage.id)


async def stop_a_worker(stage: Stage) -> None:
    async def works() -> bool:
        return bool(stage.attempts())

    await stage.eventually(works, "activity")
    await stop(stage, "cancel", stage.id)


async def stop_twice(stage: Stage) -> None:
    """The second one, at the same time, is refused or has no effect."""
    await stage.happened("TimerScheduled")
    done = await asyncio.gather(
        stage.here.cancel_workflow(stage.id, reason="a"),
        stage.there.terminate_workflow(stage.id, reason="b"),
        return_exceptions=True,
    )
    assert stage.dying or done.count(None) >= 1, done


CANCELLED = Ends(WorkflowCancelled)
TERMINATED = Ends(WorkflowTerminated)

ENDS = [
    planned(
        "cancelled in a timer",
        sleep(60),
        expected=CANCELLED,
        meanwhile=partial(stop_in_time, verb="cancel", after="TimerScheduled"),
    ),
    planned(
        "cancelled in a condition",
        until(1),
        expected=CANCELLED,
        meanwhile=partial(stop_in_time, verb="cancel", after="ConditionWaitOpened"),
    ),
    planned(
        "cancelled with an activity", activity("until_cancelled"), expected=CANCELLED, meanwhile=stop_a_worker
    ),
    planned(
        "cancelled with a child",
        child("sleeper"),
        expected=CANCELLED,
        meanwhile=partial(stop_in_time, verb="cancel", after="ChildRunStarted"),
    ),
    planned(
        "terminated in a race",
        first(a=until(1), b=sleep(60)),
        expected=TERMINATED,
        meanwhile=partial(stop_in_time, verb="terminate", after="TimerScheduled"),
    ),
    planned(
        "terminated before anybody knows it",
        sleep(60),
        expected=TERMINATED,
        options={"task_queue": "nobody-is-here"},
        meanwhile=partial(stop_in_time, verb="terminate", after="WorkflowStarted"),
    ),
    planned(
        "cancelled and terminated at once",
        sleep(60),
        meanwhile=stop_twice,
        expected=lambda outcome: isinstance(outcome, (WorkflowCancelled, WorkflowTerminated)),
    ),
    planned(
        "cancelled after signals",
        until(9),
        expected=CANCELLED,
        meanwhile=partial(stop_in_time, verb="cancel", after="WorkflowStarted"),
    ),
]
