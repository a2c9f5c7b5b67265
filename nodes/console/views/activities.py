"""Standalone activities: the list, and one of them."""

from __future__ import annotations

from typing import Any, Final

from nodes.console.payload_views import show
from nodes.console.visits import PAGE_SIZE, Visit

STATUSES: Final = ("running", "completed", "failed", "cancelled", "terminated")


async def activities(visit: Visit) -> dict[str, Any]:
    """Activities, newest first."""
    found = await visit.access.get(
        "/api/activities",
        status=visit.text("status"),
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"activities": found["activities"], "next": found["next_page_token"], "statuses": STATUSES}


async def activity(visit: Visit) -> dict[str, Any]:
    """One activity."""
    found = await visit.access.get("/api/activities/{activity_id}", {"activity_id": visit.need("id")})
    shown = (show("Input", found["input_envelope"]), show("Result", found["result"]))
    return {"activity": found, "payloads": [payload for payload in shown if payload]}
