"""Reading runs: describe, list, history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from cluster.errors import Refused
from cluster.ids import TaskId, TaskKind, partition_of_run, partition_of_workflow
from cluster.newest_first import LOOK_LIMIT, Part, Place, newest_first
from cluster.paging import page_start, page_token
from cluster.store.store import Store
from cluster.workflows.events import EventType
from cluster.workflows.history_bundle import RunRecord
from cluster.workflows.hosting import ONLY_STEP
from cluster.workflows.names import command_entry
from cluster.workflows.outlines import END_BYTES, WHOLE_BYTES, OutlinePage, outline
from cluster.workflows.records import ActivityState, Lease, Run
from cluster.workflows.storage import decode_info, decode_state, item_field, load, snapshot_of


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with what its instance knows. ``task`` is the record of its open workflow task."""

    run: Run
    run_count: int
    is_current: bool
    task: Lease | None
    archived: bool


@dataclass(frozen=True, slots=True)
class ActivityView:
    """A run that hosts an activity. ``activity`` and ``lease`` describe the open activity; ``ended`` is
    the payload of the activity's last event once it is over, {} if it never ended by itself.
    """

    host: RunView
    activity: ActivityState | None
    lease: Lease
    ended: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Instance:
    """The current run of a workflow id and the number of its runs so far."""

    current: str
    runs: int


@dataclass(frozen=True, slots=True)
class RunPage:
    runs: list[RunView]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """``events`` are the stored JSON objects, in order."""

    events: list[bytes]
    next_page_token: str | None


RUNS_CHUNK: Final = 100
HISTORY_CHUNK: Final = 1_000
"""Events read at once of a whole history, so that a long one does not hold up Redis."""
_ACTIVITY_ENDS: Final = (
    EventType.ACTIVITY_COMPLETED,
    EventType.ACTIVITY_FAILED,
    EventType.ACTIVITY_TIMED_OUT,
)


class Visibility:
    """Reads of one node. Plain reads may be ahead of what the durability setting confirmed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def describe(self, namespace: str, workflow_id: str, run_id: str | None = None) -> RunView:
        """The current run of a workflow, or the given one.

        Raises Refused ``instance_not_found`` or ``run_not_found`` (404).
        """
        keys = self._store.keys
        partition = partition_of_workflow(workflow_id, keys.partitions)
        if run_id is not None and partition_of_run(run_id) != partition:
            raise not_found(workflow_id, run_id)
        found = await self._store.run(
            "describe",
            [keys.workflow(partition, workflow_id)],
            [keys.base(partition), namespace, run_id or ""],
            idempotent=True,
        )
        snapshot = None if found is None else snapshot_of(found[2])
        if found is None or snapshot is None or snapshot.run.info.workflow_id != workflow_id:
            raise not_found(workflow_id, run_id)
        current, runs, _ = found
        return RunView(
            run=snapshot.run,
            run_count=int(runs),
            is_current=snapshot.run.info.run_id == current.decode(),
            task=snapshot.workflow_task if snapshot.workflow_task.state else None,
            archived=snapshot.archived,
        )

    async def _instance(self, namespace: str, workflow_id: str) -> _Instance | None:
        keys = self._store.keys
        partition = partition_of_workflow(workflow_id, keys.partitions)
        owner, current, runs = await self._store.call(
            "HMGET", keys.workflow(partition, workflow_id), "ns", "run", "runs", idempotent=True
        )
        if owner is None or owner.decode() != namespace:
            return None
        return _Instance(current.decode(), int(runs))

    async def runs(
        self, namespace: str, workflow_id: str, *, after: int = 0, most: int | None = None
    ) -> list[RunView]:
        """The kept ones of ``most`` runs of a workflow (None: all) after number ``after``, oldest first.

        Raises Refused ``instance_not_found`` (404).
        """
        instance = await self._instance(namespace, workflow_id)
        if instance is None:
            raise not_found(workflow_id, None)
        keys = self._store.keys
        key = keys.workflow(partition_of_workflow(workflow_id, keys.partitions), workflow_id)
        last = instance.runs if most is None else min(instance.runs, after + most)
        views = []
        for first in range(after + 1, last + 1, RUNS_CHUNK):
            numbers = range(first, min(first + RUNS_CHUNK, last + 1))
            ids = await self._store.call("HMGET", key, *(f"r{number}" for number in numbers), idempotent=True)
            for run_id in ids:
                snapshot = None if run_id is None else await load(self._store, run_id.decode())
                if snapshot is not None:
                    is_current = run_id.decode() == instance.current
                    views.append(RunView(snapshot.run, instance.runs, is_current, None, snapshot.archived))
        return views

    async def whole_history(self, run_id: str) -> tuple[Run, list[bytes]] | None:
        """A run and all events it had when it was looked at, or None when there is no such run."""
        snapshot = await load(self._store, run_id)
        events = None if snapshot is None else await self._all_events(snapshot.run)
        return None if snapshot is None or events is None else (snapshot.run, events)

    async def whole_record(self, run_id: str) -> RunRecord | None:
        """Everything that is kept of a run, or None when there is no such run."""
        snapshot = await load(self._store, run_id)
        events = None if snapshot is None else await self._all_events(snapshot.run)
        if snapshot is None or events is None:
            return None
        commands = await self._commands(snapshot.run, events)
        return RunRecord(snapshot.run, snapshot.workflow_task, events, commands)

    async def _commands(self, run: Run, events: list[bytes]) -> dict[str, dict[str, Any]]:
        """Who asked for what: the commands the run counted, and others that left an event."""
        run_id, keys = run.info.run_id, self._store.keys
        named = (orjson.loads(event).get("workflow_command_id") for event in events)
        ids = dict.fromkeys(f"{run_id}-m{number}" for number in range(run.state.commands + 1))
        ids |= dict.fromkeys(command_id for command_id in named if command_id)
        wanted, found = list(ids), dict[str, dict[str, Any]]()
        key = keys.commands(partition_of_run(run_id) or 0, run_id)
        for first in range(0, len(wanted), HISTORY_CHUNK):
            chunk = wanted[first : first + HISTORY_CHUNK]
            rows = await self._store.call("HMGET", key, *map(command_entry, chunk), idempotent=True)
            found |= {
                name: orjson.loads(raw) for name, raw in zip(chunk, rows, strict=True) if raw is not None
            }
        return found

    async def _all_events(self, run: Run) -> list[bytes] | None:
        """All events the run has in its history; None when it is being removed."""
        keys, run_id = self._store.keys, run.info.run_id
        key = keys.history(partition_of_workflow(run.info.workflow_id, keys.partitions), run_id)
        events: list[bytes] = []
        # Events are only ever added, so those the run knows of are still there in their places.
        for first in range(0, run.state.history_length, HISTORY_CHUNK):
            last = min(first + HISTORY_CHUNK, run.state.history_length) - 1
            events += await self._store.call("LRANGE", key, first, last, idempotent=True)
        return events if len(events) == run.state.history_length else None

    async def last_events(self, run_id: str, count: int) -> list[dict[str, Any]]:
        """The newest ``count`` events of a run, in order."""
        partition = partition_of_run(run_id)
        if partition is None or partition >= self._store.keys.partitions:
            return []
        key = self._store.keys.history(partition, run_id)
        rows = await self._store.call("LRANGE", key, -count, -1, idempotent=True)
        return [orjson.loads(raw) for raw in rows]

    async def describe_activity(self, namespace: str, activity_id: str) -> ActivityView:
        """A standalone activity. Raises Refused ``activity_not_found`` (404)."""
        missing = Refused(
            "activity_not_found",
            f"Activity {activity_id!r} does not exist.",
            status=404,
            activity_id=activity_id,
        )
        try:
            host = await self.describe(namespace, activity_id)
        except Refused as refusal:
            raise missing from refusal
        run_id = host.run.info.run_id
        if host.run.info.standalone_activity is None:
            raise missing
        task = str(TaskId(run_id, TaskKind.ACTIVITY, ONLY_STEP))
        snapshot = await load(self._store, run_id, task_id=task, fields=(item_field("a", ONLY_STEP),))
        if snapshot is None:
            raise missing
        ended: dict[str, Any] = {}
        if snapshot.run.state.status.closed:
            page = await self.last_events(run_id, 2)
            ended = next((event["payload"] for event in page if event["event_type"] in _ACTIVITY_ENDS), {})
        return ActivityView(
            host=replace(host, run=snapshot.run),
            activity=snapshot.run.activities.get(ONLY_STEP),
            lease=snapshot.task,
            ended=ended,
        )

    async def history(
        self, namespace: str, workflow_id: str, run_id: str, *, page_size: int, token: str | None
    ) -> HistoryPage:
        """A page of a run's history. Raises Refused ``run_not_found`` (404)."""
        view = await self.describe(namespace, workflow_id, run_id)
        start = page_start(token) if token else 0
        partition = partition_of_workflow(workflow_id, self._store.keys.partitions)
        key = self._store.keys.history(partition, run_id)
        first = start or 0
        events: list[bytes] = await self._store.call(
            "LRANGE", key, first, first + page_size - 1, idempotent=True
        )
        total = max(view.run.state.history_length, first + len(events))
        return HistoryPage(events, page_token(first + len(events), total) if events else None)

    async def outline(
        self, namespace: str, workflow_id: str, run_id: str, first: int, count: int
    ) -> OutlinePage:
        """``count`` events of a run from number ``first`` (from 1), in outline; a negative ``first`` counts
        from the end. Raises Refused ``run_not_found`` (404).
        """
        await self.describe(namespace, workflow_id, run_id)
        key = self._store.keys.history(
            partition_of_workflow(workflow_id, self._store.keys.partitions), run_id
        )
        start = first - 1 if first > 0 else first
        stop = -1 if start < 0 <= start + count else start + count - 1
        total, sizes, texts, tails = await self._store.run(
            "outline", [key], [start, stop, WHOLE_BYTES, END_BYTES], idempotent=True
        )
        number = start + 1 if start >= 0 else max(0, total + start) + 1
        rows = zip(sizes, texts, tails, strict=True)
        return OutlinePage([outline(number + place, *row) for place, row in enumerate(rows)], total)

    async def list_runs(
        self,
        namespace: str,
        *,
        workflow_type: str | None,
        bucket: str | None,
        query: str | None,
        page_size: int,
        token: str | None,
        keep: Callable[[RunView], bool] | None = None,
    ) -> RunPage:
        """Runs of a namespace, newest first. ``bucket`` is running, completed or failed; ``keep`` says
        which of the runs found this way belong to the list."""
        keys = self._store.keys
        filters = (workflow_type or "", bucket or "", query or "")

        async def look(partition: int, place: Place | None) -> Part[RunView]:
            after = (str(place.ms), place.name) if place else ("", "")
            rows, more, last_ms, last_id = await self._store.run(
                "list",
                [keys.runs(partition, namespace)],
                [keys.base(partition), *after, page_size, LOOK_LIMIT, *filters],
                idempotent=True,
            )
            end = Place(int(last_ms), last_id.decode()) if more else None
            found = [_row(row) for row in rows]
            return Part([(place, view) for place, view in found if keep is None or keep(view)], end)

        return RunPage(*await newest_first(keys.partitions, look, page_size, token))


def _row(row: list[bytes]) -> tuple[Place, RunView]:
    run_id, started_ms, version, info, state, archived = row
    run = Run(info=decode_info(info), state=decode_state(state), version=int(version))
    view = RunView(
        run=run, run_count=run.info.run_number, is_current=True, task=None, archived=bool(archived)
    )
    return Place(int(started_ms), run_id.decode()), view


def not_found(workflow_id: str, run_id: str | None) -> Refused:
    if run_id is None:
        return Refused(
            "instance_not_found",
            f"Workflow {workflow_id!r} does not exist.",
            status=404,
            workflow_id=workflow_id,
        )
    return Refused(
        "run_not_found",
        f"Run {run_id!r} of workflow {workflow_id!r} does not exist.",
        status=404,
        workflow_id=workflow_id,
        run_id=run_id,
    )
