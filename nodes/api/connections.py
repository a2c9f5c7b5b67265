"""Connections that harm nobody else, and may idle for longer than a header may take to arrive.

What goes wrong on a connection would end hypercorn's whole server; here it ends the connection. Data of
an HTTP/2 request that was answered before its end is the known case, and it does not even do that.

Hypercorn has one time-out for both. As the deadline of a header it has to be short; as that of an idle
connection it has to be longer than clients and proxies keep one (httpx and HAProxy: 5 s), or now and
then one sends a request on a connection that is closed at that very moment and never gets an answer.
"""

from __future__ import annotations

import h2.events
import hypercorn.protocol
import hypercorn.trio.run
import structlog
import trio
from hypercorn.events import Event, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import TCPServer

from nodes.api.limits import KEEP_ALIVE_SECONDS

log = structlog.get_logger(__name__)


class PatientServer(TCPServer):
    """Serves one connection. Until its first answer ``keep_alive_timeout`` holds."""

    _answered = False

    async def run(self) -> None:
        try:
            await super().run()
        except* Exception as broken:
            log.error("connection_broke", exc_info=broken)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and event.idle:
            self._answered = True
        await super().protocol_send(event)

    async def _idle_timeout(self) -> None:
        seconds = KEEP_ALIVE_SECONDS if self._answered else self.config.keep_alive_timeout
        with trio.move_on_after(seconds):
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


class PatientH2(H2Protocol):
    """Lets a client send on after its request was answered."""

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                # Given back at once: the window belongs to the other streams of the connection too.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._flush()
            else:
                await super()._handle_events([event])


def install() -> None:
    """Let hypercorn serve connections this way; it has no setting for it."""
    hypercorn.protocol.H2Protocol = PatientH2  # type: ignore[attr-defined]
    hypercorn.trio.run.TCPServer = PatientServer  # type: ignore[attr-defined]
