"""Structural limits: how large a run, a command batch and a payload may become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cluster import payloads
from cluster.errors import Refused
from cluster.settings.schema import Settings
from cluster.workflows.command_records import (
    Command,
    OpenConditionWait,
    ScheduleActivity,
    StartChildWorkflow,
    StartTimer,
)
from cluster.workflows.commands import payloads_of
from cluster.workflows.records import RunInfo, RunState

MIB: Final = 1024 * 1024
LONG_HISTORY: Final = 0.8
"""The part of the most events a run may have from which on its history counts as long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of server-behaviour 5.11, by the name clients see. 0 switches a limit off."""

    pending_activity_count: int = 2000
    pending_child_count: int = 1000
    pending_timer_count: int = 2000
    pending_signal_count: int = 5000
    pending_update_count: int = 500
    command_batch_size: int = 1000
    payload_size: int = 2 * MIB
    """Bytes of one encoded blob."""
    memo_size: int = 256 * 1024
    search_attribute_size: int = 40_960
    history_transaction_size: int = 5000
    """Events appended by one decision."""
    history_event_count: int = 50_000
    """Events of a run. With more than that it fails, unless the workflow task that adds them ends it."""


def configured_limits(settings: Settings) -> Limits:
    """The limits that ``settings`` ask for; of two settings for one limit the stricter holds."""
    return Limits(
        pending_activity_count=_stricter(
            settings.v2_limit_pending_activities, settings.max_pending_activities
        ),
        pending_child_count=_stricter(settings.v2_limit_pending_children, settings.max_pending_children),
        pending_timer_count=settings.v2_limit_pending_timers,
        pending_signal_count=settings.v2_limit_pending_signals,
        pending_update_count=settings.v2_limit_pending_updates,
        command_batch_size=settings.v2_limit_command_batch_size,
        payload_size=settings.v2_limit_payload_size_bytes,
        memo_size=_stricter(settings.v2_limit_memo_size_bytes, settings.max_memo_bytes),
        search_attribute_size=settings.v2_limit_search_attribute_size_bytes,
        history_transaction_size=settings.v2_limit_history_transaction_size,
        history_event_count=settings.max_history_events,
    )


def _stricter(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


class LimitReached(Refused):
    """Applying a batch would break a structural limit; nothing of it is applied."""

    def __init__(self, kind: str, current: int, limit: int) -> None:
        super().__init__(
            "structural_limit_exceeded",
            f"The structural limit {kind} of {limit} is reached (current value {current}).",
            status=422,
            outcome="rejected",
            recorded=False,
            limit_kind=kind,
            current_value=current,
            configured_limit=limit,
        )


def check_batch(limits: Limits, commands: Sequence[Command]) -> None:
    """Checks what a batch shows by itself: its length and its payloads. Raises LimitReached."""
    _at_most("command_batch_size", len(commands), limits.command_batch_size)
    for command in commands:
        for payload in payloads_of(command):
            _at_most("payload_size", len(payload.blob), limits.payload_size)


def check_room(limits: Limits, state: RunState, command: Command) -> None:
    """Checks that ``command`` may open one more item. Raises LimitReached."""
    match command:
        case ScheduleActivity():
            _room("pending_activity_count", len(state.activities), limits.pending_activity_count)
        case StartTimer():
            _room("pending_timer_count", len(state.timers), limits.pending_timer_count)
        case OpenConditionWait():
            _room("pending_timer_count", len(state.waits), limits.pending_timer_count)
        case StartChildWorkflow():
            _room("pending_child_count", len(state.children), limits.pending_child_count)
        case _:
            pass


def check_attributes(limits: Limits, info: RunInfo) -> None:
    """Checks the size of memo and search attributes, as JSON. Raises LimitReached."""
    _at_most("memo_size", _size(payloads.json_view(info.memo)), limits.memo_size)
    _at_most("search_attribute_size", _size(info.search_attributes), limits.search_attribute_size)


def _size(values: dict[str, Any]) -> int:
    return len(orjson.dumps(values)) if values else 0


def check_transaction(limits: Limits, events: int) -> None:
    """Checks how many events one decision appends. Raises LimitReached."""
    _at_most("history_transaction_size", events, limits.history_transaction_size)


def is_too_long(limits: Limits, events: int) -> bool:
    """Whether a history of so many events may not go on."""
    return 0 < limits.history_event_count < events


def grows_long(limits: Limits, before: int, after: int) -> bool:
    """Whether a history just came to LONG_HISTORY of what it may have."""
    long = int(limits.history_event_count * LONG_HISTORY)
    return limits.history_event_count > 0 and before <= long < after


def _at_most(kind: str, value: int, limit: int) -> None:
    if limit and value > limit:
        raise LimitReached(kind, value, limit)


def _room(kind: str, value: int, limit: int) -> None:
    if limit and value >= limit:
        raise LimitReached(kind, value, limit)
