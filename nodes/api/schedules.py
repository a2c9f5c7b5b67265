"""Routes of schedules (server-behaviour 8.3; sdk-wire 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, MaxLen
from msgspec.structs import replace
from pydantic import AwareDatetime, BeforeValidator, Field
from pydantic_core import PydanticCustomError
from ulid import ULID

from cluster.errors import Refused, ValidationFailed
from cluster.schedules.decisions import LONGEST_BUFFER
from cluster.schedules.records import (
    Action,
    Definition,
    Interval,
    Overlap,
    RecentAction,
    Schedule,
    ScheduleEvent,
    Spec,
    Status,
)
from cluster.times import iso_ms, iso_seconds
from nodes.api.attributes import attribute_faults, memo_too_large
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, Seconds, ShortText, Trimmed
from nodes.api.payloads import read_payload, show_envelope, show_value
from nodes.api.routes import Reply

_DEFAULT_EVENTS: Final = 100
_MOST_EVENTS: Final = 500
_MOST_TIMES: Final = 100
"""Most cron expressions, and most intervals, of one schedule."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(value: Any) -> Any:
    """A date or a date-time; without an offset it is UTC."""
    if not isinstance(value, str):
        raise PydanticCustomError("datetime_type", "The value must be a date.")
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise PydanticCustomError("datetime_parsing", "The value is not a valid date.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_Note = Annotated[Annotated[str, MaxLen(1000)] | None, Trimmed]
_Short = Annotated[Annotated[str, MaxLen(64)] | None, Trimmed]
_ScheduleId = Annotated[Annotated[str, MaxLen(128)] | None, Trimmed]
_Jitter = Annotated[Annotated[int, Ge(0), Le(3600)] | None, Integer]
_Runs = Annotated[Annotated[int, Ge(1), Le((1 << 53) - 1)] | None, Integer]
_Overlap = Annotated[Overlap | None, Trimmed]
_Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]


class _Interval(Fields):
    every: Annotated[str, MaxLen(64), Trimmed]
    offset: _Short = None


class _Spec(Fields):
    cron_expressions: Annotated[list[Annotated[str, MaxLen(255), Trimmed]], MaxLen(_MOST_TIMES)] | None = None
    intervals: Annotated[list[_Interval], MaxLen(_MOST_TIMES)] | None = None
    timezone: _Short = None


class _Timeouts(Fields):
    """Time-outs of the workflow; the legacy names are read as the present ones."""

    execution_timeout_seconds: Seconds = None
    run_timeout_seconds: Seconds = None
    workflow_execution_timeout: Seconds = None
    workflow_run_timeout: Seconds = None


class _Action(_Timeouts):
    workflow_type: ShortText
    task_queue: OptionalText = None
    input: Any = None


class _ChangedAction(_Timeouts):
    workflow_type: OptionalText = None
    task_queue: OptionalText = None
    input: Any = None


class _Options(Fields):
    overlap_policy: _Overlap = None
    jitter_seconds: _Jitter = None
    max_runs: _Runs = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    note: _Note = None


class Create(_Options):
    schedule_id: _ScheduleId = None
    spec: _Spec
    action: _Action
    paused: bool | None = None


class Update(_Options):
    spec: _Spec | None = None
    action: _ChangedAction | None = None


class Noted(Fields):
    note: _Note = None


class Trigger(Fields):
    overlap_policy: _Overlap = None


class Backfill(Fields):
    start_time: _Moment
    end_time: _Moment
    overlap_policy: _Overlap = None


class Listed(Fields):
    status: Annotated[Status | None, Trimmed] = None
    workflow_type: OptionalText = None
    query: OptionalText = None
    page_size: Annotated[Annotated[int, Ge(1), Le(200)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


class HistoryPage(Fields):
    limit: str | None = Field(default=None, description="1 to 500; anything else means 100")
    after_sequence: str | None = Field(default=None, description="a whole number, 0 or more")


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
    return Reply({"schedules": [_item(schedule) for schedule in found], "next_page_token": token})


async def create(call: Call) -> Reply:
    """``POST /api/schedules``."""
    body = call.fields(Create, also=_attribute_errors(call))
    _check_memo(call)
    now_ms = call.node.clock.now_ms()
    definition = Definition(
        namespace=call.namespace,
        schedule_id=body.schedule_id or str(ULID()),
        spec=_spec(body.spec),
        action=_action(body.action),
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
    return Reply(_description(found))


async def update(call: Call) -> Reply:
    """``PUT /api/schedules/{schedule_id}``: what is given replaces, the rest stays."""
    body = call.fields(Update, also=_attribute_errors(call))
    _check_memo(call)
    given = {name: getattr(body, name) for name in _Options.model_fields if getattr(body, name) is not None}
    if body.spec is not None:
        given["spec"] = _spec(body.spec)
    changed = _changed_action(body.action) if body.action is not None else {}

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
    start_ms, end_ms = _milliseconds(body.start_time), _milliseconds(body.end_time)
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
            "results": [_backfilled(fire_ms, outcome) for fire_ms, outcome in results],
        }
    )


async def history(call: Call) -> Reply:
    """``GET /api/schedules/{schedule_id}/history``."""
    wanted = call.query_fields(HistoryPage)
    schedule_id = call.parameters["schedule_id"]
    events, more = await call.node.schedules.history(
        call.namespace, schedule_id, after=_after(wanted.after_sequence), limit=_limit(wanted.limit)
    )
    return Reply(
        {
            "schedule_id": schedule_id,
            "namespace": call.namespace,
            "events": [_event(schedule_id, event) for event in events],
            "next_cursor": events[-1].sequence if more and events else None,
            "has_more": more,
        }
    )


# -- reading ------------------------------------------------------------------------------------


def _attribute_errors(call: Call) -> dict[str, list[str]]:
    faults = attribute_faults(call.body.get("search_attributes"), call.node.settings)
    return {"search_attributes": faults} if faults else {}


def _check_memo(call: Call) -> None:
    settings = call.node.settings
    if memo_too_large(call.body.get("memo"), settings):
        raise Refused("memo_too_large", "The memo is too large.", status=422, limit=settings.max_memo_bytes)


def _spec(spec: _Spec) -> Spec:
    return Spec(
        cron_expressions=tuple(spec.cron_expressions or ()),
        intervals=tuple(Interval(every=i.every, offset=i.offset) for i in spec.intervals or ()),
        timezone=spec.timezone,
    )


def _action(action: _Action) -> Action:
    return Action(**{"input": _input([]), **_changed_action(action)})


def _changed_action(action: _Action | _ChangedAction) -> dict[str, Any]:
    given: dict[str, Any] = {
        "workflow_type": action.workflow_type,
        "task_queue": action.task_queue,
        "input": None if action.input is None else _input(action.input),
        "execution_timeout_seconds": action.execution_timeout_seconds or action.workflow_execution_timeout,
        "run_timeout_seconds": action.run_timeout_seconds or action.workflow_run_timeout,
    }
    return {name: value for name, value in given.items() if value is not None}


def _input(value: Any) -> Any:
    if not isinstance(value, list | dict):
        raise ValidationFailed({"action.input": ["The action.input field must be a list or an envelope."]})
    return read_payload(value, "action.input")


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _after(text: str | None) -> int:
    if text is None or not text.strip():
        return 0
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise Refused(
            "invalid_after_sequence", "after_sequence must be a whole number, 0 or more.", status=422
        )
    return int(digits)


def _limit(text: str | None) -> int:
    digits = (text or "").strip()
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else 0
    return min(number, _MOST_EVENTS) or _DEFAULT_EVENTS


def _context(call: Call, command: str) -> dict[str, Any]:
    """Who asked, for the schedule's history."""
    return command_context(call, command, schedule_id=call.parameters.get("schedule_id"))


# -- showing ------------------------------------------------------------------------------------


def _item(schedule: Schedule) -> dict[str, Any]:
    definition, state = schedule.definition, schedule.state
    item: dict[str, Any] = {
        "schedule_id": definition.schedule_id,
        "workflow_type": definition.action.workflow_type,
        "status": state.status.value,
        "paused": state.status is Status.PAUSED,
        "next_fire": _time(state.next_due_ms),
        "last_fire": _time(state.last_fired_ms),
        "next_fire_at": _time(state.next_due_ms),
        "last_fired_at": _time(state.last_fired_ms),
        "overlap_policy": definition.overlap_policy.value,
        "note": definition.note,
        "fires_count": state.fires_count,
        "failures_count": state.failures_count,
        "created_at": iso_seconds(definition.created_at_ms),
        "updated_at": iso_seconds(definition.updated_at_ms),
    }
    optional = {
        "jitter_seconds": definition.jitter_seconds or None,
        "max_runs": definition.max_runs,
        "remaining_actions": state.remaining_actions,
    }
    return item | {name: value for name, value in optional.items() if value is not None}


def _description(schedule: Schedule) -> dict[str, Any]:
    definition, state, action = schedule.definition, schedule.state, schedule.definition.action
    return {
        **_item(schedule),
        "spec": {
            "cron_expressions": list(definition.spec.cron_expressions),
            "intervals": [
                {"every": i.every, **({"offset": i.offset} if i.offset else {})}
                for i in definition.spec.intervals
            ],
            "timezone": definition.spec.timezone,
        },
        "action": {
            "workflow_type": action.workflow_type,
            "task_queue": action.task_queue,
            "input": show_value(action.input),
            "input_envelope": show_envelope(action.input),
            "execution_timeout_seconds": action.execution_timeout_seconds,
            "run_timeout_seconds": action.run_timeout_seconds,
        },
        "state": {
            "status": state.status.value,
            "paused": state.status is Status.PAUSED,
            "note": definition.note,
        },
        "info": {
            "next_fire": _time(state.next_due_ms),
            "last_fire": _time(state.last_fired_ms),
            "fires_count": state.fires_count,
            "failures_count": state.failures_count,
            "recent_actions": [_recent(action) for action in state.recent_actions],
            "buffered_actions": [{"fire_time": iso_seconds(ms)} for ms in state.buffered[:LONGEST_BUFFER]],
            "skipped_trigger_count": state.skipped_trigger_count,
            "last_skip_reason": state.last_skip_reason,
            "last_skipped_at": _time(state.last_skipped_at_ms),
        },
        "memo": definition.memo,
        "search_attributes": definition.search_attributes,
        "jitter_seconds": definition.jitter_seconds,
        "max_runs": definition.max_runs,
        "remaining_actions": state.remaining_actions,
        "latest_workflow_instance_id": state.latest_workflow_id,
        "latest_run_id": state.latest_run_id,
        "paused_at": _time(state.paused_at_ms),
    }


def _recent(action: RecentAction) -> dict[str, Any]:
    return {
        "workflow_id": action.workflow_id,
        "run_id": action.run_id,
        "outcome": action.outcome,
        "reason": action.reason,
        "fire_time": iso_seconds(action.fire_ms),
        "acted_at": iso_seconds(action.acted_at_ms),
    }


def _backfilled(fire_ms: int, outcome: Mapping[str, Any]) -> dict[str, Any]:
    outcomes = {"backfilled": "started", "trigger_failed": "failed"}
    return {
        "fire_time": iso_seconds(fire_ms),
        "workflow_id": outcome.get("workflow_id"),
        "run_id": outcome.get("run_id"),
        "outcome": outcomes.get(outcome["outcome"], outcome["outcome"]),
        "reason": outcome.get("reason"),
    }


def _event(schedule_id: str, event: ScheduleEvent) -> dict[str, Any]:
    return {
        "id": f"{schedule_id}-e{event.sequence}",
        "sequence": event.sequence,
        "event_type": event.event_type,
        "payload": event.payload,
        "workflow_instance_id": event.workflow_id,
        "workflow_run_id": event.run_id,
        "recorded_at": iso_ms(event.recorded_at_ms),
    }


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso_seconds(milliseconds)
