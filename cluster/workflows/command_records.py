"""What each command asks for, once its fields were read (sdk-wire 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cluster.workflows.records import Payload, RetryPolicy


class ParentClosePolicy(StrEnum):
    """What becomes of a child when its parent closes."""

    ABANDON = "abandon"
    REQUEST_CANCEL = "request_cancel"
    TERMINATE = "terminate"


class LocalOutcome(StrEnum):
    """How a local activity ended in its worker."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleActivity:
    activity_type: str
    queue: str | None = None
    arguments: Payload | None = None
    retry: RetryPolicy | None = None
    start_to_close_seconds: int | None = None
    schedule_to_start_seconds: int | None = None
    schedule_to_close_seconds: int | None = None
    heartbeat_seconds: int | None = None
    cancellation_policy: str | None = None
    worker_session: dict[str, Any] | None = None
    group: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimer:
    delay_seconds: int
    group: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConditionWait:
    """``key`` and ``fingerprint`` are echoed exactly as they came, None when they did not."""

    key: str | None
    fingerprint: str | None
    timeout_seconds: int | None = None
    group: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChildWorkflow:
    workflow_type: str
    queue: str | None = None
    arguments: Payload | None = None
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.ABANDON
    policy_given: bool = False
    cancellation_policy: str | None = None
    retry: RetryPolicy | None = None
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    group: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLocalActivity:
    """An activity that ran inside the workflow task. ``report`` holds the remaining fields as they came."""

    activity_type: str
    outcome: LocalOutcome
    arguments: Payload | None
    result: Payload | None
    report: dict[str, Any]
    group: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSideEffect:
    result: Payload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordVersionMarker:
    change_id: str
    version: int
    min_supported: int | None
    max_supported: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertMemo:
    """``entries`` is the payload as it came, ``values`` what it holds; None removes a key."""

    entries: Payload
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertSearchAttributes:
    """Plain JSON values; None removes a key."""

    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteUpdate:
    update_id: str
    result: Payload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailUpdate:
    """``failure`` holds the command's fields as they came, without its type and update id."""

    update_id: str
    failure: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSelectionOperation:
    """``fields`` are the command's, echoed in the event; ``base`` and ``size`` say which steps it covers."""

    base: int
    size: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteWorkflow:
    result: Payload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWorkflow:
    """``failure`` holds the command's fields as they came, without its type."""

    failure: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueAsNew:
    """What is None stays as it is in the run that ends."""

    workflow_type: str | None
    queue: str | None
    arguments: Payload | None


Command = (
    ScheduleActivity
    | StartTimer
    | OpenConditionWait
    | StartChildWorkflow
    | RecordLocalActivity
    | RecordSideEffect
    | RecordVersionMarker
    | UpsertMemo
    | UpsertSearchAttributes
    | CompleteUpdate
    | FailUpdate
    | CancelSelectionOperation
    | CompleteWorkflow
    | FailWorkflow
    | ContinueAsNew
)

GROUPED: Final = (
    ScheduleActivity,
    StartTimer,
    OpenConditionWait,
    StartChildWorkflow,
    RecordLocalActivity,
)
"""Commands that may be members of a group."""
STEPLESS: Final = (CompleteUpdate, FailUpdate, CancelSelectionOperation)
"""Commands that take no workflow sequence and do not move the workflow's code (sdk-wire 4.1, 4.5)."""
TERMINAL: Final = (CompleteWorkflow, FailWorkflow, ContinueAsNew)
"""Commands that end their run."""
