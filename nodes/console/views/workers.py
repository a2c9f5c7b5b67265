"""Workers: the list, and one of them."""

from __future__ import annotations

from typing import Any, Final

from nodes.console.visits import PAGE_SIZE, Visit

STATUSES: Final = ("active", "draining", "stale")


async def workers(visit: Visit) -> dict[str, Any]:
    """Registered workers by id."""
    found = await visit.access.get(
        "/api/workers",
        task_queue=visit.text("queue"),
        status=visit.text("status"),
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"workers": found["workers"], "next": found["next_page_token"], "statuses": STATUSES}


async def worker(visit: Visit) -> dict[str, Any]:
    """One worker."""
    return {"worker": await visit.access.get("/api/workers/{worker_id}", {"worker_id": visit.need("id")})}
