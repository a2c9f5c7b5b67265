"""Connections of the main port: plain HTTP/1.1 by our own parser, HTTP/2 and WebSockets by hypercorn.

Each begins with our own (:mod:`nodes.http1`), which costs less than half of what hypercorn's way to an ASGI
application does. It says when the client asks for another protocol: with its first bytes for HTTP/2, with any
request for a WebSocket (balancers use a connection of earlier requests for one). From then on hypercorn
serves the connection.

What goes wrong on a connection would end hypercorn's whole server; here it ends the connection. There are
at most as many of them as the configuration says; one more is told to go elsewhere.

Hypercorn has one time-out for the first request and for idle connections. As the former it has to be short;
as the latter it has to be longer than clients and proxies keep one. It also starts a task for the time-out
after each request, and keeps the connection of a client that has left until then; here one task waits as
long as the connection lasts, and no longer.

What comes on a WebSocket that its application has engaged goes there directly.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.protocol.h11
import hypercorn.trio.run
import orjson
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer

from nodes.api.direct_websockets import DirectWebSocket
from nodes.api.http2 import PatientH2
from nodes.api.limits import ListenerLimits
from nodes.api.messages import Answering
from nodes.api.websockets import StrictWSStream
from nodes.http1.answers import Calendar
from nodes.http1.connection import Connection

log = structlog.get_logger(__name__)

_TOO_MANY: Final = orjson.dumps(
    {
        "reason": "too_many_connections",
        "message": "This node serves as many connections as it may; use another one.",
        "retry_after_seconds": 1,
    }
)
_TURNED_AWAY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\n%b" % (len(_TOO_MANY), _TOO_MANY)
)


class PlainHttp:
    """Serves HTTP/1.1 on all connections of a port.

    Once ``is_leaving``, each answer is the last of its connection.
    """

    def __init__(self, front: Answering, limits: ListenerLimits, is_leaving: Callable[[], bool]) -> None:
        self.limits = limits
        self._front = front
        self._is_leaving = is_leaving
        self._calendar = Calendar()
        self._open: set[Connection] = set()
        self._is_retired = False

    async def serve(self, client: socket.socket) -> bytes | None:
        """Until the connection ends, or is to go on in another protocol: then what came of that.

        Closes ``client`` unless it goes on.
        """
        try:
            address = str(client.getpeername()[0])
        except OSError:  # it is gone already
            client.close()
            return None
        connection = Connection(
            client, address, self._front, self.limits, self._calendar, self._is_leaving, for_workers=False
        )
        if self._is_retired:
            connection.retire()
        self._open.add(connection)
        try:
            return await connection.run()
        finally:
            self._open.discard(connection)

    def retire(self) -> None:
        """The server stops: end all connections that have no request, the others with their next answer."""
        self._is_retired = True
        for connection in tuple(self._open):
            connection.retire()


class ServingConfig(Config):
    """Hypercorn's settings, who serves plain HTTP/1.1, and how many connections there are."""

    plain: PlainHttp
    open_connections: int = 0


class PatientServer(TCPServer):
    """Serves one connection. In hypercorn's hands ``keep_alive_timeout`` holds until its first answer."""

    config: ServingConfig
    _idle: trio.CancelScope
    """Of the wait for the end of the server; its deadline is ``_idle_until``."""
    _idle_until = math.inf
    """When the connection has been idle for too long; never while it has a request."""
    _begun: bytes
    """What came already of the protocol that hypercorn is to speak."""

    async def run(self) -> None:
        plain = self.config.plain
        if self.config.open_connections >= plain.limits.connections:
            await self._turn_away()
            return
        self.config.open_connections += 1
        try:
            await self._serve(plain)
        except* Exception as broken:
            log.error("connection_broke", exc_info=broken)
        finally:
            self.config.open_connections -= 1
            # It refers back to this server: thousands of ended connections would wait for a full collection
            # of garbage. Most never had one.
            with suppress(AttributeError):
                del self.protocol

    async def _serve(self, plain: PlainHttp) -> None:
        client = socket.socket(fileno=self.stream.socket.detach())
        client.setblocking(False)
        begun = await plain.serve(client)
        if begun is not None:
            # Hypercorn knows what to do with either kind of stream.
            self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))  # type: ignore[assignment]
            self._begun = begun
            self._idle = trio.CancelScope()
            self._set_idle_until(trio.current_time() + self.config.keep_alive_timeout)
            await super().run()

    async def _turn_away(self) -> None:
        """Say that there are too many connections, without waiting for what the client wants."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            with trio.move_on_after(1):
                await self.stream.send_all(_TURNED_AWAY)
        await self._close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif not isinstance(event, Updated):
            await super().protocol_send(event)
        elif not event.idle:
            self._set_idle_until(math.inf)
        else:
            self._set_idle_until(trio.current_time() + self.config.plain.limits.idle_seconds)
            if self.context.terminated.is_set():  # which the waiting task did not act on
                await self.idle_task.restart(self._task_group, self._idle_timeout)

    def _set_idle_until(self, moment: float) -> None:
        self._idle_until = self._idle.deadline = moment

    async def _write(self, data: bytes) -> None:
        """As hypercorn does, but for giving way to all other tasks before it begins."""
        if self.send_lock.locked():
            await self.send_lock.acquire()
        else:
            self.send_lock.acquire_nowait()
        try:
            with trio.CancelScope(shield=True):
                await self.stream.send_all(data)
            return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.send_lock.release()
        await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        """As hypercorn does, but for its read time-out, which we do not set: it costs more than a read.

        And nothing waits for the idle time of a connection whose client has left.
        """
        data, self._begun = self._begun, b""
        while True:
            direct = self._direct()
            if direct is None:
                await self.protocol.handle(RawData(data))
            else:
                await self._feed(direct, data)
            if not data:
                break
            try:
                data = bytes(await self.stream.receive_some(MAX_RECV))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
        await self.protocol.handle(Closed())
        # The client is gone: its socket would stay open for as long as one may be idle.
        await self.idle_task.stop()

    def _direct(self) -> DirectWebSocket | None:
        protocol = self.protocol.protocol
        stream = protocol.stream if isinstance(protocol, H11Protocol) else None
        if isinstance(stream, DirectWebSocket) and stream.engaged and stream.handshake.accepted:
            return stream
        return None

    async def _feed(self, direct: DirectWebSocket, data: bytes) -> None:
        left = direct.feed(data)
        while left:
            await self.protocol.handle(RawData(left))
            left = direct.feed(b"")
        await direct.attended()

    async def _idle_timeout(self) -> None:
        """Close the connection when it has been idle for too long, or is idle when the server ends."""
        terminated = self.context.terminated
        while True:
            with trio.CancelScope(deadline=self._idle_until) as self._idle:
                await terminated.wait()
            if terminated.is_set() or trio.current_time() >= self._idle_until:
                break
        if self._idle_until == math.inf:
            return
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


def install() -> None:
    """Let hypercorn serve connections this way; it has no setting for it."""
    hypercorn.protocol.H2Protocol = PatientH2  # type: ignore[attr-defined]
    hypercorn.protocol.h11.WSStream = DirectWebSocket  # type: ignore[attr-defined]
    hypercorn.protocol.h2.WSStream = StrictWSStream  # type: ignore[attr-defined]
    hypercorn.trio.run.TCPServer = PatientServer  # type: ignore[attr-defined]
