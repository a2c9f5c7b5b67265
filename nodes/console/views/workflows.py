"""Workflows: the list, a run, one of its events, the runs of a workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cluster.paging import page_token
from cluster.times import iso_us
from cluster.workflows.outlines import Outline
from nodes.console.access import ApiRefusal
from nodes.console.payload_views import payloads_of, show
from nodes.console.rendering import moment
from nodes.console.timeline import name_of, timeline
from nodes.console.visits import PAGE_SIZE, Visit

STATUSES: Final = ("running", "completed", "failed")
DRAWN_EVENTS: Final = 400
"""Events the timeline is drawn from: the newest ones."""

_RUN: Final = "/api/workflows/{workflow_id}/runs/{run_id}"
_TEXTS: Final = ("message", "reason", "lease_owner", "outcome")


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of the list of events."""

    outline: Outline
    name: str
    text: str


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


async def workflow(visit: Visit) -> dict[str, Any]:
    """One run (the current one unless the address names another): state, waits, timeline, events."""
    path = {"workflow_id": visit.need("id")}
    if visit.text("run"):
        path["run_id"] = visit.text("run")
    template = f"{_RUN if 'run_id' in path else '/api/workflows/{workflow_id}'}/debug"
    found = await visit.access.get(template, path)
    run = found["execution"]
    visit.access.demand("GET", f"{_RUN}/history")
    engine, key = visit.node.engine, (visit.namespace, run["workflow_id"], run["run_id"])
    before = visit.number("before")
    newest = await engine.outline(*key, -DRAWN_EVENTS, DRAWN_EVENTS)
    last = min(before - 1, newest.total) if before > 0 else newest.total
    first = max(1, last - PAGE_SIZE + 1)
    shown = (await engine.outline(*key, first, last - first + 1)).events if last >= first else []
    until = run["closed_at"] or iso_us(visit.node.clock.now_us())
    return {
        "run": run,
        "debug": found,
        "payloads": [
            p for p in (show("Input", run["input_envelope"]), show("Output", run["output_envelope"])) if p
        ],
        "picture": timeline(newest.events, run["started_at"], until),
        "drawn": len(newest.events),
        "total": newest.total,
        "events": [_row(event) for event in reversed(shown)],
        "older": first if first > 1 else None,
        "newer": min(last + PAGE_SIZE + 1, newest.total + 1) if last < newest.total else None,
    }


async def event(visit: Visit) -> dict[str, Any]:
    """One event with its payloads."""
    path = {"workflow_id": visit.need("id"), "run_id": visit.need("run")}
    number = visit.number("number", 1)
    token = page_token(number - 1, number) if number > 1 else None
    page = await visit.access.get(f"{_RUN}/history", path, page_size=1, next_page_token=token)
    if not page["events"]:
        message = f"The run has no event {number}."
        raise ApiRefusal(404, {"reason": "event_not_found", "message": message})
    (found,) = page["events"]
    return {
        "event": found,
        "path": path,
        "payloads": payloads_of(found["payload"]),
        "is_last": page["next_page_token"] is None,
    }


async def runs(visit: Visit) -> dict[str, Any]:
    """The runs of a workflow, newest first."""
    path = {"workflow_id": visit.need("id")}
    current = await visit.access.get("/api/workflows/{workflow_id}", path)
    count = current["run_count"]
    last = min(visit.number("before", count + 1) - 1, count)
    first = max(1, last - PAGE_SIZE + 1)
    page = await visit.access.get(
        "/api/workflows/{workflow_id}/runs",
        path,
        page_size=max(1, last - first + 1),
        next_page_token=page_token(first - 1, first) if first > 1 else None,
    )
    return {
        "workflow_id": path["workflow_id"],
        "runs": list(reversed(page["runs"])),
        "count": count,
        "older": first if first > 1 else None,
    }


def _row(outline: Outline) -> EventRow:
    text = next((str(outline.payload[name]) for name in _TEXTS if outline.payload.get(name)), "")
    due = outline.payload.get("fire_at") or outline.payload.get("retry_at")
    if not text and due:
        text = f"due {moment(str(due))}"
    return EventRow(outline, name_of(outline), text[:200])
