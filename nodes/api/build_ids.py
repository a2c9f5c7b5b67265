"""Routes of build-id cohorts: look at them, drain them, take them back (server-behaviour 4.4)."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import MaxLen

from cluster.cohorts import Cohort, Intent, cohort_of
from cluster.fleet import WorkerStatus, WorkerView
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.fields import Fields, Trimmed
from nodes.api.routes import Reply

_RANKS = ("active", "active_with_draining", "draining", "stale_only")


class _Target(Fields):
    build_id: Annotated[Annotated[str, MaxLen(255)] | None, Trimmed]
    """Must be there: null means the workers without a build, and is never meant by accident."""


async def list_build_ids(call: Call) -> Reply:
    """``GET /api/task-queues/{task_queue}/build-ids``."""
    queue = call.parameters["task_queue"]
    intents = await call.node.cohorts.intents(call.namespace, queue)
    members: dict[str, list[WorkerView]] = {build_id: [] for build_id in intents}
    for view in await call.node.fleet.workers(call.namespace, task_queue=queue):
        cohort = cohort_of(call.namespace, queue, view.registration.build_id)
        members.setdefault(cohort.build_id, []).append(view)
    shown = [
        _show(build_id, intents.get(build_id, Intent(False)), views) for build_id, views in members.items()
    ]
    return Reply(
        {
            "namespace": call.namespace,
            "task_queue": queue,
            "stale_after_seconds": call.node.settings.worker_stale_after_seconds,
            "build_ids": sorted(shown, key=_order),
        }
    )


async def drain(call: Call) -> Reply:
    """``POST /api/task-queues/{task_queue}/build-ids/drain``: new tasks go to other builds."""
    cohort = _target(call)
    return _intent(cohort, await call.node.cohorts.drain(cohort))


async def resume(call: Call) -> Reply:
    """``POST /api/task-queues/{task_queue}/build-ids/resume``."""
    cohort = _target(call)
    views = await call.node.fleet.workers(cohort.namespace, task_queue=cohort.task_queue)
    workers = [
        view.registration.worker_id
        for view in views
        if cohort_of(cohort.namespace, cohort.task_queue, view.registration.build_id) == cohort
    ]
    return _intent(cohort, await call.node.cohorts.resume(cohort, workers))


def _target(call: Call) -> Cohort:
    return cohort_of(call.namespace, call.parameters["task_queue"], call.fields(_Target).build_id)


def _intent(cohort: Cohort, intent: Intent) -> Reply:
    return Reply(
        {
            "namespace": cohort.namespace,
            "task_queue": cohort.task_queue,
            "build_id": cohort.build_id or None,
            **_show_intent(intent),
        }
    )


def _show_intent(intent: Intent) -> dict[str, Any]:
    return {
        "drain_intent": "draining" if intent.draining else "active",
        "drained_at": iso_ms(intent.drained_at_ms) if intent.drained_at_ms else None,
    }


def _show(build_id: str, intent: Intent, views: list[WorkerView]) -> dict[str, Any]:
    counts = {status: sum(view.status is status for view in views) for status in WorkerStatus}
    beats = [view.last_heartbeat_ms for view in views if view.last_heartbeat_ms]
    seen = [view.registration.registered_at_ms for view in views]
    return {
        "build_id": build_id or None,
        "rollout_status": _rollout(counts, intent),
        **_show_intent(intent),
        "active_worker_count": counts[WorkerStatus.ACTIVE],
        "draining_worker_count": counts[WorkerStatus.DRAINING],
        "stale_worker_count": counts[WorkerStatus.STALE],
        "total_worker_count": len(views),
        "runtimes": sorted({view.registration.runtime for view in views}),
        "sdk_versions": sorted({v.registration.sdk_version for v in views if v.registration.sdk_version}),
        "last_heartbeat_at": iso_ms(max(beats)) if beats else None,
        "first_seen_at": iso_ms(min(seen)) if seen else None,
    }


def _rollout(counts: dict[WorkerStatus, int], intent: Intent) -> str:
    if counts[WorkerStatus.ACTIVE]:
        mixed = intent.draining or counts[WorkerStatus.DRAINING]
        return "active_with_draining" if mixed else "active"
    if counts[WorkerStatus.DRAINING] or intent.draining:
        return "draining"
    return "stale_only" if counts[WorkerStatus.STALE] else "no_workers"


def _order(entry: dict[str, Any]) -> tuple[int, bool, tuple[int, ...], str]:
    """Live cohorts first, named before unversioned, then the one heard of last."""
    status = entry["rollout_status"]
    rank = _RANKS.index(status) if status in _RANKS else len(_RANKS)
    heard = entry["last_heartbeat_at"] or ""
    return (
        rank,
        entry["build_id"] is None,
        tuple(-ord(character) for character in heard),
        entry["build_id"] or "",
    )
