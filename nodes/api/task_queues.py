"""Routes of task queues: list, describe, and why a task waits (server-behaviour 3.5, 6.5)."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le

from cluster.admission.standing import counts
from cluster.admission.why import Waiting, Worker, findings
from cluster.fleet import WorkerStatus
from cluster.ids import TaskId, TaskKind, parse_task_id, partition_of_task
from cluster.store.keys import QueueName, decode
from cluster.times import iso_ms
from cluster.workflows.storage import Snapshot, item_field, load
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, ShortText, Trimmed
from nodes.api.queue_views import (
    QueueFacts,
    current_leases,
    gather,
    pollers,
    slots_of,
    some_queues,
    summary,
)
from nodes.api.routes import Reply
from nodes.api.waiting_tasks import explained, other_queue, task_not_found, why_step


class _List(Fields):
    """Without ``page_size`` the list is whole."""

    query: OptionalText = None
    page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


class _Why(Fields):
    task: ShortText


async def list_task_queues(call: Call) -> Reply:
    """``GET /api/task-queues``."""
    wanted = call.query_fields(_List)
    names, following, facts = await some_queues(
        call.node, call.namespace, wanted.page_size, wanted.next_page_token, wanted.query or ""
    )
    return Reply(
        {
            "namespace": call.namespace,
            "task_queues": [_summary(call, facts, name) for name in names],
            "next_page_token": following,
        }
    )


async def describe_task_queue(call: Call) -> Reply:
    """``GET /api/task-queues/{task_queue}``; a queue nobody has heard of is an empty one."""
    queue = call.parameters["task_queue"]
    views = await call.node.fleet.workers(call.namespace, task_queue=queue)
    facts = await gather(call.node, call.namespace, [queue], views, with_leases=True)
    return Reply(
        {
            "namespace": call.namespace,
            **_summary(call, facts, queue),
            "pollers": pollers(views, _stale_after(call)),
            "current_leases": current_leases(facts, queue),
        }
    )


async def why(call: Call) -> Reply:
    """``GET /api/task-queues/{task_queue}/why?task=ID``: what keeps a task from running.

    ``waiting`` is false for a task that runs or is over. Otherwise ``reasons`` has every obstacle, the
    decisive one first, and that one's code is ``reason``.
    """
    queue = call.parameters["task_queue"]
    task_id = call.query_fields(_Why).task
    task = parse_task_id(task_id)
    keys = call.node.store.keys
    if task is None or partition_of_task(task) >= keys.partitions:
        raise task_not_found(task_id)
    if task.kind is TaskKind.STEP:
        return await why_step(call, queue, task)
    partition = partition_of_task(task)
    fields = (item_field("a", task.index),) if task.kind is TaskKind.ACTIVITY else ()
    snapshot = await load(call.node.store, task.run_id, task_id=task_id, fields=fields)
    if snapshot is None or snapshot.run.info.namespace != call.namespace or not _existed(snapshot, task):
        raise task_not_found(task_id)
    heads, type_part = await call.node.store.call(
        "HMGET", keys.task(partition, task_id), "h", "y", idempotent=True
    )
    place = _place(snapshot, task, heads, type_part)
    known = {
        "namespace": call.namespace,
        "task_id": task_id,
        "task_type": "workflow" if task.kind is TaskKind.WORKFLOW else "activity",
        "workflow_id": snapshot.run.info.workflow_id,
        "run_id": task.run_id,
        "run_status": snapshot.run.state.status.value,
        "task_queue": queue if place is None else place[0].queue,
    }
    lease = snapshot.workflow_task if task.kind is TaskKind.WORKFLOW else snapshot.task
    if lease.task_id == task_id and lease.state == "l":
        held = {"lease_owner": lease.owner, "lease_expires_at": iso_ms(lease.expires_at_ms)}
        return Reply({**known, "state": "leased", "waiting": False, "reason": None, "reasons": [], **held})
    if place is None:
        return Reply(
            {**known, "state": "ended", "waiting": False, "reason": None, "reasons": []} | _open(snapshot)
        )
    if place[0].queue != queue:
        raise other_queue(task_id, place[0].queue, queue)
    return await _explain(call, known, place[0], place[1], place[2], snapshot.now_ms)


def _existed(snapshot: Snapshot, task: TaskId) -> bool:
    state = snapshot.run.state
    if task.kind is TaskKind.WORKFLOW:
        return task.index <= state.task_index
    return task.index < state.next_step


def _place(
    snapshot: Snapshot, task: TaskId, heads: bytes | None, type_part: bytes | None
) -> tuple[QueueName, str, int] | None:
    """Queue, type and due time of a task that is not over, or None."""
    run = snapshot.run
    if run.state.status.closed:
        return None
    if heads is not None and type_part is not None:
        return QueueName.parse(heads.decode()), decode(type_part.decode()), 0
    info = run.info
    activity = run.activities.get(task.index) if task.kind is TaskKind.ACTIVITY else None
    if activity is not None and activity.waiting:
        name = QueueName(task.kind, info.namespace, activity.task_queue, info.marker)
        return name, activity.activity_type, activity.ready_at_ms
    return None


def _open(snapshot: Snapshot) -> dict[str, Any]:
    """What a run whose task is over waits for."""
    state, run_id = snapshot.run.state, snapshot.run.info.run_id
    if state.status.closed:
        return {"run_waits_for": []}
    waits = [f"{run_id}-a{step}" for step in state.activities] + [
        f"{run_id}-t{step}" for step in state.timers
    ]
    if state.task_open:
        waits.insert(0, f"{run_id}-w{state.task_index}")
    return {"run_waits_for": waits[:100]}


async def _explain(
    call: Call, known: dict[str, Any], name: QueueName, type_name: str, due_ms: int, now_ms: int
) -> Reply:
    kind = TaskKind(name.kind)
    views = await call.node.fleet.workers(call.namespace, task_queue=name.queue)
    facts = await gather(call.node, call.namespace, [name.queue], views)
    limits, budget = facts.book.of(kind, name.queue), facts.budgets[name.queue, kind]
    load_now = facts.load(name.queue, kind)
    workers = [
        Worker(
            worker_id=view.registration.worker_id,
            build_id=view.registration.build_id or "",
            types=frozenset(
                view.registration.supported_workflow_types
                if kind is TaskKind.WORKFLOW
                else view.registration.supported_activity_types
            ),
            slots=slots_of(view, kind),
            stale=view.status is WorkerStatus.STALE,
            draining=view.status is WorkerStatus.DRAINING,
        )
        for view in views
    ]
    found = findings(
        Waiting(type_name, name.marker, due_ms, now_ms),
        limits,
        None if budget is None else counts(limits, budget, load_now),
        workers,
        load_now.leased,
    )
    return explained(known, found, load_now.ready)


def _summary(call: Call, facts: QueueFacts, queue: str) -> dict[str, Any]:
    return summary(facts, queue, _stale_after(call), call.node.settings.query_task_max_pending_per_queue)


def _stale_after(call: Call) -> int:
    return max(1, call.node.settings.worker_stale_after_seconds)
