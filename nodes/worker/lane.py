"""A lane: one unit of the worker's concurrency, which has a slot on a connection now and then.

::

                  open              registered            task                 handler ended
    UNPLACED ───────────► OPENING ─────────────► IDLE ─────────────► BUSY ─────────────────► SETTLING
        ▲                    │                    ▲  │ stop           │                          │
        │ rejected           │ stop               │  └────► CLOSING ◄─┤ drain deadline           │
        ├────────────────────┘                    └───────────────────┼────────── confirmed ─────┘
        │                                                             │ slot lost
        └──────────────────────── handler ended ────────── ORPHANED ◄─┘

A slot that is lost or closed by the node leaves the lane UNPLACED, or GONE when the worker stops.
ORPHANED: the handler of a lost attempt has not returned yet, and a lane runs one handler at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from cluster.queues.slot_kind import SlotKind
from nodes.streams.frames import Heartbeat
from nodes.worker.context import Attempt

if TYPE_CHECKING:
    from nodes.worker.connection import Connection
    from nodes.worker.lane_runner import LaneRunner
    from nodes.worker.line import Line


class LaneState(StrEnum):
    UNPLACED = "unplaced"
    OPENING = "opening"
    IDLE = "idle"
    BUSY = "busy"
    SETTLING = "settling"
    CLOSING = "closing"
    ORPHANED = "orphaned"
    GONE = "gone"


@dataclass(eq=False, slots=True)
class Lane:
    """Slot and connection mean something only while there is a slot."""

    kind: SlotKind
    line: Line
    state: LaneState = LaneState.UNPLACED
    slot: int = 0
    connection: Connection | None = None
    registered: bool = False
    attempt_id: str = ""
    runner: LaneRunner | None = field(default=None, repr=False)
    """Where its handlers run, once there was one."""
    attempt: Attempt | None = field(default=None, repr=False)
    """The running handler, also when its output is not wanted any more."""
    beat: Heartbeat | None = None
    """The newest heartbeat, while it has not been sent."""
    beat_at: float = 0.0
    rejections: int = 0
    retry_at: float = 0.0

    @property
    def runs(self) -> bool:
        return self.attempt is not None
