"""What a workflow that is a chain of activities does next, as its history says. Pure.

An activity may be over without a result: it failed for good, or the server gave it up because its lease ran
out again and again. The chain goes on with another one then. A worker that takes it for open would have
nothing to answer, and no answer without a command is accepted, so its task would come back for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cluster.workflows.events import EventType
from cluster.workflows.workflow_tasks import WAITING_FOR_HISTORY

NOTHING_TO_DO: Final = {"message": "an activity is not over yet", "type": WAITING_FOR_HISTORY}
"""The failure by which a worker gives a workflow task back until something new happens."""

_OVER: Final = frozenset(
    {
        EventType.ACTIVITY_COMPLETED,
        EventType.ACTIVITY_FAILED,
        EventType.ACTIVITY_TIMED_OUT,
        EventType.ACTIVITY_CANCELLED,
    }
)


@dataclass(frozen=True, slots=True)
class Chain:
    """Payloads of the activities that completed, in order, and how many are not over."""

    done: Sequence[Mapping[str, Any]]
    open: int


def chain_of(events: Sequence[Mapping[str, Any]]) -> Chain:
    """Read a whole history, as polls answer it."""
    types = [event["event_type"] for event in events]
    begun, over = types.count(EventType.ACTIVITY_SCHEDULED), sum(kind in _OVER for kind in types)
    completed = EventType.ACTIVITY_COMPLETED
    return Chain([event["payload"] for event in events if event["event_type"] == completed], begun - over)
