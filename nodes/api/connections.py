"""Connections that harm nobody else, and may idle for longer than a header may take to arrive.

What goes wrong on a connection would end hypercorn's whole server; here it ends the connection. There are
at most as many of them as the configuration says; one more is told to go elsewhere.

Hypercorn has one time-out for both. As the deadline of a header it has to be short; as that of an idle
connection it has to be longer than clients and proxies keep one (httpx and HAProxy: 5 s), or now and
then one sends a request on a connection that is closed at that very moment and never gets an answer.

What comes on a WebSocket that its application has engaged goes there directly.
"""

from __future__ import annotations

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
from nodes.api.http1 import StrictH11
from nodes.api.http2 import PatientH2
from nodes.api.limits import KEEP_ALIVE_SECONDS, MAX_CONNECTIONS
from nodes.api.websockets import StrictWSStream

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


class ServingConfig(Config):
    """Hypercorn's settings, and how many connections there may be, and are."""

    most_connections: int = MAX_CONNECTIONS
    open_connections: int = 0


class PatientServer(TCPServer):
    """Serves one connection. Until its first answer ``keep_alive_timeout`` holds."""

    config: ServingConfig
    _answered = False

    async def run(self) -> None:
        if self.config.open_connections >= self.config.most_connections:
            await self._turn_away()
            return
        self.config.open_connections += 1
        try:
            await super().run()
        except* Exception as broken:
            log.error("connection_broke", exc_info=broken)
        finally:
            self.config.open_connections -= 1

    async def _turn_away(self) -> None:
        """Say that there are too many connections, without waiting for what the client wants."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            with trio.move_on_after(1):
                await self.stream.send_all(_TURNED_AWAY)
        await self._close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and event.idle:
            self._answered = True
        await super().protocol_send(event)

    async def _read_data(self) -> None:
        """As hypercorn does, but for its read time-out, which we do not set: it costs more than a read."""
        while True:
            try:
                data = await self.stream.receive_some(MAX_RECV)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            direct = self._direct()
            if direct is None:
                await self.protocol.handle(RawData(bytes(data)))
            else:
                await self._feed(direct, bytes(data))
            if not data:
                break
        await self.protocol.handle(Closed())

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
        seconds = KEEP_ALIVE_SECONDS if self._answered else self.config.keep_alive_timeout
        with trio.move_on_after(seconds):
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


def install() -> None:
    """Let hypercorn serve connections this way; it has no setting for it."""
    hypercorn.protocol.H11Protocol = StrictH11  # type: ignore[attr-defined]
    hypercorn.protocol.H2Protocol = PatientH2  # type: ignore[attr-defined]
    hypercorn.protocol.h11.WSStream = DirectWebSocket  # type: ignore[attr-defined]
    hypercorn.protocol.h2.WSStream = StrictWSStream  # type: ignore[attr-defined]
    hypercorn.trio.run.TCPServer = PatientServer  # type: ignore[attr-defined]
