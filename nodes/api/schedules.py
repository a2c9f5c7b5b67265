"""Routes of schedules (server-behaviour 8.3; sdk-wire 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from ulid import ULID

from cluster.errors import Refused
from cluster.schedules.records import Definition, Overlap
from nodes.api.attributes import attribute_faults, memo_too_large
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.routes import Reply
from nodes.api.schedule_fields import (
    Backfill,
    Create,
    HistoryPage,
    Listed,
    Noted,
    Options,
    Trigger,
    Update,
    action_of,
    changes_of_action,
    milliseconds,
    most_events,
    sequence_after,
    spec_of,
)
from nodes.api.schedule_views import backfilled, description, shown_event, summary


async def list_schedules(call: Call) -> Reply:
    """``GET /api/schedules``."""
    wanted = call.query_fields(Listed)
    found, token = await call.node.schedules.list_schedules(
        call.namespace,
        status=wanted.status,
        workflow_type=wanted.workflow_type,
        query=wanted.query,
        page_size=wanted.page_size or 50,
        token=wanted.next_page_token,
    )
    return Reply({"schedules": [summary(schedule) for schedule in found], "next_page_token": token})


async def create(call: Call) -> Reply:
    """``POST /api/schedules``."""
    body = call.fields(Create, also=_attribute_errors(call))
    _check_memo(call)
    now_ms = call.node.clock.now_ms()
    definition = Definition(
        namespace=call.namespace,
        schedule_id=body.schedule_id or str(ULID()),
        spec=spec_of(body.spec),
        action=action_of(body.action),
        overlap_policy=body.overlap_policy or Overlap.SKIP,
        jitter_seconds=body.jitter_seconds or 0,
        max_runs=body.max_runs,
        memo=body.memo or {},
        search_attributes=body.search_attributes or {},
        note=body.note,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
    )
    done = await call.node.schedules.create(
        definition, paused=bool(body.paused), context=_context(call, "create")
    )
    return Reply(done, 201)


async def describe(call: Call) -> Reply:
    """``GET /api/schedules/{schedule_id}``."""
    found = await call.node.schedules.describe(call.namespace, call.parameters["schedule_id"])
    return Reply(description(found))


async def update(call: Call) -> Reply:
    """``PUT /api/schedules/{schedule_id}``: what is given replaces, the rest stays."""
    body = call.fields(Update, also=_attribute_errors(call))
    _check_memo(call)
    given = {name: getattr(body, name) for name in Options.model_fields if getattr(body, name) is not None}
    if body.spec is not None:
        given["spec"] = spec_of(body.spec)
    changed = changes_of_action(body.action) if body.action is not None else {}

    def change(old: Definition) -> Mapping[str, Any]:
        return {**given, "action": replace(old.action, **changed)} if changed else given

    return Reply(
        await call.node.schedules.update(
            call.namespace, call.parameters["schedule_id"], change, _context(call, "update")
        )
    )


async def delete(call: Call) -> Reply:
    """``DELETE /api/schedules/{schedule_id}``."""
    return Reply(
        await call.node.schedules.delete(
            call.namespace, call.parameters["schedule_id"], _context(call, "delete")
        )
    )


async def pause(call: Call) -> Reply:
    """``POST /api/schedules/{schedule_id}/pause``."""
    note = call.fields(Noted).note
    return Reply(
        await call.node.schedules.pause(
            call.namespace, call.parameters["schedule_id"], note, _context(call, "pause")
        )
    )


async def resume(call: Call) -> Reply:
    """``POST /api/schedules/{schedule_id}/resume``."""
    note = call.fields(Noted).note
    return Reply(
        await call.node.schedules.resume(
            call.namespace, call.parameters["schedule_id"], note, _context(call, "resume")
        )
    )


async def trigger(call: Call) -> Reply:
    """``POST /api/schedules/{schedule_id}/trigger``."""
    overlap = call.fields(Trigger).overlap_policy
    done = await call.node.schedules.trigger(
        call.namespace, call.parameters["schedule_id"], overlap, _context(call, "trigger")
    )
    return Reply(done, 500 if done["outcome"] == "trigger_failed" else 200)


async def backfill(call: Call) -> Reply:
    """``POST /api/schedules/{schedule_id}/backfill``."""
    body = call.fields(Backfill)
    start_ms, end_ms = milliseconds(body.start_time), milliseconds(body.end_time)
    if end_ms <= start_ms:
        raise Refused("invalid_time_range", "end_time must be later than start_time.", status=422)
    schedule_id = call.parameters["schedule_id"]
    results = await call.node.schedules.backfill(
        call.namespace, schedule_id, start_ms, end_ms, body.overlap_policy, _context(call, "backfill")
    )
    return Reply(
        {
            "schedule_id": schedule_id,
            "outcome": "backfill_started",
            "fires_attempted": len(results),
            "results": [backfilled(fire_ms, outcome) for fire_ms, outcome in results],
        }
    )


async def history(call: Call) -> Reply:
    """``GET /api/schedules/{schedule_id}/history``."""
    wanted = call.query_fields(HistoryPage)
    schedule_id = call.parameters["schedule_id"]
    events, more = await call.node.schedules.history(
        call.namespace,
        schedule_id,
        after=sequence_after(wanted.after_sequence),
        limit=most_events(wanted.limit),
    )
    return Reply(
        {
            "schedule_id": schedule_id,
            "namespace": call.namespace,
            "events": [shown_event(schedule_id, event) for event in events],
            "next_cursor": events[-1].sequence if more and events else None,
            "has_more": more,
        }
    )


def _attribute_errors(call: Call) -> dict[str, list[str]]:
    faults = attribute_faults(call.body.get("search_attributes"), call.node.settings)
    return {"search_attributes": faults} if faults else {}


def _check_memo(call: Call) -> None:
    settings = call.node.settings
    if memo_too_large(call.body.get("memo"), settings):
        raise Refused("memo_too_large", "The memo is too large.", status=422, limit=settings.max_memo_bytes)


def _context(call: Call, command: str) -> dict[str, Any]:
    """Who asked, for the schedule's history."""
    return command_context(call, command, schedule_id=call.parameters.get("schedule_id"))
