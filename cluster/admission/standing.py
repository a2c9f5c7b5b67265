"""How queues stand against their limits, as an operator sees it (server-behaviour 6.5).

The status is one word with a strict precedence; everything else are the numbers behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cluster.admission.limits import GATE_ORDER, LimitName, QueueLimits
from cluster.ids import TaskKind
from cluster.store.keys import encode
from cluster.store.store import Store


class AdmissionStatus(StrEnum):
    """First that applies, in this order."""

    UNAVAILABLE = "unavailable"
    THROTTLED = "throttled"
    NO_ACTIVE_WORKERS = "no_active_workers"
    NO_SLOTS = "no_slots"
    SATURATED = "saturated"
    ACCEPTING = "accepting"


class QueryStatus(StrEnum):
    UNAVAILABLE = "unavailable"
    FULL = "full"
    ACCEPTING = "accepting"


@dataclass(frozen=True, slots=True)
class Budget:
    """Counts in gate order; ``counted``: the first two are tickets, else nobody counts leases."""

    counted: bool
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What one kind of tasks of a queue has and does. ``live`` leases have not run out."""

    workers: int
    slots: int
    leased: int
    ready: int
    live: int
    namespace_live: int


async def budgets(store: Store, namespace: str, queues: Sequence[tuple[str, QueueLimits]]) -> list[Budget]:
    """The counters of each queue, in one round trip. Raises StoreError."""
    rows: list[str] = []
    for queue, limits in queues:
        rows += [limits.kind.value, encode(queue), encode(limits.group or "")]
    _, flat = await store.run(
        "budgets", [store.keys.terms(namespace)], [store.keys.admission(namespace), *rows], idempotent=True
    )
    return [Budget(bool(flat[i]), tuple(flat[i + 1])) for i in range(0, len(flat), 2)]


def counts(limits: QueueLimits, budget: Budget | None, load: Load) -> tuple[int, ...]:
    """The five counts in gate order. Leases are tickets where these are counted, else what is leased."""
    if budget is None:
        return (load.live, load.namespace_live, 0, 0, 0)
    queue, namespace, *dispatches = budget.counts
    if not budget.counted:
        queue, namespace = load.live, load.namespace_live
    return (queue, namespace, *dispatches)


def exhausted(limits: QueueLimits, numbers: Sequence[int]) -> list[LimitName]:
    """The limits that are used up, in gate order."""
    found = []
    for name, count in zip(GATE_ORDER, numbers, strict=True):
        limit = limits[name]
        if limit is not None and count >= limit:
            found.append(name)
    return found


def status(limits: QueueLimits, budget: Budget | None, load: Load) -> AdmissionStatus:
    """The one word. ``budget`` is None when the counters could not be read."""
    if limits.limited and budget is None:
        return AdmissionStatus.UNAVAILABLE
    if exhausted(limits, counts(limits, budget, load)):
        return AdmissionStatus.THROTTLED
    if load.workers == 0:
        return AdmissionStatus.NO_ACTIVE_WORKERS
    if load.slots <= 0:
        return AdmissionStatus.NO_SLOTS
    if load.leased >= load.slots:
        return AdmissionStatus.SATURATED
    return AdmissionStatus.ACCEPTING


def query_status(pending: int | None, maximum: int) -> QueryStatus:
    """``pending`` is None when the queue could not be read."""
    if pending is None:
        return QueryStatus.UNAVAILABLE
    return QueryStatus.FULL if pending >= maximum else QueryStatus.ACCEPTING


_SHOWN: tuple[tuple[LimitName, str, str], ...] = (
    (LimitName.QUEUE_LEASES, "server_active_lease_count", "server_remaining_active_lease_capacity"),
    (
        LimitName.NAMESPACE_LEASES,
        "server_namespace_active_lease_count",
        "server_remaining_namespace_active_lease_capacity",
    ),
    (LimitName.QUEUE_DISPATCHES, "server_dispatch_count_this_minute", "server_remaining_dispatch_capacity"),
    (
        LimitName.NAMESPACE_DISPATCHES,
        "server_namespace_dispatch_count_this_minute",
        "server_remaining_namespace_dispatch_capacity",
    ),
    (
        LimitName.GROUP_DISPATCHES,
        "server_budget_group_dispatch_count_this_minute",
        "server_remaining_budget_group_dispatch_capacity",
    ),
)


_SLOTS_FROM: Final = {
    TaskKind.WORKFLOW: "worker_registration.max_concurrent_workflow_tasks",
    TaskKind.ACTIVITY: "worker_registration.max_concurrent_activity_tasks",
    TaskKind.STEP: "worker_streams.step_and_rpc",
}


def section(kind: TaskKind, limits: QueueLimits, budget: Budget | None, load: Load) -> dict[str, Any]:
    """One section of ``admission``: all 26 fields, always."""
    shown: dict[str, Any] = {
        "status": status(limits, budget, load).value,
        "budget_source": _SLOTS_FROM[kind],
        "server_budget_source": limits.source,
        "active_worker_count": load.workers,
        "configured_slot_count": load.slots,
        "leased_count": load.leased,
        "ready_count": load.ready,
        "available_slot_count": max(0, load.slots - load.leased),
    }
    for (name, count_field, left_field), count in zip(_SHOWN, counts(limits, budget, load), strict=True):
        limit = limits[name]
        if name is LimitName.GROUP_DISPATCHES:
            shown["server_dispatch_budget_group"] = limits.group
        shown[f"server_{name.value}"] = limit
        shown[count_field] = count
        shown[left_field] = None if limit is None else max(0, limit - count)
    shown["server_lock_required"] = limits.limited
    shown["server_lock_supported"] = budget is not None
    return shown


def query_section(pending: int | None, maximum: int) -> dict[str, Any]:
    """The section of query tasks, whose queue is bounded but has no other limits."""
    return {
        "status": query_status(pending, maximum).value,
        "budget_source": "server.query_tasks.max_pending_per_queue",
        "max_pending_per_queue": maximum,
        "approximate_pending_count": pending or 0,
        "remaining_pending_capacity": max(0, maximum - (pending or 0)),
        "lock_required": True,
        "lock_supported": pending is not None,
    }
