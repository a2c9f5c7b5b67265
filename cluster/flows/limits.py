"""Structural limits of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cluster.workflows.limits import LimitReached

KIB: Final = 1024
HISTORY_KEPT: Final = 10_000
"""Newest entries of a run's step history that are kept."""
MESSAGES_AT_ONCE: Final = 1_000
"""Most messages one condition may wait for."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """How large one run of a flow may become, by the name refusals show."""

    open_step_count: int = 1_000
    attribute_count: int = 100
    attribute_size: int = 256 * KIB
    """Bytes of all attributes of a run together."""
    payload_size: int = 256 * KIB
    """Bytes of one input, result, message or attribute."""
    decision_size: int = 6 * 1024 * KIB
    """Bytes of everything that one decision makes ready or publishes."""
    channel_backlog: int = 10_000
    channel_count: int = 1_000
    step_type_count: int = 1_000


def at_most(kind: str, value: int, limit: int) -> None:
    """Checks a size. Raises LimitReached."""
    if value > limit:
        raise LimitReached(kind, value, limit)
