"""How schedules, what they did and what they are about to do are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.schedules.decisions import LONGEST_BUFFER
from cluster.schedules.records import RecentAction, Schedule, ScheduleEvent, Status
from cluster.times import iso_ms, iso_seconds
from nodes.api.payloads import show_envelope, show_value


def summary(schedule: Schedule) -> dict[str, Any]:
    """A schedule as a row of the list."""
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


def description(schedule: Schedule) -> dict[str, Any]:
    """A schedule with everything that is known of it."""
    definition, state, action = schedule.definition, schedule.state, schedule.definition.action
    return {
        **summary(schedule),
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


def backfilled(fire_ms: int, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What became of one time of a backfill."""
    outcomes = {"backfilled": "started", "trigger_failed": "failed"}
    return {
        "fire_time": iso_seconds(fire_ms),
        "workflow_id": outcome.get("workflow_id"),
        "run_id": outcome.get("run_id"),
        "outcome": outcomes.get(outcome["outcome"], outcome["outcome"]),
        "reason": outcome.get("reason"),
    }


def shown_event(schedule_id: str, event: ScheduleEvent) -> dict[str, Any]:
    """An event of a schedule's history."""
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
