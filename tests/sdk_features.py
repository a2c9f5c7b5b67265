"""Workflows for the public SDK that use signals, updates, children, races and the like."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any

from durable_workflow import (
    ActivityFailed,
    ActivityRetryPolicy,
    ChildWorkflowFailed,
    WorkerSessionOptions,
    activity,
    workflow,
)

Steps = Generator[Any, Any, Any]


@activity.defn(name="nap")
async def nap(value: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return value


@activity.defn(name="boom")
async def boom(text: str) -> None:
    raise ValueError(text)


@activity.defn(name="whoami")
async def whoami() -> int:
    """The process it runs in, which keeps it busy for a moment."""
    await asyncio.sleep(0.05)
    return os.getpid()


@activity.defn(name="until_cancelled")
async def until_cancelled() -> str:
    for _ in range(300):
        await asyncio.sleep(0.1)
        await activity.context().heartbeat({"beating": True})
    return "never cancelled"


@workflow.defn(name="inbox")
class Inbox:
    """Collects signals until one says stop; an activity runs meanwhile."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @workflow.signal("add")
    def add(self, value: Any) -> None:
        self.seen.append(value)

    def run(self, ctx: Any, expected: int, seconds: float) -> Steps:
        yield ctx.schedule_activity("nap", ["x", seconds])
        yield ctx.wait_condition(lambda: len(self.seen) >= expected, key="all")
        return self.seen


@workflow.defn(name="pinned")
class Pinned:
    """Activities of one worker session; tells what they return."""

    def run(self, ctx: Any, session_id: str, count: int) -> Steps:
        session = WorkerSessionOptions(session_id, lease_seconds=30, max_concurrent_activities=2)
        found = yield [ctx.schedule_activity("whoami", [], worker_session=session) for _ in range(count)]
        return found


@workflow.defn(name="patience")
class Patience:
    """Waits with a timeout, then again without one."""

    def __init__(self) -> None:
        self.ready = 0

    @workflow.signal("nudge")
    def nudge(self) -> None:
        self.ready += 1

    def run(self, ctx: Any, timeout: int) -> Steps:
        first = yield ctx.wait_condition(lambda: self.ready >= 2, timeout=timeout)
        second = yield ctx.wait_condition(lambda: self.ready >= 2, timeout=30)
        return [first, second, self.ready]


@workflow.defn(name="loser")
class Loser:
    """A timer that lost a race fires while the code sits in a condition."""

    def __init__(self) -> None:
        self.done = False

    @workflow.signal("finish")
    def finish(self) -> None:
        self.done = True

    def run(self, ctx: Any) -> Steps:
        won = yield ctx.select({"a": ctx.schedule_activity("nap", ["fast", 0.0]), "t": ctx.sleep(2)})
        waited = yield ctx.wait_condition(lambda: self.done, timeout=20)
        return [won.key, won.value, waited]


@workflow.defn(name="counter")
class Counter:
    def __init__(self) -> None:
        self.n = 0
        self.stopped = False

    @workflow.update("add")
    def add(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("only up")
        self.n += amount
        return self.n

    @workflow.signal("stop")
    def stop(self) -> None:
        self.stopped = True

    def run(self, ctx: Any, goal: int) -> Steps:
        yield ctx.wait_condition(lambda: self.n >= goal or self.stopped, key="goal")
        doubled = yield ctx.schedule_activity("nap", [self.n * 2, 0.0])
        return [self.n, doubled]


@workflow.defn(name="guarded")
class Guarded:
    """Accepts an amount only when it is even and small enough for what stands already."""

    def __init__(self) -> None:
        self.n = 0

    @workflow.update("add")
    def add(self, amount: int) -> int:
        self.n += amount
        return self.n

    @add.validator  # type: ignore[attr-defined]  # the decorated function has it at run time
    def check(self, amount: int) -> None:
        if amount % 2 or self.n + amount > 10:
            raise ValueError(f"{self.n} and {amount} do not go together")

    def run(self, ctx: Any) -> Steps:
        yield ctx.wait_condition(lambda: self.n == 10)
        return self.n


@workflow.defn(name="leaf")
class Leaf:
    def run(self, ctx: Any, value: Any, seconds: int = 0) -> Steps:
        if seconds:
            yield ctx.sleep(seconds)
        result = yield ctx.schedule_activity("nap", [value, 0.0])
        return result


@workflow.defn(name="bad_leaf")
class BadLeaf:
    def run(self, ctx: Any, text: str) -> Steps:
        yield ctx.schedule_activity("boom", [text])


@workflow.defn(name="sleeper")
class Sleeper:
    def run(self, ctx: Any) -> Steps:
        yield ctx.sleep(600)


@workflow.defn(name="parent")
class Parent:
    """Runs children side by side and one that fails."""

    def run(self, ctx: Any, count: int) -> Steps:
        results = yield [ctx.start_child_workflow("leaf", [number]) for number in range(count)]
        try:
            yield ctx.start_child_workflow("bad_leaf", ["no"])
            failure = ""
        except ChildWorkflowFailed as error:
            failure = str(error)
        return [results, failure]


@workflow.defn(name="guardian")
class Guardian:
    """Starts a long child with a policy and ends when told; tells how the child ended otherwise."""

    def __init__(self) -> None:
        self.told = False

    @workflow.signal("leave")
    def leave(self) -> None:
        self.told = True

    def run(self, ctx: Any, policy: str) -> Steps:
        yield ctx.select(
            {"child": ctx.start_child_workflow("sleeper", [], parent_close_policy=policy), "t": ctx.sleep(0)}
        )
        yield ctx.wait_condition(lambda: self.told)
        return "left"


@workflow.defn(name="waiter")
class Waiter:
    def run(self, ctx: Any) -> Steps:
        try:
            result = yield ctx.start_child_workflow("sleeper", [])
        except ChildWorkflowFailed as error:
            return [type(error).__name__, str(error)]
        return result


@workflow.defn(name="stubborn")
class Stubborn:
    """A child that is tried again; every run of it fails."""

    def run(self, ctx: Any, attempts: int) -> Steps:
        policy = {"max_attempts": attempts, "backoff_seconds": [0]}
        try:
            yield ctx.start_child_workflow("bad_leaf", ["again"], retry_policy=policy)
        except ChildWorkflowFailed as error:
            return str(error)
        return "?"


@workflow.defn(name="chain")
class Chain:
    def run(self, ctx: Any, left: int) -> Steps:
        yield ctx.upsert_memo({"left": left})
        if left:
            return ctx.continue_as_new(left - 1)
        return "end of chain"


@workflow.defn(name="chained_parent")
class ChainedParent:
    def run(self, ctx: Any, links: int) -> Steps:
        result = yield ctx.start_child_workflow("chain", [links])
        return result


@workflow.defn(name="notes")
class Notes:
    """Side effects, versions, memo and search attributes, replayed over a timer."""

    def run(self, ctx: Any) -> Steps:
        drawn = yield ctx.side_effect(lambda: 7)
        version = yield ctx.get_version("v", 1, 2)
        patched = yield ctx.patched("p")
        yield ctx.upsert_memo({"b": {"y": 1, "x": [1, None]}, "a": "1"})
        yield ctx.upsert_search_attributes({"Customer": "x", "Count": 3})
        yield ctx.sleep(1)
        yield ctx.upsert_memo({"a": None, "c": 2})
        yield ctx.upsert_search_attributes({"Count": None})
        return [drawn, version, patched]


@workflow.defn(name="race")
class RaceOfTwo:
    def run(self, ctx: Any, seconds: float, timer: int) -> Steps:
        won = yield ctx.select([ctx.schedule_activity("nap", ["a", seconds]), ctx.sleep(timer)])
        for handle in won.remaining().values():
            yield handle.cancel()
        after = yield ctx.schedule_activity("nap", ["after", 0.0])
        return [won.key, won.kind, after]


@workflow.defn(name="nested_race")
class NestedRace:
    def run(self, ctx: Any) -> Steps:
        won = yield ctx.select(
            {
                "both": [ctx.schedule_activity("nap", [1, 0.0]), ctx.schedule_activity("nap", [2, 0.0])],
                "bad": ctx.schedule_activity("nap", [3, 5.0]),
            }
        )
        slow = yield won.handles["bad"].await_result()
        return [won.key, won.value, slow]


@workflow.defn(name="local")
class Local:
    def run(self, ctx: Any) -> Steps:
        first = yield ctx.local_activity("nap", ["here", 0.0])
        try:
            yield ctx.local_activity("boom", ["bad"])
            failed = ""
        except ActivityFailed as error:
            failed = str(error)
        remote = yield ctx.schedule_activity("nap", ["there", 0.0])
        return [first, failed, remote]


@workflow.defn(name="cancel_me")
class CancelMe:
    def run(self, ctx: Any) -> Steps:
        policy = ActivityRetryPolicy(max_attempts=5, backoff_seconds=[0])
        result = yield ctx.schedule_activity("until_cancelled", [], retry_policy=policy)
        return result


WORKFLOWS = [
    Inbox,
    Patience,
    Pinned,
    Loser,
    Counter,
    Guarded,
    Leaf,
    BadLeaf,
    Sleeper,
    Parent,
    Guardian,
    Waiter,
    Stubborn,
    Chain,
    ChainedParent,
    Notes,
    RaceOfTwo,
    NestedRace,
    Local,
    CancelMe,
]
ACTIVITIES = [nap, boom, whoami, until_cancelled]
