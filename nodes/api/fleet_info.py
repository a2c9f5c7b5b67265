"""What cluster info says about the request's namespace: live workers, work to repair (11.3)."""

from __future__ import annotations

from typing import Any, Final

from cluster.errors import StoreError
from cluster.fleet import WorkerStatus, WorkerView
from cluster.times import iso_ms
from cluster.upkeep.passes import POLICY
from nodes.api.call import Call
from nodes.api.system import show_candidates

SHOWN_WORKERS: Final = 100
"""Most workers named in one answer; the counts are of all."""


async def worker_fleet(call: Call) -> dict[str, Any] | None:
    """The live workers of the namespace; None while the store is away, so that the rest is shown."""
    try:
        views = await call.node.fleet.workers(call.namespace)
    except StoreError:
        return None
    live = [view for view in views if view.status is not WorkerStatus.STALE]
    scopes = {(view.registration.task_queue, view.registration.build_id) for view in live}
    stale_after_ms = call.node.settings.worker_stale_after_seconds * 1000
    return {
        "namespace": call.namespace,
        "active_workers": len(live),
        "active_worker_scopes": len(scopes),
        "queues": sorted({queue for queue, _ in scopes}),
        "build_ids": sorted({build_id for _, build_id in scopes if build_id}),
        "workers": [_entry(view, stale_after_ms) for view in live[:SHOWN_WORKERS]],
    }


def _entry(view: WorkerView, stale_after_ms: int) -> dict[str, Any]:
    worker, last = view.registration, view.last_heartbeat_ms or 0
    process = view.vitals.get("process_metrics", {})
    return {
        "worker_id": worker.worker_id,
        "namespace": worker.namespace,
        "connection": None,
        "queue": worker.task_queue,
        "build_id": worker.build_id,
        "supported": [worker.build_id] if worker.build_id else [],
        "supports_required": True,
        "recorded_at": iso_ms(last),
        "expires_at": iso_ms(last + stale_after_ms),
        "source": "worker_registration",
        "host": process.get("host"),
        "process_id": process.get("process_id"),
    }


async def task_repair(call: Call) -> dict[str, Any]:
    """The repair policy, and how much there was to repair a few seconds ago at most."""
    try:
        candidates = show_candidates(await call.node.passes.recent_candidates(call.namespace))
    except StoreError:
        return {"policy": POLICY, "candidates": None}
    return {"policy": POLICY, "candidates": candidates}
