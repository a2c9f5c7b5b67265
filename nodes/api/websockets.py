"""WebSockets of the main port: wsproto, and limits that hypercorn does not keep.

Nothing is inflated: a few bytes of a client would become a thousand times as many here. A message that is
too large is not collected further; the application gets its beginning, finds it too large and says so. A
handshake that fails, and bytes that come before it is over, end the connection, which would stay open for
ever otherwise. A client that breaks RFC 6455 is told so by the code of the close frame; one that goes on
sending pings or empty fragments is let go (1008).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import orjson
import trio
from hypercorn.protocol.events import Body, Data, EndBody, Event, Request, Response, StreamClosed
from hypercorn.protocol.ws_stream import FrameTooLargeError, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from nodes.api.allowance import SIGNALS, SIGNALS_PER_SECOND, Allowance

_REFUSAL: Final = orjson.dumps(
    {"reason": "malformed_request", "message": "This is no WebSocket handshake of version 13."}
)
_EXTENSIONS: Final = b"sec-websocket-extensions"


class StrictWSStream(WSStream):
    """One WebSocket, over either version of HTTP."""

    _is_full = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._signals = Allowance(SIGNALS, SIGNALS_PER_SECOND, trio.current_time())

    async def handle(self, event: Event) -> None:
        if isinstance(event, Request):
            headers = [header for header in event.headers if header[0].lower() != _EXTENSIONS]
            await super().handle(replace(event, headers=headers))
            if self.closed:
                await self.send(StreamClosed(stream_id=self.stream_id))
        elif not isinstance(event, Body | Data):
            await super().handle(event)
        elif self.closed or self._is_full:
            return
        elif self.handshake.accepted:
            await super().handle(event)
        else:
            await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_error_response(self, status_code: int) -> None:
        """Instead of the handshake; with a reason, as every refusal has one."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(_REFUSAL)),
            (b"connection", b"close"),
        ]
        await self.send(Response(self.stream_id, headers, status_code))
        await self.send(Body(self.stream_id, _REFUSAL))
        await self.send(EndBody(self.stream_id))

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if not self._may(event):
                await self._send_wsproto_event(CloseConnection(CloseReason.POLICY_VIOLATION))
                await self.send(StreamClosed(stream_id=self.stream_id))
                return
            if isinstance(event, Message):
                await self._collect(event)
                if self._is_full:
                    return
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                is_theirs = self.connection.state is ConnectionState.REMOTE_CLOSING
                answer = event.response() if is_theirs else CloseConnection(event.code, event.reason)
                await self._send_wsproto_event(answer)
                await self.send(StreamClosed(stream_id=self.stream_id))
                return

    def _may(self, event: object) -> bool:
        is_empty = isinstance(event, Message) and not event.data and not event.message_finished
        return not (is_empty or isinstance(event, Ping)) or self._signals.spend(trio.current_time())

    async def _collect(self, event: Message[Any]) -> None:
        try:
            self.buffer.extend(event)
        except FrameTooLargeError:
            self._is_full = True
        if self.app_put is not None and (event.message_finished or self._is_full):
            await self.app_put(self.buffer.to_message())
            self.buffer.clear()
