"""Answers to why a task waits: what all kinds of tasks share, and the one for steps.

The queue of a step is called by its flow type.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from cluster.admission.standing import counts
from cluster.admission.why import Finding, Obstacle, Waiting, step_findings
from cluster.errors import Refused
from cluster.flows.records import FlowState, Phase, StepState
from cluster.flows.storage import Wants, load
from cluster.ids import TaskId, TaskKind
from cluster.queues.served import Serving
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.queue_views import gather
from nodes.api.routes import Reply

_NOT_QUEUED = {
    Phase.WAITING: (Obstacle.CONDITIONS_OPEN, "The step waits for its conditions."),
    Phase.LOCKED: (Obstacle.ATTRIBUTES_LOCKED, "The step waits for attributes that others have locked."),
}


def task_not_found(task_id: str) -> Refused:
    return Refused("task_not_found", f"No task {task_id!r} is known here.", status=404, task_id=task_id)


def other_queue(task_id: str, actual: str, requested: str) -> Refused:
    return Refused(
        "task_queue_mismatch",
        "The task waits in another queue.",
        status=409,
        task_id=task_id,
        task_queue=actual,
        requested_task_queue=requested,
    )


def explained(known: dict[str, Any], found: Sequence[Finding], ready: int) -> Reply:
    """The answer about a task that waits; the first finding is the decisive one."""
    decisive = found[0]
    return Reply(
        {
            **known,
            "state": "delayed" if decisive.obstacle is Obstacle.NOT_YET_DUE else "ready",
            "waiting": True,
            "reason": decisive.obstacle.value,
            "message": decisive.message,
            "reasons": [_show(finding) for finding in found],
            "retry_after_seconds": None if decisive.retry_after is None else ceil(decisive.retry_after),
            "ready_count": ready,
        },
        retry_after=decisive.retry_after,
    )


def _show(finding: Finding) -> dict[str, Any]:
    fields = {
        ("due_at" if name == "due_at_ms" else name): iso_ms(value) if name == "due_at_ms" else value
        for name, value in finding.fields.items()
    }
    seconds = None if finding.retry_after is None else ceil(finding.retry_after)
    return {
        "reason": finding.obstacle.value,
        "message": finding.message,
        **fields,
        "retry_after_seconds": seconds,
    }


async def why_step(call: Call, queue: str, task: TaskId) -> Reply:
    """What keeps a step execution from running; its methods share the task. Raises Refused (404, 409)."""
    task_id = str(task)
    picture = await load(call.node.store, task.run_id, Wants(steps={task.index}, tasks={task.index}))
    if picture is None or picture.run.info.namespace != call.namespace:
        raise task_not_found(task_id)
    info, state = picture.run.info, picture.run.state
    if task.index >= state.next_k:
        raise task_not_found(task_id)
    known: dict[str, Any] = {
        "namespace": call.namespace,
        "task_id": task_id,
        "task_type": "step",
        "flow_id": info.flow_id,
        "run_id": task.run_id,
        "run_status": state.status.value,
        "task_queue": info.flow_type,
    }
    record, step = picture.tasks[task.index], picture.run.steps.get(task.index)
    if step is None:
        return Reply({**known, "state": "ended", "waiting": False, "reason": None, "reasons": []})
    if record.state == "l":
        held = {"lease_owner": record.owner, "leased_at": iso_ms(record.leased_at_ms)}
        return Reply({**known, "state": "leased", "waiting": False, "reason": None, "reasons": [], **held})
    if info.flow_type != queue:
        raise other_queue(task_id, info.flow_type, queue)
    facts = await gather(call.node, call.namespace, [queue], ())
    load_now, serving = facts.load(queue, TaskKind.STEP), facts.serving.get(queue, Serving())
    limits, budget = facts.book.of(TaskKind.STEP, queue), facts.budgets[queue, TaskKind.STEP]
    able = serving.able(step.step_type)
    found = [*_not_queued(state, step)] or step_findings(
        Waiting(step.step_type, "", step.ready_at_ms if step.phase is Phase.BACKOFF else 0, picture.now_ms),
        limits,
        None if budget is None else counts(limits, budget, load_now),
        (serving.workers, serving.slots),
        (able.workers, able.slots),
        load_now.leased,
    )
    return explained(known | {"step_execution_id": step.execution_id}, found, load_now.ready)


def _not_queued(state: FlowState, step: StepState) -> list[Finding]:
    if state.stop is not None:
        return [Finding(Obstacle.FLOW_STOPPING, "The flow is being stopped; nothing is handed out any more.")]
    if step.phase in _NOT_QUEUED:
        return [Finding(*_NOT_QUEUED[step.phase])]
    return []
