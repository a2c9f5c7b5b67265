"""Flows: the list, and one run with its steps."""

from __future__ import annotations

from typing import Any, Final

from cluster.flows.records import FlowStatus
from nodes.console.visits import PAGE_SIZE, Visit

STATUSES: Final = tuple(status.value for status in FlowStatus)
_FLOW: Final = "/api/flows/{flow_id}"


async def flows(visit: Visit) -> dict[str, Any]:
    """Runs of flows, newest first."""
    found = await visit.access.get(
        "/api/flows",
        status=visit.text("status"),
        flow_type=visit.text("type"),
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"flows": found["flows"], "next": found["next_page_token"], "statuses": STATUSES}


async def flow(visit: Visit) -> dict[str, Any]:
    """One run of a flow: what is open and why it waits, and what became of the attempts."""
    path, run = {"flow_id": visit.need("id")}, visit.text("run")
    found = await visit.access.get(_FLOW, path, run_id=run)
    steps = await visit.access.get(
        f"{_FLOW}/steps",
        path,
        run_id=found["run_id"],
        page_size=PAGE_SIZE,
        next_page_token=visit.text("after"),
    )
    return {"flow": found, "steps": steps["steps"], "next": steps["next_page_token"]}
