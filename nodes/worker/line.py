"""A line: up to 16 lanes that share a connection, and the loop that gives them a new one."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from cluster.queues.slot_kind import SlotKind
from nodes.worker.backoff import pause_before
from nodes.worker.carrier import PERMANENT, CarrierLost
from nodes.worker.connection import Connection, Host
from nodes.worker.credentials import Credential
from nodes.worker.errors import CredentialError, StreamRejected
from nodes.worker.lane import Lane, LaneState

log = logging.getLogger("headrace.worker")

SLOTS_PER_CONNECTION: Final = 16
STEADY_SECONDS: Final = 1.0
"""A connection that lasted so long worked; its end is no reason to hesitate. Short, because nodes that die
every few seconds would otherwise make a worker wait longer and longer for those that live."""


class Line:
    """Belongs to a worker. ``first`` is the place in ``urls`` of the node it tries first."""

    def __init__(
        self,
        host: Host,
        kinds: Iterable[SlotKind],
        urls: Sequence[str],
        first: int,
        credential: Credential,
        namespace: str,
    ) -> None:
        self.lanes = [Lane(kind, self) for kind in kinds]
        self._host = host
        self._urls = urls
        self._place = first
        self._credential = credential
        self._namespace = namespace
        self._connections: set[Connection] = set()
        self._wake = trio.Event()
        self._tries = 0
        self._spread = False
        """The connection was lost, perhaps together with many others: do not all come back at once."""

    def wake(self) -> None:
        """Something changed: a lane without a slot, a connection that is over, the worker stops."""
        self._wake.set()

    def close(self) -> None:
        """End the connections."""
        for connection in list(self._connections):
            connection.close()

    async def run(self) -> None:
        """Keep the lanes on a connection until the worker stops and the connections have ended."""
        async with trio.open_nursery() as nursery:
            while not self._host.stopping:
                if not any(lane.state is LaneState.UNPLACED for lane in self.lanes):
                    await self._woken(None)
                    continue
                await self._pause()
                if self._host.stopping:
                    break
                url = self._urls[self._place % len(self._urls)]
                connection = Connection(self._host, url, self.lanes, self.wake)
                self._connections.add(connection)
                nursery.start_soon(self._serve, connection)
                while not (connection.ended or connection.leaving or self._host.stopping):
                    later = connection.place() if connection.welcome else None
                    await self._woken(later)
                self._place += 1

    async def _woken(self, seconds: float | None) -> None:
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await self._wake.wait()
        self._wake = trio.Event()

    async def _pause(self) -> None:
        pause = pause_before(self._tries) or (pause_before(1) * random.random() if self._spread else 0.0)
        until = trio.current_time() + pause
        while (left := until - trio.current_time()) > 0 and not self._host.stopping:
            await self._woken(left)

    async def _serve(self, connection: Connection) -> None:
        began = trio.current_time()
        try:
            headers = {"x-namespace": self._namespace, **await self._credential.headers()}
            await connection.serve(headers)
        except StreamRejected as error:
            log.warning("%s refused the connection: %s", connection.url, error)
            permanent = error.status in PERMANENT
            for kind in {lane.kind for lane in self.lanes}:
                self._host.rejected(kind, error, permanent)
        except (CarrierLost, CredentialError) as error:
            # Once aloud: whoever mistyped a URL or trusts another authority would see nothing else.
            level = logging.INFO if connection.registered_any or self._tries else logging.WARNING
            log.log(level, "no connection to %s: %s", connection.url, error)
        finally:
            connection.ended = True
            self._connections.discard(connection)
            steady = connection.registered_any and trio.current_time() - began >= STEADY_SECONDS
            directed = connection.registered_any and connection.leaving
            self._tries = 0 if steady or directed else self._tries + 1
            self._spread = not directed
            self.wake()
