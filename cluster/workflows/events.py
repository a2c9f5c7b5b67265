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
    TIMER_CANCELLED = "TimerCancelled"
    ACTIVITY_CANCELLED = "ActivityCancelled"
    WORKFLOW_CANCELLED = "WorkflowCancelled"
    WORKFLOW_TERMINATED = "WorkflowTerminated"
    WORKFLOW_CONTINUED_AS_NEW = "WorkflowContinuedAsNew"
    CANCEL_REQUESTED = "CancelRequested"
    TERMINATE_REQUESTED = "TerminateRequested"
    SIGNAL_RECEIVED = "SignalReceived"
    UPDATE_ACCEPTED = "UpdateAccepted"
    UPDATE_APPLIED = "UpdateApplied"
    UPDATE_COMPLETED = "UpdateCompleted"
    CONDITION_WAIT_OPENED = "ConditionWaitOpened"
    CONDITION_WAIT_SATISFIED = "ConditionWaitSatisfied"
    CONDITION_WAIT_TIMED_OUT = "ConditionWaitTimedOut"
    CHILD_WORKFLOW_SCHEDULED = "ChildWorkflowScheduled"
    CHILD_RUN_STARTED = "ChildRunStarted"
    CHILD_RUN_COMPLETED = "ChildRunCompleted"
    CHILD_RUN_FAILED = "ChildRunFailed"
    CHILD_RUN_CANCELLED = "ChildRunCancelled"
    CHILD_RUN_TERMINATED = "ChildRunTerminated"
    PARENT_CLOSE_POLICY_APPLIED = "ParentClosePolicyApplied"
    SELECTION_RESOLVED = "SelectionResolved"
    SELECTION_OPERATION_CANCELLED = "SelectionOperationCancelled"
    MEMO_UPSERTED = "MemoUpserted"
    SEARCH_ATTRIBUTES_UPSERTED = "SearchAttributesUpserted"
    SIDE_EFFECT_RECORDED = "SideEffectRecorded"
    VERSION_MARKER_RECORDED = "VersionMarkerRecorded"
    REPAIR_REQUESTED = "RepairRequested"
    WORKFLOW_ARCHIVED = "WorkflowArchived"


def event_id(run_id: str, ordinal: int) -> str:
    return f"{run_id}-e{ordinal}"


def pending_event_id(run_id: str, number: int) -> str:
    """The id of the ``number``-th event that ever waited for a workflow task of its run."""
    return f"{run_id}-p{number}"


def encode_event(run_id: str, ordinal: int, event: PendingEvent) -> bytes:
    """The stored JSON text of ``event`` as number ``ordinal`` of its run."""
    return orjson.dumps({"sequence": ordinal, "id": event_id(run_id, ordinal), **_body(event)})


def encode_pending(run_id: str, number: int, event: PendingEvent) -> bytes:
    """The same while it waits: the release puts the member ``sequence`` first."""
    return orjson.dumps({"id": pending_event_id(run_id, number), **_body(event)})


def _body(event: PendingEvent) -> dict[str, Any]:
    return {
        "event_type": event.event_type,
        "payload": event.payload,
        "recorded_at": iso_us(event.recorded_at_us),
        "workflow_task_id": event.workflow_task_id,
        "workflow_command_id": event.workflow_command_id,
    }


def resume_context(event: PendingEvent) -> dict[str, Any]:
    """What a workflow task that ``event`` woke says about its cause (server-behaviour 5.2)."""
    payload = event.payload
    match event.event_type:
        case (
            EventType.ACTIVITY_COMPLETED
            | EventType.ACTIVITY_FAILED
            | EventType.ACTIVITY_TIMED_OUT
            | EventType.ACTIVITY_CANCELLED
        ):
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
        case EventType.SIGNAL_RECEIVED:
            return {
                "workflow_wait_kind": "signal",
                "open_wait_id": f"signal-application:{payload['signal_id']}",
                "resume_source_kind": "workflow_signal",
                "resume_source_id": payload["signal_id"],
                "workflow_signal_id": payload["signal_id"],
                "signal_wait_id": payload["signal_id"],
                "signal_name": payload["signal_name"],
                "workflow_command_id": event.workflow_command_id,
                "workflow_event_type": event.event_type,
            }
        case EventType.UPDATE_COMPLETED:
            return update_context(payload["update_id"])
        case EventType.CONDITION_WAIT_TIMED_OUT:
            context = {
                "workflow_wait_kind": "condition",
                "open_wait_id": payload["condition_wait_id"],
                "resume_source_kind": "timer",
                "resume_source_id": payload["timer_id"],
                "timer_id": payload["timer_id"],
                "workflow_sequence": payload["sequence"],
                "workflow_event_type": event.event_type,
            }
            for name in ("condition_wait_id", "condition_key", "condition_definition_fingerprint"):
                if name in payload:
                    context[name] = payload[name]
            return context
        case (
            EventType.CHILD_RUN_COMPLETED
            | EventType.CHILD_RUN_FAILED
            | EventType.CHILD_RUN_CANCELLED
            | EventType.CHILD_RUN_TERMINATED
        ):
            return {
                "workflow_wait_kind": "child",
                "open_wait_id": f"child:{payload['child_call_id']}",
                "resume_source_kind": "child_workflow_run",
                "resume_source_id": payload["child_workflow_run_id"],
                "child_call_id": payload["child_call_id"],
                "child_workflow_run_id": payload["child_workflow_run_id"],
                "workflow_sequence": payload["sequence"],
                "workflow_event_type": event.event_type,
            }
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


def update_context(update_id: str) -> dict[str, Any]:
    """The resume context of a workflow task about an update."""
    return {
        "workflow_wait_kind": "update",
        "open_wait_id": f"update:{update_id}",
        "resume_source_kind": "workflow_update",
        "resume_source_id": update_id,
    }
