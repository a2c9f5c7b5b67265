"""A worker that reads histories as the SDK does, with a cache and without, and runs no code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.bench.raw import Connection
from tests.wire import envelope

NOTE = {"type": "record_side_effect", "result": envelope("a result of no special length")["blob"]}
AGAIN = {"type": "start_timer", "delay_seconds": 0}
"""Fires at once, so the next workflow task follows."""


@dataclass
class Replayer:
    """Works on one run. ``keeps`` says that it keeps the history between workflow tasks."""

    connection: Connection
    worker: str
    queue: str
    keeps: bool
    events: list[int] = field(default_factory=list)
    """Ordinals of the events it has."""
    _resume: tuple[str, int] | None = None
    """Token of the last page it asked for, and how many events came before that page."""

    async def task(self) -> dict[str, Any]:
        """The next workflow task, with its whole history read."""
        task = await self.connection.poll("workflow", self.worker, self.queue)
        assert task is not None
        first = _ordinals(task)
        token = task["next_history_page_token"]
        hit = self.keeps and task.get("sticky_replay_mode") == "sticky_hit_expected"
        if hit and self._resume is not None and len(first) < len(self.events):
            token, before = self._resume
            self.events = self.events[:before]
        else:
            self.events, self._resume = first, None
        while token is not None:
            page = await self.connection.page(task, token)
            self._resume = (token, len(self.events))
            self.events += _ordinals(page)
            token = page["next_history_page_token"]
        assert self.events == list(range(1, task["total_history_events"] + 1))
        return task

    async def answer(self, task: dict[str, Any], *commands: dict[str, Any]) -> None:
        names = ("workflow_id", "run_id")
        cache = {"worker_id": self.worker, "ttl_seconds": 600, **{name: task[name] for name in names}}
        more = {"sticky_cache": cache} if self.keeps else {}
        await self.connection.complete_workflow(task, *commands, **more)

    async def grow(self, length: int, step: int = 200) -> None:
        """Work until the history has ``length`` events; the next workflow task is ready then."""
        while len(self.events) < length - 4:
            notes = min(step, length - len(self.events))
            await self.answer(await self.task(), *[NOTE] * notes, AGAIN)


def _ordinals(page: dict[str, Any]) -> list[int]:
    return [event["sequence"] for event in page["history_events"]]
