"""The fleet: registered workers as operators see them, and who can answer a query.

A worker is stale when it was silent for too long; that is computed when it is looked at, and never
removes a registration (server-behaviour 4.2). Rules differ a little by view: at the exact limit a
listed worker still counts as alive, but gets no queries any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from cluster.cohorts import cohort_of
from cluster.paging import names_after
from cluster.workers import Registration, decode_registration

if TYPE_CHECKING:
    from cluster.store.store import Store

FIRST_CANDIDATES: Final = 8
"""Workers looked at first when one is sought that can answer a query; then four times as many."""
SEARCH_LIMIT: Final = 2_000
QUERY_CAPABILITY: Final = "query_tasks"


class WorkerStatus(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker now. ``vitals`` are task_slots and process_metrics as it sent them last."""

    registration: Registration
    last_heartbeat_ms: int | None
    status: WorkerStatus
    vitals: dict[str, Any]


class Fleet:
    """Reads the workers of a namespace. ``stale_after_ms`` is the silence that makes a worker stale."""

    def __init__(self, store: Store, now_ms: Callable[[], int], stale_after_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._stale_after_ms = stale_after_ms

    async def workers(
        self, namespace: str, *, task_queue: str | None = None, status: WorkerStatus | None = None
    ) -> list[WorkerView]:
        """Workers, the one heard of last first."""
        keys = self._store.keys
        if task_queue is None:
            raw = await self._store.call("HGETALL", keys.registrations(namespace), idempotent=True)
            views = await self._views(namespace, [decode_registration(record) for record in raw[1::2]])
        else:
            ids = await self._store.call("ZRANGE", keys.fleet(namespace, task_queue), 0, -1, idempotent=True)
            views = await self._views(namespace, await self._registrations(namespace, ids))
            views = [view for view in views if view.registration.task_queue == task_queue]
        wanted = [view for view in views if status is None or view.status is status]
        return sorted(wanted, key=lambda view: (-(view.last_heartbeat_ms or 0), view.registration.worker_id))

    async def page(
        self,
        namespace: str,
        size: int,
        token: str | None,
        *,
        task_queue: str | None = None,
        status: WorkerStatus | None = None,
    ) -> tuple[list[WorkerView], str | None]:
        """Up to ``size`` workers by id, and the token of the next page.

        One that filters by status looks at up to SEARCH_LIMIT workers, so it may be short.
        """
        keys = self._store.keys
        if task_queue is None:
            ids = await self._store.call("HKEYS", keys.registrations(namespace), idempotent=True)
        else:
            ids = await self._store.call("ZRANGE", keys.fleet(namespace, task_queue), 0, -1, idempotent=True)
        names = sorted(name.decode() for name in ids)
        found: list[WorkerView] = []
        following = token
        for _ in range(max(1, SEARCH_LIMIT // size)):
            part, following = names_after(names, following, size - len(found))
            registered = await self._registrations(namespace, [name.encode() for name in part])
            views = await self._views(namespace, registered)
            found += [view for view in views if status is None or view.status is status]
            if following is None or len(found) == size:
                break
        return found, following

    async def describe(self, namespace: str, worker_id: str) -> WorkerView | None:
        """One worker, or None."""
        found = await self._views(namespace, await self._registrations(namespace, [worker_id.encode()]))
        return found[0] if found else None

    async def can_answer(
        self,
        namespace: str,
        task_queue: str,
        workflow_type: str,
        marker: str,
        draining: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether a fresh, active worker of the queue can replay ``workflow_type`` for a query.

        A run that is bound to a build (``marker``) needs a worker of that build. ``draining`` are
        fields of cohorts that get nothing new, also where their workers do not know yet.
        """
        keys = self._store.keys
        newest, limit = "+inf", f"({self._now_ms() - self._stale_after_ms}"
        offset, count = 0, FIRST_CANDIDATES
        while offset < SEARCH_LIMIT:
            ids = await self._store.call(
                "ZRANGE",
                keys.fleet(namespace, task_queue),
                newest,
                limit,
                "BYSCORE",
                "REV",
                "LIMIT",
                offset,
                count,
                idempotent=True,
            )
            views = await self._views(namespace, await self._registrations(namespace, ids))
            serving = [view for view in views if _cohort_field(view) not in draining]
            if any(_can_answer(view, task_queue, workflow_type, marker) for view in serving):
                return True
            if len(ids) < count:
                break
            offset, count = offset + count, count * 4
        return False

    async def _registrations(self, namespace: str, ids: Sequence[bytes]) -> list[Registration]:
        if not ids:
            return []
        key = self._store.keys.registrations(namespace)
        rows = await self._store.call("HMGET", key, *ids, idempotent=True)
        return [decode_registration(raw) for raw in rows if raw is not None]

    async def _views(self, namespace: str, registrations: list[Registration]) -> list[WorkerView]:
        if not registrations:
            return []
        keys = self._store.keys
        ids = [registration.worker_id for registration in registrations]
        beats = await self._store.call("HMGET", keys.heartbeats(namespace), *ids, idempotent=True)
        vitals = await self._store.call("HMGET", keys.vitals(namespace), *ids, idempotent=True)
        told = await self._store.call("SMISMEMBER", keys.draining(namespace), *ids, idempotent=True)
        oldest = self._now_ms() - self._stale_after_ms
        views = []
        for registration, beat, vital, drains in zip(registrations, beats, vitals, told, strict=True):
            last = int(beat) if beat is not None else None
            status = WorkerStatus.DRAINING if drains else WorkerStatus.ACTIVE
            if last is None or last < oldest:
                status = WorkerStatus.STALE
            views.append(WorkerView(registration, last, status, orjson.loads(vital) if vital else {}))
        return views


def _cohort_field(view: WorkerView) -> str:
    worker = view.registration
    return cohort_of(worker.namespace, worker.task_queue, worker.build_id).field


def _can_answer(view: WorkerView, task_queue: str, workflow_type: str, marker: str) -> bool:
    worker = view.registration
    types = worker.supported_workflow_types
    return (
        view.status is WorkerStatus.ACTIVE
        and worker.task_queue == task_queue
        and (worker.runtime != "php" or QUERY_CAPABILITY in worker.capabilities)
        and (not types or workflow_type in types)
        and (not marker or worker.build_id == marker)
    )
