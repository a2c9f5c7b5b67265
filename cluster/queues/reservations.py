"""Free slots that are kept for steps which commits of this node are about to make ready."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from cluster.errors import ConditionFailed, Refused
from cluster.queues.hand_outs import HandedOut
from cluster.store.keys import QueueName
from cluster.store.transaction import OpenSlot


class Reservation:
    """One slot for one step, inside a ``with`` block around the commit.

    ``ended(step, known)`` is called once, when the block is left, with the step that the slot has got, if
    any. Not ``known``: the store may have given it one, and the reply that would tell is lost.
    """

    def __init__(self, slot: OpenSlot, ended: Callable[[HandedOut | None, bool], None]) -> None:
        self._slot = slot
        self._ended = ended
        self._offered = False
        self._handed_out: HandedOut | None = None

    def takes(self, _queue: QueueName, _step_type: str) -> OpenSlot:
        """The slot; from here on it may have been given a step until somebody says more."""
        self._offered = True
        return self._slot

    def settle(self, handed_out: HandedOut | None) -> None:
        """The commit was made just now, with this step for the slot, or none."""
        self._offered = False
        self._handed_out = handed_out

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        # What was refused was not committed.
        known = not self._offered or isinstance(error, ConditionFailed | Refused)
        self._ended(self._handed_out, known)
