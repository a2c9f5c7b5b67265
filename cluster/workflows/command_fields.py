"""Types, ranges and combinations of the fields of raw commands (server-behaviour 5.5).

The rules stand here as data. Every fault is reported, under the dotted name of its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster import payloads, session_options
from cluster.errors import ValidationFailed
from cluster.workflows import groups

MAX_SECONDS: Final = 100 * 366 * 24 * 3600
"""Longest timeout and delay, a century: every absolute time stays within the calendar."""
_MAX_INTEGER: Final = (1 << 63) - 1

_STRINGS: Final = (
    "activity_type",
    "connection",
    "queue",
    "workflow_type",
    "message",
    "update_id",
    "exception_class",
    "exception_type",
    "change_id",
    "parent_close_policy",
    "cancellation_policy",
    "condition_key",
    "condition_definition_fingerprint",
    "outcome",
    "execution_mode",
    "timeout_kind",
    "selection_group_id",
    "operation_kind",
    "operation_identity",
)
_OBJECTS: Final = ("retry_policy", "attributes", "exception", "worker_session")
_BOOLEANS: Final = ("non_retryable",)
_INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    "start_to_close_timeout": (1, MAX_SECONDS),
    "schedule_to_start_timeout": (1, MAX_SECONDS),
    "schedule_to_close_timeout": (1, MAX_SECONDS),
    "heartbeat_timeout": (1, MAX_SECONDS),
    "execution_timeout_seconds": (1, MAX_SECONDS),
    "run_timeout_seconds": (1, MAX_SECONDS),
    "delay_seconds": (0, MAX_SECONDS),
    "timeout_seconds": (0, MAX_SECONDS),
    "version": (-_MAX_INTEGER, _MAX_INTEGER),
    "min_supported": (-_MAX_INTEGER, _MAX_INTEGER),
    "max_supported": (-_MAX_INTEGER, _MAX_INTEGER),
}
_LONGEST_NAME: Final = 255
_ACTIVITY: Final = ("schedule_activity",)
_CHILD: Final = ("start_child_workflow",)
_SCOPES: Final[Mapping[str, tuple[str, ...]]] = {
    "retry_policy": (*_ACTIVITY, *_CHILD),
    "start_to_close_timeout": _ACTIVITY,
    "schedule_to_start_timeout": _ACTIVITY,
    "schedule_to_close_timeout": _ACTIVITY,
    "heartbeat_timeout": _ACTIVITY,
    "execution_timeout_seconds": _CHILD,
    "run_timeout_seconds": _CHILD,
    "non_retryable": ("fail_workflow", "fail_update"),
    "parent_close_policy": _CHILD,
}
_ORDERED: Final = (
    ("heartbeat_timeout", "start_to_close_timeout"),
    ("start_to_close_timeout", "schedule_to_close_timeout"),
    ("schedule_to_start_timeout", "schedule_to_close_timeout"),
    ("run_timeout_seconds", "execution_timeout_seconds"),
)
# A local activity reports the rules it was run with, so its fields are not scoped to other types.
_REPORTING: Final = "record_local_activity"


def check_fields(raw_commands: object) -> None:
    """Checks ``commands`` of a completion. Raises ValidationFailed with every fault found."""
    faults = _Faults()
    if not isinstance(raw_commands, list) or not raw_commands:
        faults.add("commands", "The commands field must be a list of at least one command.")
    else:
        for number, raw in enumerate(raw_commands):
            _check_command(faults, f"commands.{number}", raw)
    if faults.errors:
        raise ValidationFailed(faults.errors)


def integer(value: object) -> int:
    """An integer, also from a decimal string. Raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        return int(value)
    raise ValueError(value)


class _Faults:
    def __init__(self) -> None:
        self.errors: dict[str, list[str]] = {}

    def add(self, name: str, text: str) -> None:
        self.errors.setdefault(name, []).append(text)


def _check_command(faults: _Faults, at: str, raw: object) -> None:
    if not isinstance(raw, dict):
        faults.add(at, f"The {at} field must be an object.")
        return
    if payloads.nested_too_deep(raw):
        faults.add(at, f"The {at} field must not be nested deeper than {payloads.MAX_NESTING}.")
        return
    kind = raw.get("type")
    if not isinstance(kind, str) or not kind:
        faults.add(f"{at}.type", f"The {at}.type field is required and must be a string.")
    for name in _STRINGS:
        if not isinstance(raw.get(name), str | None):
            faults.add(f"{at}.{name}", f"The {at}.{name} field must be a string.")
    for name in _OBJECTS:
        if not isinstance(raw.get(name), dict | None):
            faults.add(f"{at}.{name}", f"The {at}.{name} field must be an object.")
    for name in _BOOLEANS:
        if not isinstance(raw.get(name), bool | None):
            faults.add(f"{at}.{name}", f"The {at}.{name} field must be true or false.")
    numbers = {name: _number(faults, f"{at}.{name}", raw.get(name), *_INTEGERS[name]) for name in _INTEGERS}
    _check_retry_policy(faults, f"{at}.retry_policy", raw.get("retry_policy"))
    _check_arguments(faults, f"{at}.arguments", raw.get("arguments"))
    _check_session(faults, f"{at}.worker_session", raw.get("worker_session"))
    fault = groups.problem(groups.fields(raw))
    if fault is not None:
        faults.add(f"{at}.{fault[0]}", f"The {at}.{fault[0]} field {fault[1]}")
    if kind != _REPORTING:
        for name, kinds in _SCOPES.items():
            if raw.get(name) is not None and kind not in kinds:
                faults.add(f"{at}.{name}", f"{name} is only supported for {' and '.join(kinds)} commands.")
    for smaller, larger in _ORDERED:
        low, high = numbers[smaller], numbers[larger]
        if low is not None and high is not None and low > high:
            faults.add(f"{at}.{smaller}", f"{smaller} cannot exceed {larger}.")


def _number(faults: _Faults, at: str, value: object, low: int, high: int) -> int | None:
    if value is None:
        return None
    try:
        number = integer(value)
    except ValueError:
        faults.add(at, f"The {at} field must be an integer.")
        return None
    if number < low:
        faults.add(at, f"The {at} field must be at least {low}.")
    elif number > high:
        faults.add(at, f"The {at} field must not be greater than {high}.")
    else:
        return number
    return None


def _check_retry_policy(faults: _Faults, at: str, policy: object) -> None:
    if not isinstance(policy, dict):
        return
    _number(faults, f"{at}.max_attempts", policy.get("max_attempts"), 1, _MAX_INTEGER)
    backoff: Any = policy.get("backoff_seconds")
    if not isinstance(backoff, list | None):
        faults.add(f"{at}.backoff_seconds", f"The {at}.backoff_seconds field must be a list.")
    else:
        for number, seconds in enumerate(backoff or ()):
            name = f"{at}.backoff_seconds.{number}"
            if seconds is None:
                faults.add(name, f"The {name} field must be an integer.")
            _number(faults, name, seconds, 0, MAX_SECONDS)
    types: Any = policy.get("non_retryable_error_types")
    if not isinstance(types, list | None) or not all(isinstance(name, str) for name in types or ()):
        name = f"{at}.non_retryable_error_types"
        faults.add(name, f"The {name} field must be a list of strings.")


def _check_session(faults: _Faults, at: str, session: object) -> None:
    if not isinstance(session, dict):
        return
    name: Any = session.get("session_id")
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        text = f"is required and must be a string of at most {_LONGEST_NAME} characters."
        faults.add(f"{at}.session_id", f"The {at}.session_id field {text}")
    for number, most in session_options.NUMBERS.items():
        _number(faults, f"{at}.{number}", session.get(number), 1, most)
    for switch in session_options.SWITCHES:
        if not isinstance(session.get(switch), bool | None):
            faults.add(f"{at}.{switch}", f"The {at}.{switch} field must be true or false.")
    needs: Any = session.get("requirements")
    if not isinstance(needs, list | None) or not all(isinstance(need, str) for need in needs or ()):
        faults.add(f"{at}.requirements", f"The {at}.requirements field must be a list of strings.")


def _check_arguments(faults: _Faults, at: str, arguments: object) -> None:
    """External storage is not offered, so an envelope that points there cannot be read."""
    if isinstance(arguments, dict) and arguments.keys() == {"codec", "external_storage"}:
        faults.add(at, f"The {at} field refers to external storage, which is not configured.")
