"""The commands a worker answers a workflow task with (server-behaviour 5.5, sdk-wire 4.3).

They are read in two steps, because the check of the sender comes between: ``check_fields`` looks
at types, ranges and combinations of fields of every known command type, ``normalise`` turns what
passed into records and refuses types this server does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cluster import payloads
from cluster.errors import ValidationFailed
from cluster.workflows import groups
from cluster.workflows.command_fields import check_fields, integer
from cluster.workflows.records import Payload, RetryPolicy

__all__ = [
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
class RecordSideEffect:
    result: Payload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordVersionMarker:
    change_id: str
    version: int
    min_supported: int | None
    max_supported: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteWorkflow:
    result: Payload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWorkflow:
    """``failure`` holds the command's fields as they came, without its type."""

    failure: dict[str, Any]


Command = (
    ScheduleActivity | StartTimer | RecordSideEffect | RecordVersionMarker | CompleteWorkflow | FailWorkflow
)

_FAILURE_FIELDS: Final = (
    "message",
    "exception_type",
    "exception_class",
    "exception",
    "non_retryable",
    "failed_step_sequence",
    "failed_activity_execution_id",
)


_TERMINAL_TYPES: Final = ("complete_workflow", "fail_workflow")


def is_terminal(command: Command) -> bool:
    """Whether the command ends its run."""
    return isinstance(command, (CompleteWorkflow, FailWorkflow))


def ends_run(raw_commands: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a batch of raw commands holds one that ends the run."""
    return any(raw.get("type") in _TERMINAL_TYPES for raw in raw_commands)


def payloads_of(command: Command) -> tuple[Payload, ...]:
    """The payloads a command carries."""
    match command:
        case ScheduleActivity(arguments=payload):
            pass
        case RecordSideEffect(result=payload) | CompleteWorkflow(result=payload):
            pass
        case _:
            payload = None
    return () if payload is None else (payload,)


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
            case "schedule_activity" if not groups.is_select(group):
                return self._schedule_activity(number, raw, group)
            case "start_timer" if not groups.is_select(group):
                return self._start_timer(number, raw, group)
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
