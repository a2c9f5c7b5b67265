"""What a scenario is, and what its clients can do.

A scenario is a workflow with its arguments, what clients do meanwhile, and how it must end. It runs on
an event loop of its own beside others, on a cluster whose nodes may be dying.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from durable_workflow import Client, WorkflowAlreadyStarted

from tests.wire import check_history

WITHIN = 120.0
"""Seconds in which everything a scenario waits for happens, however many nodes die."""
LOOK_EVERY = 0.2

Event = dict[str, Any]


@dataclass(frozen=True)
class Ends:
    """The workflow ends with an error whose text contains ``text``."""

    error: type[BaseException]
    text: str = ""


@dataclass
class Stage:
    """The clients of one scenario. ``here`` and ``there`` talk to different nodes, or to the balancer."""

    here: Client
    there: Client
    queue: str
    id: str
    attempts_file: Path
    dying: bool
    ids: list[str] = field(default_factory=list)
    """The workflows it started, whose histories are checked in the end."""

    async def start(self, workflow_type: str, *arguments: Any, suffix: str = "", **options: Any) -> str:
        """Start a workflow, whatever happens to the first answer; returns its id."""
        workflow_id = self.id + suffix
        with suppress(WorkflowAlreadyStarted):  # it has ended between a lost answer and the repetition
            await self.here.start_workflow(
                workflow_type=workflow_type,
                workflow_id=workflow_id,
                input=list(arguments),
                duplicate_policy="use-existing",
                **{"task_queue": self.queue, **options},
            )
        self.ids.append(workflow_id)
        return workflow_id

    async def outcome(self, workflow_id: str | None = None) -> Any:
        """How it ended: its result, or the error."""
        handle = self.there.get_workflow_handle(workflow_id or self.id)
        try:
            return await self.there.get_result(handle, poll_interval=LOOK_EVERY, timeout=WITHIN)
        except TimeoutError:
            raise AssertionError(f"does not end: {[e['event_type'] for e in await self.history()]}") from None
        except (Exception, BaseExceptionGroup) as error:
            return error
        except BaseException as error:
            if type(error).__name__ != "WorkflowCancelled":
                raise
            return error

    async def history(self, workflow_id: str | None = None, run_id: str | None = None) -> list[Event]:
        """All events of a run; without ``run_id`` of the newest."""
        workflow_id = workflow_id or self.id
        run_id = run_id or (await self.there.describe_workflow(workflow_id)).run_id or ""
        events: list[Event] = []
        token: str | None = None
        while True:
            page = await self.there.get_history(workflow_id, run_id, page_size=1000, next_page_token=token)
            events += page["events"]
            token = page.get("next_page_token")
            if not token:
                return events

    async def types(self, workflow_id: str | None = None) -> Counter[str]:
        return Counter(event["event_type"] for event in await self.history(workflow_id))

    async def happened(self, event_type: str, count: int = 1, workflow_id: str | None = None) -> Event:
        """Wait for the ``count``-th event of a type; returns it."""
        found: list[Event] = []

        async def look() -> bool:
            found[:] = [e for e in await self.history(workflow_id) if e["event_type"] == event_type]
            return len(found) >= count

        await self.eventually(look, f"{event_type} x {count}")
        return found[count - 1]

    async def eventually(self, look: Callable[[], Awaitable[bool]], what: str = "") -> None:
        """Look again and again until it holds."""
        deadline = asyncio.get_running_loop().time() + WITHIN
        while not await look():
            assert asyncio.get_running_loop().time() < deadline, f"{what} did not happen"
            await asyncio.sleep(LOOK_EVERY)

    async def closed(self, workflow_id: str, status: str) -> None:
        async def look() -> bool:
            return (await self.there.describe_workflow(workflow_id)).status == status

        await self.eventually(look, f"{workflow_id} is {status}")

    async def signal(self, name: str, *arguments: Any, workflow_id: str | None = None) -> None:
        await self.here.signal_workflow(workflow_id or self.id, name, args=list(arguments))

    async def update(self, name: str, *arguments: Any, wait_for: str = "completed", **more: Any) -> Any:
        """The answer to an update; its result when it has completed."""
        answer = await self.here.update_workflow(
            self.id, name, args=list(arguments), wait_for=wait_for, **more
        )
        return answer["result"] if answer["update_status"] == "completed" else answer["update_status"]

    async def query(self, name: str, *arguments: Any, workflow_id: str | None = None) -> Any:
        answer = await self.there.query_workflow(workflow_id or self.id, name, args=list(arguments))
        return answer["result"]

    def in_namespace(self, namespace: str) -> Stage:
        """The same clients in another namespace, which nobody else uses."""
        here, there = (
            Client(client.base_url, namespace=namespace, retry_policy=client.retry_policy)
            for client in (self.here, self.there)
        )
        return replace(self, here=here, there=there, ids=[])

    def attempts(self) -> list[dict[str, Any]]:
        """The activity attempts that the worker ran for the scenario's workflows."""
        noted = [json.loads(line) for line in self.attempts_file.read_text().splitlines()]
        return [attempt for attempt in noted if attempt["workflow_id"] in self.ids]

    async def check(self) -> None:
        """Every run of every workflow that began here and has closed ended once, without a gap."""
        todo = list(self.ids)
        while todo:
            workflow_id = todo.pop()
            runs = (await self.there.list_workflow_runs(workflow_id)).runs
            for number, run in enumerate(runs, 1):
                events = await self.history(workflow_id, run.run_id)
                todo += [
                    event["payload"]["child_workflow_instance_id"]
                    for event in events
                    if event["event_type"] == "ChildRunStarted"
                ]
                _check_run(events, closed=run.closed_at is not None, last=number == len(runs))
        noted = [attempt["activity_attempt_id"] for attempt in self.attempts()]
        assert len(set(noted)) == len(noted), f"attempts that ran twice: {noted}"


def _check_run(events: list[Event], *, closed: bool, last: bool) -> None:
    if closed and (last or events[-1]["event_type"] != "WorkflowContinuedAsNew"):
        check_history([event for event in events if event["event_type"] != "WorkflowArchived"])
    else:
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))


@dataclass(frozen=True)
class Scenario:
    """One workflow (or none, where clients do everything), and how it must end.

    ``events`` says how often some types occur in the history of the newest run.
    """

    name: str
    workflow: str | None = None
    arguments: tuple[Any, ...] = ()
    expected: Any = None
    meanwhile: Callable[[Stage], Awaitable[None]] | None = None
    afterwards: Callable[[Stage], Awaitable[None]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)

    async def play(self, stage: Stage) -> None:
        if self.workflow is not None:
            await stage.start(self.workflow, *self.arguments, **self.options)
        if self.meanwhile is not None:
            await self.meanwhile(stage)
        if self.workflow is not None:
            _compare(await stage.outcome(), self.expected)
        if self.afterwards is not None:
            await self.afterwards(stage)
        if self.events:
            types = await stage.types()
            assert {name: types[name] for name in self.events} == dict(self.events), types
        await stage.check()


def _compare(outcome: Any, expected: Any) -> None:
    if isinstance(expected, Ends):
        assert isinstance(outcome, expected.error), repr(outcome)
        assert expected.text in str(outcome), repr(outcome)
    elif callable(expected):
        assert expected(outcome), repr(outcome)
    else:
        assert outcome == expected, repr(outcome)


def planned(name: str, *steps: Any, expected: Any, caught: bool = True, **more: Any) -> Scenario:
    """A scenario of one workflow that follows a plan."""
    return Scenario(name, "plan", (list(steps), caught), expected, **more)
