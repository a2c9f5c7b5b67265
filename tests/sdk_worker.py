"""A worker process made of the public SDK, with every workflow and activity the tests use.

``python -m tests.sdk_worker URL QUEUE PARENT_PID EVENTS_FILE [--only=a,b] [--id=...] [--sticky=N]``: it
writes ``ready`` to standard output once it polls, and one JSON line per activity attempt to the events file.
It keeps the histories of ``N`` runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Generator
from typing import Any

from durable_workflow import ActivityFailed, ActivityRetryPolicy, Client, Worker, activity, workflow

from nodes.cli.processes import end_with_parent
from tests import sdk_features
from tests.telling import TellReady

_events = -1


def note(**fields: Any) -> None:
    """Add a line to the events file; appends of one write are not torn."""
    os.write(_events, (json.dumps(fields) + "\n").encode())


def note_attempt() -> Any:
    info = activity.context().info
    note(
        type=info.activity_type, task=info.task_id, attempt_id=info.activity_attempt_id, n=info.attempt_number
    )
    return info


@activity.defn(name="echo")
async def echo(value: Any) -> Any:
    note_attempt()
    return value


@activity.defn(name="pause")
async def pause(value: Any, seconds: float) -> Any:
    note_attempt()
    await asyncio.sleep(seconds)
    return value


@activity.defn(name="flaky")
async def flaky(failures: int) -> int:
    attempt: int = note_attempt().attempt_number
    if attempt <= failures:
        raise RuntimeError(f"attempt {attempt} fails")
    return attempt


@activity.defn(name="stuck_once")
async def stuck_once(seconds: float) -> int:
    """Hangs in its first attempt only."""
    attempt: int = note_attempt().attempt_number
    if attempt == 1:
        await asyncio.sleep(seconds)
    return attempt


@activity.defn(name="beating")
async def beating(beats: int, every: float) -> int:
    note_attempt()
    for beat in range(beats):
        await asyncio.sleep(every)
        await activity.context().heartbeat({"beat": beat})
    return beats


@workflow.defn(name="greet")
class Greet:
    def run(self, ctx: Any, name: str) -> Generator[Any, Any, str]:
        greeting: str = yield ctx.schedule_activity("echo", [f"hello {name}"])
        return greeting


@workflow.defn(name="steps")
class Steps:
    """``count`` activities, one after the other."""

    def run(self, ctx: Any, count: int, seconds: float = 0.0) -> Generator[Any, Any, list[int]]:
        results = []
        retry = ActivityRetryPolicy(max_attempts=50, backoff_seconds=[0])
        for number in range(count):
            results.append((yield ctx.schedule_activity("pause", [number, seconds], retry_policy=retry)))
        return results


@workflow.defn(name="retry")
class Retry:
    def run(self, ctx: Any, failures: int, attempts: int) -> Generator[Any, Any, int]:
        policy = ActivityRetryPolicy(max_attempts=attempts, backoff_seconds=[0])
        attempt: int = yield ctx.schedule_activity("flaky", [failures], retry_policy=policy)
        return attempt


@workflow.defn(name="timer")
class Timer:
    def run(self, ctx: Any, seconds: int) -> Generator[Any, Any, str]:
        yield ctx.sleep(seconds)
        return "rang"


@workflow.defn(name="parallel")
class Parallel:
    """Activities and a timer side by side, then another group."""

    def run(self, ctx: Any, width: int) -> Generator[Any, Any, list[Any]]:
        first = yield [ctx.schedule_activity("echo", [number]) for number in range(width)]
        second = yield [ctx.schedule_activity("echo", [sum(first)]), ctx.sleep(0)]
        return [first, second[0]]


@workflow.defn(name="failing")
class Failing:
    def run(self, ctx: Any, text: str) -> Generator[Any, Any, None]:
        yield ctx.schedule_activity("echo", [text])
        raise ValueError(text)


@workflow.defn(name="timing")
class Timing:
    """One activity with the given options; tells how it ended."""

    def run(
        self, ctx: Any, activity_type: str, arguments: list[Any], options: dict[str, Any]
    ) -> Generator[Any, Any, list[Any]]:
        policy = ActivityRetryPolicy(max_attempts=options.pop("attempts", 1), backoff_seconds=[0])
        try:
            result = yield ctx.schedule_activity(activity_type, arguments, retry_policy=policy, **options)
        except ActivityFailed as error:
            return ["failed", str(error)]
        return ["completed", result]


@workflow.defn(name="asked")
class Asked:
    """Counts its activities and tells how far it is; then it rests for a while."""

    def __init__(self) -> None:
        self.progress = 0

    @workflow.query("progress")
    def tell_progress(self, factor: int = 1) -> dict[str, int]:
        return {"progress": self.progress * factor}

    @workflow.query("slow")
    def tell_slowly(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.progress

    def run(self, ctx: Any, count: int, rest: int) -> Generator[Any, Any, int]:
        for number in range(count):
            yield ctx.schedule_activity("echo", [number])
            self.progress += 1
        yield ctx.sleep(rest)
        return self.progress


WORKFLOWS = [Greet, Steps, Retry, Timer, Parallel, Failing, Timing, Asked, *sdk_features.WORKFLOWS]
ACTIVITIES = [echo, pause, flaky, stuck_once, beating, *sdk_features.ACTIVITIES]


async def work(options: argparse.Namespace) -> None:
    """Work until SIGTERM."""
    only = set(options.only.split(",")) if options.only else None
    named = {cls.__name__.lower(): cls for cls in WORKFLOWS}
    async with Client(options.url) as client:
        worker = Worker(
            client,
            task_queue=options.queue,
            worker_id=options.id or None,
            workflows=[cls for name, cls in named.items() if only is None or name in only],
            activities=[function for function in ACTIVITIES if only is None or function.__name__ in only],
            poll_timeout=options.poll,
            shutdown_timeout=5,
            sticky_cache_capacity=options.sticky,
        )
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: asyncio.ensure_future(worker.stop())
        )
        logging.getLogger("durable_workflow").addHandler(TellReady())
        await worker.run()


def main() -> None:
    global _events
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("queue")
    parser.add_argument("parent", type=int)
    parser.add_argument("events")
    parser.add_argument("--only", default="")
    parser.add_argument("--id", default="")
    parser.add_argument("--poll", type=float, default=10.0)
    parser.add_argument("--sticky", type=int, default=0)
    options = parser.parse_args()
    end_with_parent(options.parent)
    _events = os.open(options.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    logging.basicConfig(level=logging.INFO)
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
