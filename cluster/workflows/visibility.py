"""Reading runs: describe, list, history."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

import trio

from cluster.errors import Refused, StoreError
from cluster.ids import partition_of_workflow
from cluster.paging import page_start, page_token
from cluster.store.store import Store
from cluster.workflows.records import Lease, Run
from cluster.workflows.storage import decode_info, decode_state, load

LOOK_LIMIT: Final = 2_000
"""Most runs one script looks at; a page of a selective list may come back short but never wrong."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with what its instance knows. ``task`` is the record of its open workflow task."""

    run: Run
    run_count: int
    is_current: bool
    task: Lease | None
    archived: bool


@dataclass(frozen=True, slots=True)
class RunPage:
    runs: list[RunView]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """``events`` are the stored JSON objects, in order."""

    events: list[bytes]
    next_page_token: str | None


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a list stands: lists run from the greatest place to the smallest."""

    started_ms: int
    run_id: str

    def encode(self) -> str:
        return urlsafe_b64encode(f"{self.started_ms}:{self.run_id}".encode()).decode()

    @staticmethod
    def decode(token: str | None) -> _Place | None:
        """The place a token stands for; a token nobody made counts as absent (1.7)."""
        try:
            ms, _, run_id = urlsafe_b64decode((token or "").encode()).decode().partition(":")
            return _Place(int(ms), run_id)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class _Part:
    rows: list[tuple[_Place, RunView]]
    end: _Place | None
    """None when the partition has no more runs, else the last place looked at."""


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
        owner, current, runs = await self._store.call(
            "HMGET", keys.workflow(partition, workflow_id), "ns", "run", "runs", idempotent=True
        )
        missing = _not_found(workflow_id, run_id)
        if owner is None or owner.decode() != namespace:
            raise missing
        wanted = run_id or current.decode()
        snapshot = await load(self._store, wanted)
        if snapshot is None or snapshot.run.info.workflow_id != workflow_id:
            raise missing
        return RunView(
            run=snapshot.run,
            run_count=int(runs),
            is_current=wanted == current.decode(),
            task=snapshot.workflow_task if snapshot.workflow_task.state else None,
            archived=snapshot.archived,
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

    async def list_runs(
        self,
        namespace: str,
        *,
        workflow_type: str | None,
        bucket: str | None,
        query: str | None,
        page_size: int,
        token: str | None,
    ) -> RunPage:
        """Runs of a namespace, newest first. ``bucket`` is running, completed or failed."""
        place = _Place.decode(token)
        filters = (workflow_type or "", bucket or "", query or "")
        parts: list[_Part] = []
        failures: list[StoreError] = []
        async with trio.open_nursery() as nursery:
            for partition in range(self._store.keys.partitions):
                nursery.start_soon(
                    self._part, parts, failures, partition, namespace, place, page_size, filters
                )
        if failures:
            raise failures[0]
        # Below the highest place at which a partition stopped looking, rows may be missing.
        horizon = max((part.end for part in parts if part.end is not None), default=None)
        rows = sorted((row for part in parts for row in part.rows), key=lambda row: row[0], reverse=True)
        sure = [row for row in rows if horizon is None or row[0] >= horizon]
        page = sure[:page_size]
        if len(page) < len(sure):
            following: _Place | None = page[-1][0]
        else:
            following = horizon
        return RunPage([view for _, view in page], None if following is None else following.encode())

    async def _part(
        self,
        parts: list[_Part],
        failures: list[StoreError],
        partition: int,
        namespace: str,
        place: _Place | None,
        page_size: int,
        filters: tuple[str, str, str],
    ) -> None:
        keys = self._store.keys
        after = (str(place.started_ms), place.run_id) if place else ("", "")
        try:
            rows, more, last_ms, last_id = await self._store.run(
                "list",
                [keys.runs(partition, namespace)],
                [keys.base(partition), *after, page_size, LOOK_LIMIT, *filters],
                idempotent=True,
            )
        except StoreError as error:
            failures.append(error)
            return
        end = _Place(int(last_ms), last_id.decode()) if more else None
        parts.append(_Part([_row(row) for row in rows], end))


def _row(row: list[bytes]) -> tuple[_Place, RunView]:
    run_id, started_ms, version, info, state, archived = row
    run = Run(info=decode_info(info), state=decode_state(state), version=int(version))
    view = RunView(
        run=run, run_count=run.info.run_number, is_current=True, task=None, archived=bool(archived)
    )
    return _Place(int(started_ms), run_id.decode()), view


def _not_found(workflow_id: str, run_id: str | None) -> Refused:
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
