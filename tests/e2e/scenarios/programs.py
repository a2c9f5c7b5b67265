"""Small workflows and activities for the scenarios; most of them are one workflow that follows a plan.

A plan is a list of steps and a step is a list: its kind, then what that kind needs. The functions of
``tests/e2e/scenarios/steps.py`` write them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from durable_workflow import ActivityFailed, ChildWorkflowFailed, activity, workflow
from durable_workflow.errors import NonRetryableError

from tests import sdk_features

Yields = Generator[Any, Any, Any]


class RateLimited(Exception):
    """A failure with a type of its own."""


@activity.defn(name="echo")
async def echo(value: Any, seconds: float = 0.0) -> Any:
    await asyncio.sleep(seconds)
    return value


@activity.defn(name="flaky")
async def flaky(failures: int) -> int:
    """Fails in its first attempts."""
    attempt = activity.context().info.attempt_number
    if attempt <= failures:
        raise RuntimeError(f"attempt {attempt} fails")
    return attempt


@activity.defn(name="final")
async def final(text: str) -> None:
    raise NonRetryableError(text)


@activity.defn(name="limited")
async def limited(text: str) -> None:
    raise RateLimited(text)


@activity.defn(name="stuck_once")
async def stuck_once(seconds: float) -> int:
    """Hangs in its first attempt only."""
    attempt = activity.context().info.attempt_number
    if attempt == 1:
        await asyncio.sleep(seconds)
    return attempt


@activity.defn(name="beating")
async def beating(beats: int, every: float) -> int:
    for beat in range(beats):
        await asyncio.sleep(every)
        await activity.context().heartbeat({"beat": beat})
    return beats


@workflow.defn(name="plan")
class Plan:
    """Does its steps in order and returns what each gave; collects what signals and updates bring."""

    def __init__(self) -> None:
        self.inbox: list[Any] = []
        self.results: list[Any] = []

    @workflow.signal("put")
    def put(self, value: Any) -> None:
        self.inbox.append(value)

    @workflow.update("add")
    def add(self, value: Any) -> int:
        if value == "bad":
            raise ValueError("no such thing")
        self.inbox.append(value)
        return len(self.inbox)

    @workflow.query("inbox")
    def tell_inbox(self, last: int = 0) -> list[Any]:
        return self.inbox[-last:]

    @workflow.query("results")
    def tell_results(self) -> list[Any]:
        return self.results

    @workflow.query("broken")
    def tell_nothing(self) -> None:
        raise ValueError("cannot tell")

    @workflow.query("grow")
    def change_something(self) -> int:
        """What a query changes is forgotten with it."""
        self.inbox.append("by a query")
        return len(self.inbox)

    def run(self, ctx: Any, steps: list[Any], caught: bool = True) -> Yields:
        for step in steps:
            if step[0] == "again":
                return ctx.continue_as_new(*step[1], **step[2])
            if step[0] == "raise":
                raise ValueError(step[1])
            try:
                self.results.append((yield from self._do(ctx, step)))
            except (ActivityFailed, ChildWorkflowFailed) as error:
                if not caught:
                    raise
                self.results.append(["failed", type(error).__name__, str(error)])
        return self.results

    def _do(self, ctx: Any, step: list[Any]) -> Yields:
        if step[0] == "inbox":
            return list(self.inbox)
        if step[0] == "constants":
            return [ctx.now().isoformat(), str(ctx.uuid4()), ctx.random().random(), str(ctx.uuid7())]
        result = yield self._operation(ctx, step)
        return (yield from self._settle(result, step[2])) if step[0] == "select" else result

    def _settle(self, won: Any, options: dict[str, Any]) -> Yields:
        """What a selection gave, and what became of its losers where the plan says so."""
        told = [won.key, won.kind, won.value if won.succeeded else str(won.failure)]
        if options.get("cancel"):
            for handle in won.remaining().values():
                yield handle.cancel()
        for key in options.get("then", ()):
            told.append((yield won.handles[key].await_result()))
        return told

    def _operation(self, ctx: Any, step: list[Any]) -> Any:
        kind, *rest = step
        match kind:
            case "activity":
                return ctx.schedule_activity(rest[0], rest[1], **rest[2])
            case "local":
                return ctx.local_activity(rest[0], rest[1], **rest[2])
            case "child":
                return ctx.start_child_workflow(rest[0], rest[1], **rest[2])
            case "sleep":
                return ctx.sleep(rest[0])
            case "until":
                return ctx.wait_condition(lambda: len(self.inbox) >= rest[0], **rest[1])
            case "list":
                return [self._operation(ctx, member) for member in rest[0]]
            case "select":
                return ctx.select({key: self._operation(ctx, member) for key, member in rest[0]})
            case "effect":
                return ctx.side_effect(lambda: rest[0])
            case "version":
                return ctx.get_version(*rest)
            case "patched":
                return ctx.patched(rest[0])
            case "deprecated":
                return ctx.deprecate_patch(rest[0])
            case "memo":
                return ctx.upsert_memo(rest[0])
            case "attributes":
                return ctx.upsert_search_attributes(rest[0])
        raise AssertionError(f"no such step: {kind}")


@workflow.defn(name="count_down")
class CountDown:
    """Goes on in further runs until nothing is left, then sleeps ``rest`` seconds."""

    def run(self, ctx: Any, left: int, rest: int = 0) -> Yields:
        yield ctx.schedule_activity("echo", [left])
        if left:
            return ctx.continue_as_new(left - 1, rest)
        yield ctx.sleep(rest)
        return "done"


WORKFLOWS = [Plan, CountDown, *sdk_features.WORKFLOWS]
ACTIVITIES = [echo, flaky, final, limited, stuck_once, beating, *sdk_features.ACTIVITIES]
