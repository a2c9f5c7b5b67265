"""Connections that may idle between requests for longer than a header may take to arrive.

Hypercorn has one time-out for both. As the deadline of a header it has to be short; as that of an idle
connection it has to be longer than clients and proxies keep one (httpx and HAProxy: 5 s), or now and
then one sends a request on a connection that is closed at that very moment and never gets an answer.
"""

from __future__ import annotations

from typing import Final

import hypercorn.trio.run
import trio
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer

KEEP_ALIVE_SECONDS: Final = 90.0
"""How long a connection that had an answer may idle; longer than any client should keep it."""


class PatientServer(TCPServer):
    """Serves one connection. Until its first answer ``keep_alive_timeout`` holds."""

    _answered = False

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


def install() -> None:
    """Let hypercorn serve connections this way; it has no setting for it."""
    hypercorn.trio.run.TCPServer = PatientServer  # type: ignore[attr-defined]
