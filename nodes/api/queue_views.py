"""Task queues as operators see them (server-behaviour 6.5): everything read at once, then put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from cluster.admission import standing
from cluster.admission.limits import SECTION, LimitBook
from cluster.admission.standing import Budget, Load
from cluster.errors import StoreError
from cluster.fleet import WorkerStatus, WorkerView
from cluster.ids import AttemptId, TaskKind, parse_task_id
from cluster.paging import names_after
from cluster.queues.overview import (
    EVERY_KIND,
    REDISPATCH_AFTER_SECONDS,
    LeaseRow,
    Overview,
    QueueContent,
    look_at,
    queue_names,
)
from cluster.queues.served import Serving
from cluster.times import iso_ms
from nodes.api.ports import NodePort

_KIND_NAMES = {TaskKind.WORKFLOW: "workflow", TaskKind.ACTIVITY: "activity", TaskKind.STEP: "step"}


@dataclass(slots=True)
class QueueFacts:
    """What the store says about some queues of a namespace. ``budgets`` is None where it could not."""

    overview: Overview
    book: LimitBook
    workers: dict[str, list[WorkerView]]
    serving: dict[str, Serving]
    """Who serves steps, by flow type."""
    budgets: dict[tuple[str, TaskKind], Budget | None] = field(default_factory=dict)
    queries: dict[str, int | None] = field(default_factory=dict)

    def load(self, queue: str, kind: TaskKind) -> Load:
        content = self.overview.of(queue, kind)
        if kind is TaskKind.STEP:
            serving = self.serving.get(queue, Serving())
            workers, slots = serving.workers, serving.slots
        else:
            active = [v for v in self.workers.get(queue, ()) if v.status is WorkerStatus.ACTIVE]
            workers, slots = len(active), sum(max(0, slots_of(view, kind)) for view in active)
        return Load(
            workers=workers,
            slots=slots,
            leased=content.leased,
            ready=content.ready,
            live=content.live,
            namespace_live=self.overview.live[kind],
        )


def slots_of(view: WorkerView, kind: TaskKind) -> int:
    registration = view.registration
    if kind is TaskKind.WORKFLOW:
        return registration.max_concurrent_workflow_tasks
    return registration.max_concurrent_activity_tasks


async def all_queues(node: NodePort, namespace: str) -> tuple[list[str], QueueFacts]:
    """Every queue with tasks or workers, by name, and the facts about them, without budgets and queries."""
    names, _, facts = await some_queues(node, namespace, with_counts=False)
    return list(names), facts


async def some_queues(
    node: NodePort,
    namespace: str,
    size: int | None = None,
    token: str | None = None,
    query: str = "",
    *,
    with_counts: bool = True,
) -> tuple[Sequence[str], str | None, QueueFacts]:
    """A page of the queues with tasks or workers whose names contain ``query``, by name; the token of the
    next page; the facts about those of the page. Without ``size`` all are one page.
    """
    views = await node.fleet.workers(namespace)
    known = await queue_names(node.store, namespace, EVERY_KIND)
    known |= {view.registration.task_queue for view in views}
    known |= (await node.served.of_namespace(namespace)).keys()
    names, following = names_after(sorted(name for name in known if query in name), token, size)
    shown = set(names)
    views = [view for view in views if view.registration.task_queue in shown]
    return names, following, await gather(node, namespace, names, views, with_counts=with_counts)


async def gather(
    node: NodePort,
    namespace: str,
    queues: Sequence[str],
    views: Iterable[WorkerView],
    *,
    with_leases: bool = False,
    with_counts: bool = True,
) -> QueueFacts:
    """The facts about ``queues``, in a number of round trips that does not grow with what they hold; budgets
    and waiting queries only ``with_counts``, for these are asked of each queue.
    """
    book = await node.limits.book(namespace)
    workers: dict[str, list[WorkerView]] = {}
    for view in views:
        workers.setdefault(view.registration.task_queue, []).append(view)
    overview = await look_at(node.store, namespace, queues, kinds=EVERY_KIND, with_leases=with_leases)
    facts = QueueFacts(overview, book, workers, await node.served.of_namespace(namespace))

    if not with_counts:
        return facts

    async def count_queries(queue: str) -> None:
        try:
            facts.queries[queue] = await node.queries.pending(namespace, queue)
        except StoreError:
            facts.queries[queue] = None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_budgets, node, namespace, queues, facts)
        for queue in queues:
            nursery.start_soon(count_queries, queue)
    return facts


async def _read_budgets(node: NodePort, namespace: str, queues: Sequence[str], facts: QueueFacts) -> None:
    wanted = [(queue, kind) for queue in queues for kind in EVERY_KIND]
    try:
        found: Sequence[Budget | None] = await standing.budgets(
            node.store, namespace, [(queue, facts.book.of(kind, queue)) for queue, kind in wanted]
        )
    except StoreError:
        found = [None] * len(wanted)
    facts.budgets = dict(zip(wanted, found, strict=True))


def summary(facts: QueueFacts, queue: str, stale_after: int, max_queries: int) -> dict[str, Any]:
    """What the list shows of a queue."""
    admission: dict[str, Any] = {
        SECTION[kind]: standing.section(
            kind, facts.book.of(kind, queue), facts.budgets[queue, kind], facts.load(queue, kind)
        )
        for kind in EVERY_KIND
    }
    admission["query_tasks"] = standing.query_section(facts.queries[queue], max_queries)
    return {
        "name": queue,
        "stats": _stats(facts, queue, stale_after),
        "repair": _repair(facts, queue),
        "admission": admission,
    }


def pollers(views: Iterable[WorkerView], stale_after: int) -> list[dict[str, Any]]:
    """Registered workers, those that are alive first."""
    ordered = sorted(views, key=lambda view: (view.status is WorkerStatus.STALE, view.registration.worker_id))
    return [_poller(view, stale_after) for view in ordered]


def current_leases(facts: QueueFacts, queue: str) -> list[dict[str, Any]]:
    """Up to 50 leases of all kinds, those that ran out first."""
    rows = [(kind, lease) for kind in EVERY_KIND for lease in facts.overview.of(queue, kind).leases]
    now_ms = facts.overview.now_ms
    rows.sort(key=lambda row: (row[1].expires_at_ms > now_ms, row[1].task_id))
    return [_lease(kind, lease, now_ms) for kind, lease in rows[:50]]


def _poller(view: WorkerView, stale_after: int) -> dict[str, Any]:
    registration, last = view.registration, view.last_heartbeat_ms
    return {
        "worker_id": registration.worker_id,
        "runtime": registration.runtime,
        "sdk_version": registration.sdk_version,
        "build_id": registration.build_id,
        "last_heartbeat_at": None if last is None else iso_ms(last),
        "heartbeat_expires_at": None if last is None else iso_ms(last + stale_after * 1000),
        "status": view.status.value,
        "is_stale": view.status is WorkerStatus.STALE,
        "supported_workflow_types": list(registration.supported_workflow_types),
        "supported_activity_types": list(registration.supported_activity_types),
        "max_concurrent_workflow_tasks": registration.max_concurrent_workflow_tasks,
        "max_concurrent_activity_tasks": registration.max_concurrent_activity_tasks,
    }


def _lease(kind: TaskKind, lease: LeaseRow, now_ms: int) -> dict[str, Any]:
    task = parse_task_id(lease.task_id)
    shown: dict[str, Any] = {
        "task_id": lease.task_id,
        "task_type": _KIND_NAMES[kind],
        "workflow_id": lease.workflow_id or None,
        "run_id": task.run_id if task else None,
        "lease_owner": lease.owner,
        "lease_expires_at": iso_ms(lease.expires_at_ms),
        "is_expired": lease.expires_at_ms <= now_ms,
    }
    if kind is TaskKind.WORKFLOW:
        shown["workflow_task_attempt"] = lease.attempt
    elif kind is TaskKind.ACTIVITY and task is not None:
        shown["activity_attempt_id"] = str(AttemptId(task, lease.attempt, lease.delivery))
        shown["attempt_number"] = lease.attempt
    return shown


def _stats(facts: QueueFacts, queue: str, stale_after: int) -> dict[str, Any]:
    contents = {kind: facts.overview.of(queue, kind) for kind in EVERY_KIND}
    views = facts.workers.get(queue, [])
    stale = sum(view.status is WorkerStatus.STALE for view in views)
    oldest = min(
        ((c.oldest.ready_at_ms, kind) for kind, c in contents.items() if c.oldest is not None), default=None
    )
    age = None if oldest is None else max(0, facts.overview.now_ms - oldest[0]) // 1000
    shown: dict[str, Any] = {
        "approximate_backlog_count": sum(content.ready for content in contents.values()),
        "approximate_backlog_age": None if age is None else _age(age),
        "approximate_backlog_age_seconds": age,
        "oldest_ready_task": None if oldest is None else _oldest(oldest[1], contents[oldest[1]], age),
    }
    for kind, content in contents.items():
        shown[SECTION[kind]] = {
            "ready_count": content.ready,
            "leased_count": content.leased,
            "expired_lease_count": content.expired,
            "added_last_minute": content.added,
            "dispatched_last_minute": content.handed_out,
        }
    shown["pollers"] = {
        "active_count": len(views) - stale,
        "stale_count": stale,
        "stale_after_seconds": stale_after,
    }
    shown["tasks_added_last_minute"] = sum(content.added for content in contents.values())
    shown["tasks_dispatched_last_minute"] = sum(content.handed_out for content in contents.values())
    return shown


def _oldest(kind: TaskKind, content: QueueContent, age: int | None) -> dict[str, Any] | None:
    task = content.oldest
    if task is None:
        return None
    parsed = parse_task_id(task.task_id)
    return {
        "task_id": task.task_id,
        "task_type": _KIND_NAMES[kind],
        "workflow_id": task.workflow_id or None,
        "run_id": parsed.run_id if parsed else None,
        "available_at": iso_ms(task.ready_at_ms),
        "age_seconds": age,
    }


def _age(seconds: int) -> str:
    """``42s``, ``3m05s``, ``2h01m07s``."""
    if seconds < 60:
        return f"{seconds}s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s"


def _repair(facts: QueueFacts, queue: str) -> dict[str, Any]:
    """What is late. No dispatch can fail here: a task that is ready stands in its queue."""
    contents = [facts.overview.of(queue, kind) for kind in EVERY_KIND]
    now_ms = facts.overview.now_ms
    expired = sum(content.expired for content in contents)
    overdue = sum(content.overdue for content in contents)
    expiries = [c.oldest_expiry_ms for c in contents if c.expired and c.oldest_expiry_ms is not None]
    since = [
        content.oldest.ready_at_ms + REDISPATCH_AFTER_SECONDS * 1000
        for content in contents
        if content.overdue and content.oldest is not None
    ]
    first_expiry, first_overdue = min(expiries, default=None), min(since, default=None)
    return {
        "candidates": expired + overdue,
        "dispatch_failed": 0,
        "oldest_dispatch_failed_at": None,
        "max_dispatch_failed_age_ms": 0,
        "expired_leases": expired,
        "oldest_lease_expired_at": None if first_expiry is None else iso_ms(first_expiry),
        "max_lease_expired_age_ms": 0 if first_expiry is None else max(0, now_ms - first_expiry),
        "dispatch_overdue": overdue,
        "oldest_dispatch_overdue_since": None if first_overdue is None else iso_ms(first_overdue),
        "max_dispatch_overdue_age_ms": 0 if first_overdue is None else max(0, now_ms - first_overdue),
        "needs_attention": expired + overdue > 0,
        "policy": {"redispatch_after_seconds": REDISPATCH_AFTER_SECONDS},
    }
