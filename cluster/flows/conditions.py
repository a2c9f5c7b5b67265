"""Whether conditions hold, and what execute is told about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from cluster.flows.records import Condition, Mode, Wait


def holding(wait: Wait, channels: Mapping[str, int], now_ms: int) -> list[Condition] | None:
    """The conditions that hold, or None while they do not suffice.

    ``channels`` are the messages that wait in each; two conditions never share one.
    """
    claimed: dict[str, int] = {}
    found: list[Condition] = []
    for condition in wait.conditions:
        if not condition.channel:
            if condition.due_ms <= now_ms:
                found.append(condition)
            continue
        wanted = claimed.get(condition.channel, 0) + condition.count
        if channels.get(condition.channel, 0) >= wanted:
            claimed[condition.channel] = wanted
            found.append(condition)
    enough = len(wait.conditions) if wait.mode is Mode.ALL else min(1, len(wait.conditions))
    return found if len(found) >= enough else None


def next_due_ms(wait: Wait, now_ms: int) -> int | None:
    """When the next of the timers among the conditions comes due."""
    return min((c.due_ms for c in wait.conditions if not c.channel and c.due_ms > now_ms), default=None)


def has_timer(wait: Wait) -> bool:
    return any(not condition.channel for condition in wait.conditions)


def findings(wait: Wait, found: Mapping[str, Sequence[bytes]]) -> bytes:
    """What execute gets, as JSON. ``found`` maps conditions that held to their messages (JSON)."""
    told: dict[str, Any] = {condition.id: {"satisfied": False} for condition in wait.conditions}
    for condition in wait.conditions:
        if condition.id in found:
            told[condition.id] = {"satisfied": True}
            if condition.channel:
                told[condition.id]["values"] = [orjson.Fragment(value) for value in found[condition.id]]
    return orjson.dumps(told)
