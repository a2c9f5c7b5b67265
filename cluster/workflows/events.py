"""The events of a history: their names, ids and stored form.

An event is kept as the JSON text workers get, so a history page is sent as it was stored.
``sequence`` at the top is the *ordinal* of the event (1, 2, 3 ... without a gap). The ``sequence``
inside ``payload`` is the *step*: the number of the authored command the event belongs to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import orjson

from cluster.times import iso_us
from cluster.workflows.records import PendingEvent


class EventType(StrEnum):
    """Every kind of event this server writes."""

    START_ACCEPTED = "StartAccepted"
    WORKFLOW_STARTED = "WorkflowStarted"
    WORKFLOW_COMPLETED = "WorkflowCompleted"
    WORKFLOW_FAILED = "WorkflowFailed"
    WORKFLOW_TIMED_OUT = "WorkflowTimedOut"
    ACTIVITY_SCHEDULED = "ActivityScheduled"
    ACTIVITY_STARTED = "ActivityStarted"
    ACTIVITY_HEARTBEAT_RECORDED = "ActivityHeartbeatRecorded"
    ACTIVITY_RETRY_SCHEDULED = "ActivityRetryScheduled"
    ACTIVITY_COMPLETED = "ActivityCompleted"
    ACTIVITY_FAILED = "ActivityFailed"
    ACTIVITY_TIMED_OUT = "ActivityTimedOut"
    TIMER_SCHEDULED = "TimerScheduled"
    TIMER_FIRED = "TimerFired"
    SIDE_EFFECT_RECORDED = "SideEffectRecorded"
    VERSION_MARKER_RECORDED = "VersionMarkerRecorded"
    REPAIR_REQUESTED = "RepairRequested"


def event_id(run_id: str, ordinal: int) -> str:
    return f"{run_id}-e{ordinal}"


def encode_event(run_id: str, ordinal: int, event: PendingEvent) -> bytes:
    """The stored JSON text of ``event`` as number ``ordinal`` of its run."""
    return orjson.dumps(
        {
            "id": event_id(run_id, ordinal),
            "sequence": ordinal,
            "event_type": event.event_type,
            "payload": event.payload,
            "recorded_at": iso_us(event.recorded_at_us),
            "workflow_task_id": event.workflow_task_id,
            "workflow_command_id": event.workflow_command_id,
        }
    )


def resume_context(event: PendingEvent) -> dict[str, Any]:
    """What a workflow task that ``event`` woke says about its cause (server-behaviour 5.2)."""
    payload = event.payload
    match event.event_type:
        case EventType.ACTIVITY_COMPLETED | EventType.ACTIVITY_FAILED | EventType.ACTIVITY_TIMED_OUT:
            execution = payload["activity_execution_id"]
            context = {
                "workflow_wait_kind": "activity",
                "open_wait_id": f"activity:{execution}",
                "resume_source_kind": "activity_execution",
                "resume_source_id": execution,
                "activity_execution_id": execution,
                "activity_type": payload["activity_type"],
                "workflow_sequence": payload["sequence"],
                "workflow_event_type": event.event_type,
            }
            if "activity_attempt_id" in payload:
                context["activity_attempt_id"] = payload["activity_attempt_id"]
            return context
        case EventType.TIMER_FIRED:
            return {
                "workflow_wait_kind": "timer",
                "open_wait_id": f"timer:{payload['timer_id']}",
                "resume_source_kind": "timer",
                "resume_source_id": payload["timer_id"],
                "timer_id": payload["timer_id"],
                "workflow_sequence": payload["sequence"],
                "workflow_event_type": event.event_type,
            }
        case _:
            return {}
