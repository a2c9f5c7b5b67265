"""Routes an autoscaler asks how many workers a task queue needs.

``desired_workers`` of a queue is the largest of what its kinds of tasks need (the queue of a step is
called by its flow type)::

    wanted slots    = backlog + slots in use, at most the queue's limit of active leases
    slots per worker = registered slots of the queue's active workers / number of those workers
    desired workers = ceil(wanted slots / slots per worker)

A kind of which no active worker takes tasks counts as DEFAULT_SLOTS per worker, or as many as the
caller names. The total adds up the queues, because a worker serves one queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Final

from annotated_types import Ge, Le

from cluster.admission.limits import LimitName
from cluster.fleet import WorkerStatus
from cluster.ids import TaskKind
from cluster.queues.overview import EVERY_KIND
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer
from nodes.api.queue_views import QueueFacts, all_queues, gather
from nodes.api.routes import Reply

DEFAULT_SLOTS: Final = 100
"""Slots of each kind that a worker has unless it says otherwise when it registers."""
_NAMES: Final = {TaskKind.WORKFLOW: "workflow", TaskKind.ACTIVITY: "activity", TaskKind.STEP: "step"}


class _Ask(Fields):
    slots_per_worker: Annotated[Annotated[int, Ge(1), Le(1_000_000)] | None, Integer] = None


@dataclass(frozen=True, slots=True)
class Demand:
    """One kind of tasks of one queue now. ``limit`` is the most leases it may have, None for no limit."""

    backlog: int
    in_use: int
    registered: int
    workers: int
    limit: int | None = None

    def desired_workers(self, assumed_slots: int) -> int:
        """See the module. ``assumed_slots`` stands in while no active worker has a slot of this kind."""
        wanted = self.backlog + self.in_use
        if self.limit is not None:
            wanted = min(wanted, self.limit)
        per_worker = self.registered / self.workers if self.workers and self.registered else assumed_slots
        return ceil(wanted / per_worker)


async def scaling(call: Call) -> Reply:
    """``GET /api/scaling``: every task queue of the namespace with tasks or workers, and their sum."""
    assumed = call.query_fields(_Ask).slots_per_worker or DEFAULT_SLOTS
    names, facts = await all_queues(call.node, call.namespace)
    rows = [_row(facts, name, assumed) for name in names]
    ages = [row["oldest_age_seconds"] for row in rows]
    summed = ("backlog", "slots_in_use", "registered_slots", "active_workers", "desired_workers")
    total = {name: sum(row[name] for row in rows) for name in summed}
    return Reply(
        {
            "namespace": call.namespace,
            "generated_at": iso_ms(call.node.clock.now_ms()),
            "total": {**total, "oldest_age_seconds": max(ages, default=0)},
            "task_queues": rows,
        }
    )


async def scaling_of_queue(call: Call) -> Reply:
    """``GET /api/scaling/{task_queue}``: one flat object; a queue nobody has heard of needs no worker."""
    assumed = call.query_fields(_Ask).slots_per_worker or DEFAULT_SLOTS
    queue = call.parameters["task_queue"]
    views = await call.node.fleet.workers(call.namespace, task_queue=queue)
    facts = await gather(call.node, call.namespace, [queue], views, with_counts=False)
    return Reply({"namespace": call.namespace, **_row(facts, queue, assumed)})


def _row(facts: QueueFacts, queue: str, assumed_slots: int) -> dict[str, Any]:
    demands = {kind: _demand(facts, queue, kind) for kind in EVERY_KIND}
    oldest = [task.ready_at_ms for kind in EVERY_KIND if (task := facts.overview.of(queue, kind).oldest)]
    age = max(0, facts.overview.now_ms - min(oldest)) // 1000 if oldest else 0
    active = [view for view in facts.workers.get(queue, ()) if view.status is WorkerStatus.ACTIVE]
    row: dict[str, Any] = {
        "task_queue": queue,
        "backlog": sum(demand.backlog for demand in demands.values()),
        "oldest_age_seconds": age,
        "slots_in_use": sum(demand.in_use for demand in demands.values()),
        "registered_slots": sum(demand.registered for demand in demands.values()),
        "active_workers": len(active) + demands[TaskKind.STEP].workers,
        "desired_workers": max(demand.desired_workers(assumed_slots) for demand in demands.values()),
    }
    for kind, name in _NAMES.items():
        demand = demands[kind]
        row |= {
            f"{name}_task_backlog": demand.backlog,
            f"{name}_slots_in_use": demand.in_use,
            f"registered_{name}_slots": demand.registered,
        }
    return row


def _demand(facts: QueueFacts, queue: str, kind: TaskKind) -> Demand:
    load = facts.load(queue, kind)
    return Demand(
        backlog=load.ready,
        in_use=load.live,
        registered=load.slots,
        workers=load.workers,
        limit=facts.book.of(kind, queue)[LimitName.QUEUE_LEASES],
    )
