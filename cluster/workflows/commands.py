"""The commands a worker answers a workflow task with (server-behaviour 5.5, sdk-wire 4.3).

They are read in two steps, because the check of the sender comes between: ``check_fields`` looks
at types, ranges and combinations of fields of every known command type, ``normalise`` turns what
passed into records and refuses types this server does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from cluster import payloads
from cluster.errors import ValidationFailed
from cluster.workflows import groups
from cluster.workflows.command_fields import check_fields, integer
from cluster.workflows.command_records import (
    TERMINAL,
    CancelSelectionOperation,
    Command,
    CompleteUpdate,
    CompleteWorkflow,
    ContinueAsNew,
    FailUpdate,
    FailWorkflow,
    LocalOutcome,
    OpenConditionWait,
    ParentClosePolicy,
    RecordLocalActivity,
    RecordSideEffect,
    RecordVersionMarker,
    ScheduleActivity,
    StartChildWorkflow,
    StartTimer,
    UpsertMemo,
    UpsertSearchAttributes,
)
from cluster.workflows.records import Payload, RetryPolicy

__all__ = [
    "COMMAND_TYPES",
    "Command",
    "CompleteWorkflow",
    "FailWorkflow",
    "RecordSideEffect",
    "RecordVersionMarker",
    "ScheduleActivity",
    "StartTimer",
    "check_fields",
    "ends_run",
    "is_terminal",
    "normalise",
    "payloads_of",
]

COMMAND_TYPES: Final = (
    "complete_workflow",
    "fail_workflow",
    "continue_as_new",
    "schedule_activity",
    "start_timer",
    "start_child_workflow",
    "record_side_effect",
    "record_version_marker",
    "upsert_search_attributes",
    "upsert_memo",
    "open_condition_wait",
    "complete_update",
    "fail_update",
    "record_local_activity",
    "cancel_selection_operation",
)
"""What ``normalise`` accepts, in the order in which it is advertised (F16)."""

MAX_MEMO_ENTRIES: Final = 100
_UPDATE_ID = re.compile(r".+-u([1-9][0-9]{0,15})")
_MEMO_KEY = re.compile(r"(?![0-9]+$)[A-Za-z0-9_.:-]{1,64}")
_ATTRIBUTE_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,127}")
_LOCAL_REPORT: Final = (
    "attempts",
    "message",
    "exception_type",
    "exception_class",
    "exception",
    "non_retryable",
    "timeout_kind",
    "retry_policy",
    "start_to_close_timeout",
    "schedule_to_start_timeout",
    "schedule_to_close_timeout",
    "heartbeat_timeout",
    "cancellation_policy",
)
_SELECTION_FIELDS: Final = (
    "selection_group_id",
    "member_key",
    "member_index",
    "member_base_sequence",
    "member_size",
    "operation_kind",
    "operation_identity",
)
MAX_NAME: Final = 255
E = TypeVar("E", bound=StrEnum)

_FAILURE_FIELDS: Final = (
    "message",
    "exception_type",
    "exception_class",
    "exception",
    "non_retryable",
    "failed_step_sequence",
    "failed_activity_execution_id",
)


_TERMINAL_TYPES: Final = ("complete_workflow", "fail_workflow", "continue_as_new")


def is_terminal(command: Command) -> bool:
    """Whether the command ends its run."""
    return isinstance(command, TERMINAL)


def ends_run(raw_commands: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a batch of raw commands holds one that ends the run."""
    return any(raw.get("type") in _TERMINAL_TYPES for raw in raw_commands)


def cancels_operations(raw_commands: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a batch of raw commands holds one that ends operations opened earlier."""
    return any(raw.get("type") == "cancel_selection_operation" for raw in raw_commands)


def answered_updates(raw_commands: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Fields of the updates that a batch of raw commands answers (see ``storage.item_field``)."""
    ids = (raw.get("update_id") for raw in raw_commands if raw.get("type") == "complete_update")
    numbers = (_UPDATE_ID.fullmatch(update_id) for update_id in ids if isinstance(update_id, str))
    return tuple(f"u:{match[1]}" for match in numbers if match is not None)


def payloads_of(command: Command) -> tuple[Payload, ...]:
    """The payloads a command carries."""
    match command:
        case RecordLocalActivity(arguments=arguments, result=result):
            found: tuple[Payload | None, ...] = (arguments, result)
        case (
            ScheduleActivity(arguments=payload)
            | StartChildWorkflow(arguments=payload)
            | ContinueAsNew(arguments=payload)
            | RecordSideEffect(result=payload)
            | CompleteWorkflow(result=payload)
            | CompleteUpdate(result=payload)
        ):
            found = (payload,)
        case UpsertMemo(entries=entries):
            found = (entries,)
        case _:
            found = ()
    return tuple(payload for payload in found if payload is not None)


def normalise(raw_commands: Sequence[Mapping[str, Any]], codec: str = payloads.CODEC) -> tuple[Command, ...]:
    """The records of commands that passed ``check_fields``; ``codec`` is the run's.

    Raises ValidationFailed with all faults: unknown types, missing fields, values that are no payload.
    """
    reader = _Reader(codec)
    commands = [reader.command(number, raw) for number, raw in enumerate(raw_commands)]
    if reader.errors:
        raise ValidationFailed(reader.errors)
    return tuple(command for command in commands if command is not None)


class _Reader:
    """Reads commands and collects their faults."""

    def __init__(self, codec: str) -> None:
        self.codec = codec
        self.errors: dict[str, list[str]] = {}

    def command(self, number: int, raw: Mapping[str, Any]) -> Command | None:
        group = groups.fields(raw)
        match raw["type"]:
            case "schedule_activity":
                return self._schedule_activity(number, raw, group)
            case "start_timer":
                return self._start_timer(number, raw, group)
            case "open_condition_wait":
                return OpenConditionWait(
                    key=raw.get("condition_key"),
                    fingerprint=raw.get("condition_definition_fingerprint"),
                    timeout_seconds=_optional_integer(raw, "timeout_seconds"),
                    group=group,
                )
            case "start_child_workflow":
                return self._start_child(number, raw, group)
            case "record_local_activity":
                return self._record_local_activity(number, raw, group)
            case "upsert_memo":
                return self._upsert_memo(number, raw)
            case "upsert_search_attributes":
                return self._upsert_search_attributes(number, raw)
            case "complete_update":
                result = self._payload(number, raw, "result")
                if not self._require(number, raw, "update_id"):
                    return None
                return CompleteUpdate(update_id=raw["update_id"], result=result)
            case "fail_update":
                return self._fail_update(number, raw)
            case "cancel_selection_operation":
                return self._cancel_selection_operation(number, raw)
            case "continue_as_new":
                return ContinueAsNew(
                    workflow_type=raw.get("workflow_type") or None,
                    queue=raw.get("queue") or None,
                    arguments=self._payload(number, raw, "arguments"),
                )
            case "record_side_effect":
                return RecordSideEffect(result=self._payload(number, raw, "result"))
            case "record_version_marker":
                return self._record_version_marker(number, raw)
            case "complete_workflow":
                return CompleteWorkflow(result=self._payload(number, raw, "result"))
            case "fail_workflow":
                self._require(number, raw, "message")
                failure = {name: raw[name] for name in _FAILURE_FIELDS if raw.get(name) is not None}
                return FailWorkflow(failure=failure)
            case other:
                text = f"Workflow task command type [{other}] is not supported by the server yet."
                self._fault(number, "type", text)
                return None

    def _schedule_activity(
        self, number: int, raw: Mapping[str, Any], group: dict[str, Any]
    ) -> ScheduleActivity | None:
        arguments = self._payload(number, raw, "arguments")
        if not self._require(number, raw, "activity_type"):
            return None
        return ScheduleActivity(
            activity_type=raw["activity_type"],
            queue=raw.get("queue") or None,
            arguments=arguments,
            retry=_retry_policy(raw.get("retry_policy")),
            start_to_close_seconds=_optional_integer(raw, "start_to_close_timeout"),
            schedule_to_start_seconds=_optional_integer(raw, "schedule_to_start_timeout"),
            schedule_to_close_seconds=_optional_integer(raw, "schedule_to_close_timeout"),
            heartbeat_seconds=_optional_integer(raw, "heartbeat_timeout"),
            cancellation_policy=raw.get("cancellation_policy"),
            worker_session=raw.get("worker_session"),
            group=group,
        )

    def _start_timer(self, number: int, raw: Mapping[str, Any], group: dict[str, Any]) -> StartTimer | None:
        if not self._require(number, raw, "delay_seconds"):
            return None
        return StartTimer(delay_seconds=integer(raw["delay_seconds"]), group=group)

    def _start_child(
        self, number: int, raw: Mapping[str, Any], group: dict[str, Any]
    ) -> StartChildWorkflow | None:
        arguments = self._payload(number, raw, "arguments")
        policy = self._choice(number, raw, "parent_close_policy", ParentClosePolicy)
        if not self._require(number, raw, "workflow_type"):
            return None
        if len(raw["workflow_type"]) > MAX_NAME or len(raw.get("queue") or "") > MAX_NAME:
            self._fault(number, "workflow_type", f"A name must not be longer than {MAX_NAME} characters.")
        return StartChildWorkflow(
            workflow_type=raw["workflow_type"],
            queue=raw.get("queue") or None,
            arguments=arguments,
            parent_close_policy=policy or ParentClosePolicy.ABANDON,
            policy_given=policy is not None,
            cancellation_policy=raw.get("cancellation_policy"),
            retry=_retry_policy(raw.get("retry_policy")),
            execution_timeout_seconds=_optional_integer(raw, "execution_timeout_seconds"),
            run_timeout_seconds=_optional_integer(raw, "run_timeout_seconds"),
            group=group,
        )

    def _record_local_activity(
        self, number: int, raw: Mapping[str, Any], group: dict[str, Any]
    ) -> RecordLocalActivity | None:
        arguments = self._payload(number, raw, "arguments")
        result = self._payload(number, raw, "result")
        outcome = self._choice(number, raw, "outcome", LocalOutcome)
        named = self._require(number, raw, "activity_type")
        if not self._require(number, raw, "outcome") or outcome is None or not named:
            return None
        if outcome is not LocalOutcome.COMPLETED:
            self._require(number, raw, "message")
        return RecordLocalActivity(
            activity_type=raw["activity_type"],
            outcome=outcome,
            arguments=arguments,
            result=result if outcome is LocalOutcome.COMPLETED else None,
            report={name: raw[name] for name in _LOCAL_REPORT if raw.get(name) is not None},
            group=group,
        )

    def _upsert_memo(self, number: int, raw: Mapping[str, Any]) -> UpsertMemo | None:
        entries = self._payload(number, raw, "entries")
        if entries is None:
            self._require(number, raw, "entries")
            return None
        try:
            values = payloads.decode(entries)
        except payloads.PayloadError as error:
            self._fault(number, "entries", f"The entries cannot be decoded: {error}.")
            return None
        if not isinstance(values, dict) or not values:
            self._fault(number, "entries", "The entries must be a map of at least one entry.")
            return None
        if len(values) > MAX_MEMO_ENTRIES:
            self._fault(number, "entries", f"At most {MAX_MEMO_ENTRIES} memo entries may be changed at once.")
        for name in values:
            if not _MEMO_KEY.fullmatch(name):
                self._fault(number, "entries", f"The memo key {name[:64]!r} is not valid.")
        return UpsertMemo(entries=entries, values=values)

    def _upsert_search_attributes(self, number: int, raw: Mapping[str, Any]) -> UpsertSearchAttributes | None:
        attributes = raw.get("attributes")
        if not attributes:
            self._fault(number, "attributes", "The attributes field is required and must not be empty.")
            return None
        for name in attributes:
            if not _ATTRIBUTE_KEY.fullmatch(name):
                self._fault(number, "attributes", f"The search attribute name {name[:128]!r} is not valid.")
        return UpsertSearchAttributes(attributes=attributes)

    def _fail_update(self, number: int, raw: Mapping[str, Any]) -> FailUpdate | None:
        missing = [name for name in ("update_id", "message") if not self._require(number, raw, name)]
        if missing:
            return None
        failure = {name: raw[name] for name in _FAILURE_FIELDS if raw.get(name) is not None}
        return FailUpdate(update_id=raw["update_id"], failure=failure)

    def _cancel_selection_operation(
        self, number: int, raw: Mapping[str, Any]
    ) -> CancelSelectionOperation | None:
        missing = [name for name in _SELECTION_FIELDS[:1] if not self._require(number, raw, name)]
        for name, least in (("member_base_sequence", 1), ("member_size", 1)):
            value = raw.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= groups.MAX_STEP:
                self._fault(number, name, f"The {name} field must be an integer of at least {least}.")
                missing.append(name)
        if missing:
            return None
        return CancelSelectionOperation(
            base=raw["member_base_sequence"],
            size=raw["member_size"],
            fields={name: raw[name] for name in _SELECTION_FIELDS if name in raw},
        )

    def _choice(self, number: int, raw: Mapping[str, Any], name: str, kinds: type[E]) -> E | None:
        value = raw.get(name)
        if value in (None, ""):
            return None
        try:
            return kinds(value)
        except ValueError:
            self._fault(number, name, f"The {name} field must be one of {', '.join(kinds)}.")
            return None

    def _record_version_marker(self, number: int, raw: Mapping[str, Any]) -> RecordVersionMarker | None:
        missing = [name for name in ("change_id", "version") if not self._require(number, raw, name)]
        if missing:
            return None
        return RecordVersionMarker(
            change_id=raw["change_id"],
            version=integer(raw["version"]),
            min_supported=_optional_integer(raw, "min_supported"),
            max_supported=_optional_integer(raw, "max_supported"),
        )

    def _payload(self, number: int, raw: Mapping[str, Any], name: str) -> Payload | None:
        """An envelope as it is; a plain string as a blob; other JSON encoded; absent and null: None."""
        value = raw.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return Payload(codec=self.codec, blob=value)
        if payloads.is_envelope(value):
            if value["codec"] != payloads.CODEC:
                self._fault(number, f"{name}.codec", f"Unknown payload codec {value['codec']!r}.")
            elif value["blob"] is not None and not isinstance(value["blob"], str):
                self._fault(number, f"{name}.blob", "The payload blob must be a string.")
            elif value["blob"] is not None:
                return Payload(codec=value["codec"], blob=value["blob"])
            return None
        try:
            return payloads.encode(value)
        except payloads.PayloadError as error:
            self._fault(number, name, f"The value cannot be encoded: {error}.")
            return None

    def _require(self, number: int, raw: Mapping[str, Any], name: str) -> bool:
        if raw.get(name) in (None, ""):
            self._fault(number, name, f"The {name} field is required for {raw['type']} commands.")
            return False
        return True

    def _fault(self, number: int, name: str, text: str) -> None:
        self.errors.setdefault(f"commands.{number}.{name}", []).append(text)


def _optional_integer(raw: Mapping[str, Any], name: str) -> int | None:
    return None if raw.get(name) is None else integer(raw[name])


def _retry_policy(raw: Mapping[str, Any] | None) -> RetryPolicy | None:
    if raw is None:
        return None
    return RetryPolicy(
        max_attempts=1 if raw.get("max_attempts") is None else integer(raw["max_attempts"]),
        backoff_seconds=tuple(integer(seconds) for seconds in raw.get("backoff_seconds") or ()),
        non_retryable_error_types=tuple(raw.get("non_retryable_error_types") or ()),
    )
