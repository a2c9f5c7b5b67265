"""Workflows: the list, a run, one of its events, the runs of a workflow."""

from __future__ import annotations

from typing import Any, Final

from nodes.console.visits import PAGE_SIZE, Visit

STATUSES: Final = ("running", "completed", "failed")


async def workflows(visit: Visit) -> dict[str, Any]:
    """Runs, newest first, filtered by what the list's route filters by."""
    found = await visit.access.get(
        "/api/workflows",
        workflow_type=visit.text("type"),
        status=visit.text("status"),
        query=visit.text("query"),
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"runs": found["workflows"], "next": found["next_page_token"], "statuses": STATUSES}
