"""Schedules: the list, and one of them with its history."""

from __future__ import annotations

from typing import Any, Final

from nodes.console.payload_views import show
from nodes.console.visits import PAGE_SIZE, Visit

STATUSES: Final = ("active", "paused")
_SCHEDULE: Final = "/api/schedules/{schedule_id}"


async def schedules(visit: Visit) -> dict[str, Any]:
    """Schedules, newest first."""
    found = await visit.access.get(
        "/api/schedules",
        status=visit.text("status"),
        workflow_type=visit.text("type"),
        query=visit.text("query"),
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"schedules": found["schedules"], "next": found["next_page_token"], "statuses": STATUSES}


async def schedule(visit: Visit) -> dict[str, Any]:
    """One schedule: when, what, what it did."""
    path = {"schedule_id": visit.need("id")}
    found = await visit.access.get(_SCHEDULE, path)
    history = await visit.access.get(
        f"{_SCHEDULE}/history", path, limit=PAGE_SIZE, after_sequence=visit.number("after")
    )
    shown = show("Input", found["action"]["input_envelope"])
    return {
        "schedule": found,
        "payloads": [shown] if shown else [],
        "events": history["events"],
        "next": history["next_cursor"],
    }
