"""Task queues: the list, one of them, and why one of its tasks waits."""

from __future__ import annotations

from typing import Any, Final

from nodes.console.access import ApiRefusal
from nodes.console.visits import PAGE_SIZE, Visit

_QUEUE: Final = "/api/task-queues/{task_queue}"
SECTIONS: Final = (("workflow_tasks", "Workflow tasks"), ("activity_tasks", "Activity tasks"))
_LIMITS: Final = (
    ("leases of the queue", "server_max_active_leases_per_queue", "server_active_lease_count"),
    (
        "leases of the namespace",
        "server_max_active_leases_per_namespace",
        "server_namespace_active_lease_count",
    ),
    ("hand-outs a minute", "server_max_dispatches_per_minute", "server_dispatch_count_this_minute"),
    (
        "hand-outs a minute of the namespace",
        "server_max_dispatches_per_minute_per_namespace",
        "server_namespace_dispatch_count_this_minute",
    ),
    (
        "hand-outs a minute of the budget group",
        "server_max_dispatches_per_minute_per_budget_group",
        "server_budget_group_dispatch_count_this_minute",
    ),
)
_STATES: Final = {
    "accepting": "Tasks are handed out as workers ask for them.",
    "throttled": "A limit is used up; tasks wait until there is room.",
    "no_active_workers": "No worker of this queue has been heard of lately.",
    "no_slots": "The workers of this queue take no tasks of this kind.",
    "saturated": "Every registered slot is busy.",
    "full": "The line of queries is full; more are refused.",
    "unavailable": "The counters cannot be read at the moment.",
}


async def task_queues(visit: Visit) -> dict[str, Any]:
    """Queues by name."""
    found = await visit.access.get(
        "/api/task-queues",
        query=visit.text("query"),
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"queues": found["task_queues"], "next": found["next_page_token"]}


async def task_queue(visit: Visit) -> dict[str, Any]:
    """One queue: admission and what decides it, leases, workers, builds, and why its oldest task waits."""
    path = {"task_queue": visit.need("name")}
    found = await visit.access.get(_QUEUE, path)
    builds = await visit.access.get(f"{_QUEUE}/build-ids", path)
    limits = await visit.access.get("/api/admission/limits/{task_queue}", path)
    oldest = found["stats"]["oldest_ready_task"]
    return {
        "queue": found,
        "builds": builds["build_ids"][:PAGE_SIZE],
        "pollers": found["pollers"][:PAGE_SIZE],
        "hidden_pollers": max(0, len(found["pollers"]) - PAGE_SIZE),
        "limits": limits,
        "states": _STATES,
        "used": {name: _used(found["admission"].get(name, {})) for name, _ in SECTIONS},
        "kinds": SECTIONS,
        "reason": await _reason(visit, path, oldest["task_id"]) if oldest else None,
    }


async def why(visit: Visit) -> dict[str, Any]:
    """Everything that keeps one task from running."""
    path = {"task_queue": visit.need("name")}
    found = await visit.access.get(f"{_QUEUE}/why", path, task=visit.need("task"))
    return {"why": found, "queue": path["task_queue"]}


async def _reason(visit: Visit, path: dict[str, str], task: str) -> Any:
    """Why the oldest task waits; None when it was handed out since."""
    try:
        return await visit.access.get(f"{_QUEUE}/why", path, task=task)
    except ApiRefusal as refusal:
        if refusal.status in (404, 409):
            return None
        raise


def _used(section: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The limits that are set: name, how much is used, how much there is."""
    return [
        (name, section.get(used) or 0, section[limit]) for name, limit, used in _LIMITS if section.get(limit)
    ]
