"""Implicit pipelining: trio tasks ask for single commands, Redis gets batches.

:meth:`Pipe.execute` packs a command in the caller (so a bad argument raises there), gives it to
a lane and sleeps until the lane delivers the outcome. Two lanes keep urgent commands (session
and lease renewals) from waiting behind a large batch.

Cancelling a caller abandons its reply, never the connection: what was sent may be executed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import trio

from cluster.errors import StoreUnavailable
from cluster.store.connection import Argument, pack
from cluster.store.lane import Command, Lane
from cluster.store.nurseries import plain_nursery
from cluster.store.outcomes import is_write
from cluster.store.scripts import Script
from cluster.store.topology import open_topology

MAX_WAITING: Final = 20_000
CALL_TIMEOUT: Final = 5.0  # seconds a call waits for Redis to come back
REPLY_TIMEOUT: Final = 5.0  # seconds one read may take
URGENT_REPLY_TIMEOUT: Final = 2.0
_CLOSE_GRACE: Final = 1.0


@dataclass(frozen=True, slots=True)
class PipeStatistics:
    """Counts since the pipe was opened; ``waiting`` is the present number of waiting commands.

    ``round_trips`` counts writes to one server, ``batches`` what was taken at once, ``resent``
    attempts after the first, ``ambiguous`` attempts whose reply was lost.
    """

    commands: int
    batches: int
    round_trips: int
    connects: int
    lost_connections: int
    resent: int
    scripts_loaded: int
    ambiguous: int
    unavailable: int
    not_durable: int
    refused_at_limit: int
    waiting: int


class _Gate:
    """The way into one lane: what waits in it, and its end."""

    def __init__(self, url: str, *, reply_timeout: float, replicas: int) -> None:
        self.waiting = 0
        self._scope = trio.CancelScope(shield=True)
        topology = open_topology(url, reply_timeout=reply_timeout)
        self.clustered = topology.clustered
        self._renewed_handlers: list[Callable[[], None]] = []
        self.lane = Lane(topology, deliver=self._deliver, renewed=self._renewed, replicas=replicas)

    def on_renewed(self, handler: Callable[[], None]) -> None:
        """Call ``handler()`` whenever the lane's generation has changed."""
        self._renewed_handlers.append(handler)

    def _renewed(self) -> None:
        for handler in self._renewed_handlers:
            handler()

    async def run(self) -> None:
        """Serve until :meth:`aclose`: whoever cleans up after a cancellation still needs the store."""
        with self._scope:
            await self.lane.run()

    def _deliver(self, commands: list[Command]) -> None:
        self.waiting -= len(commands)
        for command in commands:
            task, command.task = command.task, None
            if task is not None and command.result is not None:
                trio.lowlevel.reschedule(task, command.result)

    async def execute(self, command: Command) -> Any:
        def abandon(_: Any) -> trio.lowlevel.Abort:
            command.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        command.task = trio.lowlevel.current_task()
        self.waiting += 1
        self.lane.submit(command)
        return await trio.lowlevel.wait_task_rescheduled(abandon)

    async def aclose(self) -> None:
        self.lane.close()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_CLOSE_GRACE):
                await self.lane.ended.wait()
            if not self.lane.ended.is_set():
                self.lane.abort()
                with trio.move_on_after(_CLOSE_GRACE):
                    await self.lane.ended.wait()
            self._scope.cancel()
            await self.lane.ended.wait()


class Pipe:
    """Sends single commands in batches. Use :func:`open_pipe`."""

    def __init__(self, url: str, *, replicas: int = 0, call_timeout: float = CALL_TIMEOUT) -> None:
        self._normal = _Gate(url, reply_timeout=REPLY_TIMEOUT, replicas=replicas)
        # Renewals never wait for replicas: one that a fail-over loses only shortens a lease.
        self._urgent = _Gate(url, reply_timeout=URGENT_REPLY_TIMEOUT, replicas=0)
        self._call_timeout = call_timeout
        self.closed = False
        self._refused = 0
        self.clustered = self._normal.clustered

    def start(self, nursery: trio.Nursery) -> None:
        for gate in (self._normal, self._urgent):
            nursery.start_soon(gate.run)

    async def aclose(self) -> None:
        """End both lanes; commands that still wait end in StoreUnavailable or OutcomeUnknown."""
        self.closed = True
        for gate in (self._normal, self._urgent):
            await gate.aclose()

    def on_new_generation(self, handler: Callable[[], None]) -> None:
        """Call ``handler()`` whenever :attr:`generation` has changed."""
        self._normal.on_renewed(handler)

    @property
    def generation(self) -> str:
        """See :attr:`cluster.store.lane.Lane.generation`; "" before the first connect."""
        return self._normal.lane.generation

    async def execute(
        self,
        args: Sequence[Argument],
        *,
        slot: int = 0,
        script: Script | None = None,
        idempotent: bool = False,
        urgent: bool = False,
        stamped: bool = False,
    ) -> Any:
        """Run one command on the server that owns ``slot`` and return its reply.

        ``script`` is what to load when an EVALSHA meets a server that does not know it.
        ``idempotent`` allows to send the command again after its reply was lost. ``urgent`` takes
        the lane for renewals, which does not wait for replicas. ``stamped`` says that GENERATION is
        one of ``args``.
        Raises a StoreError, or TypeError for an argument that is neither text, bytes nor number.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        gate = self._urgent if urgent else self._normal
        if self.closed:
            raise StoreUnavailable("the store is closed")
        if gate.waiting >= MAX_WAITING:
            self._refused += 1
            raise StoreUnavailable(f"{gate.waiting} commands already wait for Redis")
        command = Command(
            pack(*args),
            slot,
            monotonic() + self._call_timeout,
            idempotent=idempotent,
            write=script is not None or is_write(str(args[0])),
            stamped=stamped,
            script=script,
        )
        return await gate.execute(command)

    def statistics(self) -> PipeStatistics:
        gates = (self._normal, self._urgent)
        lanes = [gate.lane.counters for gate in gates]
        return PipeStatistics(
            commands=sum(c.commands for c in lanes),
            batches=sum(c.batches for c in lanes),
            round_trips=sum(c.round_trips for c in lanes),
            connects=sum(gate.lane.connects for gate in gates),
            lost_connections=sum(c.lost_connections for c in lanes),
            resent=sum(c.resent for c in lanes),
            scripts_loaded=sum(c.scripts_loaded for c in lanes),
            ambiguous=sum(c.ambiguous for c in lanes),
            unavailable=sum(c.unavailable for c in lanes),
            not_durable=sum(c.not_durable for c in lanes),
            refused_at_limit=self._refused,
            waiting=sum(gate.waiting for gate in gates),
        )


@asynccontextmanager
async def open_pipe(
    url: str, *, replicas: int = 0, call_timeout: float = CALL_TIMEOUT
) -> AsyncIterator[Pipe]:
    """A pipe to ``url`` whose lanes end with the block. Connects in the background."""
    async with plain_nursery() as nursery:
        pipe = Pipe(url, replicas=replicas, call_timeout=call_timeout)
        pipe.start(nursery)
        try:
            yield pipe
        finally:
            await pipe.aclose()
