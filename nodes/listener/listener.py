"""The listening socket of workers: accepts connections up to a limit, and lets them go in good order."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from cluster.errors import Refused
from nodes.api.limits import ListenerLimits
from nodes.api.messages import Answering, Request
from nodes.api.serving import Address
from nodes.http1.answers import Calendar, encode
from nodes.http1.connection import Connection

ACCEPT_AT_ONCE: Final = 64
"""Connections taken before others get a turn."""

RETRY_AFTER_SECONDS: Final = 1
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESOURCES_SECONDS: Final = 0.1

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """Connections that are open now, and those that were turned away because too many were."""

    connections: int
    refused: int


class WorkerListener:
    """Serves ``pipeline`` to workers. Once ``is_leaving``, each answer is the last of its connection."""

    def __init__(
        self,
        pipeline: Answering,
        limits: ListenerLimits,
        *,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pipeline = pipeline
        self._limits = limits
        self._is_leaving = is_leaving
        self._calendar = Calendar()
        self._open: set[Connection] = set()
        self._refused = 0

    def statistics(self) -> ListenerStatistics:
        return ListenerStatistics(len(self._open), self._refused)

    async def serve(
        self,
        listener: socket.socket,
        *,
        shutdown: Callable[[], Awaitable[None]],
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on ``listener``, which it closes, until ``shutdown()`` returns.

        Open requests then get ``grace_seconds``. Reports the address it listens on.
        """
        listener.setblocking(False)
        name = listener.getsockname()
        async with trio.open_nursery() as connections:
            with listener:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(self._accept_all, listener, connections)
                    task_status.started(Address(name[0], name[1]))
                    await shutdown()
                    accepting.cancel_scope.cancel()
                # Whoever is in the queue believes to be connected.
                while self._accept(listener, connections):
                    pass
            connections.cancel_scope.deadline = trio.current_time() + self._limits.grace_seconds
            for connection in tuple(self._open):
                connection.retire()

    async def _accept_all(self, listener: socket.socket, connections: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(ACCEPT_AT_ONCE):
                    if not self._accept(listener, connections):
                        break
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                log.error("accept_failed", error=error.strerror)
                await trio.sleep(_RESOURCES_SECONDS)

    def _accept(self, listener: socket.socket, connections: trio.Nursery) -> bool:
        """Take a connection; False when none waits. Raises OSError when there is no room for it."""
        try:
            client, address = listener.accept()
        except BlockingIOError:
            return False
        except ConnectionAbortedError:
            return True
        client.setblocking(False)
        if len(self._open) >= self._limits.connections:
            self._turn_away(client)
        else:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(
                client,
                str(address[0]),
                self._pipeline,
                self._limits,
                self._calendar,
                self._is_leaving,
                for_workers=True,
            )
            self._open.add(connection)
            connections.start_soon(self._serve, connection)
        return True

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._open.discard(connection)

    def _turn_away(self, client: socket.socket) -> None:
        """Say that there are too many connections, without waiting for what the client wants."""
        self._refused += 1
        refusal = Refused(
            "too_many_connections",
            "This node serves as many connections as it may; use another one.",
            status=503,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
        response = self._pipeline.refuse(Request("", b"/", b"", ()), refusal)
        response.headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        with client, suppress(OSError):
            client.send(encode(response, b"", close=True))
            client.shutdown(socket.SHUT_WR)
