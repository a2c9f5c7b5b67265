"""When a worker counts as ready (R1 to R14).

Per slot kind there are so many registered streams and perhaps a permanent error. Ready is latched:
once every kind had a stream at the same time or one after the other, waiting succeeds for ever, and
only a kind with no stream *and* a permanent error makes the worker unready again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import trio

from cluster.queues.slot_kind import SlotKind
from nodes.worker.errors import PullRegistrationError, StreamRejected, WorkerStopped


@dataclass(frozen=True, slots=True)
class QueueReadiness:
    """One slot kind. ``queue`` is its label."""

    queue: str
    has_registered_stream: bool
    last_permanent_error: StreamRejected | None


@dataclass(slots=True)
class _Kind:
    streams: int = 0
    has_registered: bool = False
    error: StreamRejected | None = None


class Readiness:
    """Of one worker, whose required slot kinds are ``kinds``."""

    def __init__(self, kinds: Iterable[SlotKind]) -> None:
        self._kinds = {kind: _Kind() for kind in kinds}
        self._latched = False
        self._end: Exception | None = None
        self._changed = trio.Event()

    # -- what happens -----------------------------------------------------------------------

    def registered(self, kind: SlotKind) -> None:
        """A stream of the kind was registered."""
        state = self._kinds[kind]
        state.streams += 1
        state.has_registered = True
        state.error = None
        self._latched = self._latched or all(one.has_registered for one in self._kinds.values())
        self._ring()

    def lost(self, kind: SlotKind) -> None:
        """A registered stream of the kind is over, for whatever reason."""
        self._kinds[kind].streams -= 1

    def rejected(self, kind: SlotKind, error: StreamRejected) -> PullRegistrationError | None:
        """A stream of the kind was refused for good; the error it means if no other one is registered."""
        state = self._kinds[kind]
        state.error = error
        if state.streams:
            return None
        self._ring()
        return PullRegistrationError(kind.value, error)

    def ended(self, error: Exception | None = None) -> None:
        """The worker will not become ready any more; the first reason counts."""
        self._end = self._end or error or WorkerStopped("the worker was stopped before it was ready")
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # -- what is to be known ----------------------------------------------------------------

    @property
    def ever_registered(self) -> bool:
        """Whether any stream was registered at any time."""
        return any(state.has_registered for state in self._kinds.values())

    @property
    def is_ready(self) -> bool:
        return self._latched and self._failing() is None

    @property
    def queues(self) -> tuple[QueueReadiness, ...]:
        """One entry per required slot kind."""
        return tuple(
            QueueReadiness(kind.value, state.streams > 0, state.error) for kind, state in self._kinds.items()
        )

    def _failing(self) -> PullRegistrationError | None:
        for kind, state in self._kinds.items():
            if not state.streams and state.error is not None:
                return PullRegistrationError(kind.value, state.error)
        return None

    async def wait(self) -> None:
        """Return once every kind has been registered.

        Raises PullRegistrationError, or the error that ended the worker.
        """
        while not self._latched:
            problem = self._end or self._failing()
            if problem is not None:
                raise problem
            await self._changed.wait()
        await trio.lowlevel.checkpoint()
