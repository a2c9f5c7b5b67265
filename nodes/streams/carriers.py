"""The two carriers: an ASGI application around the HTTP one that takes ``/api/streams`` itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from nodes.api.direct_websockets import STATE_KEY, DirectWebSocket, Take
from nodes.api.messages import Request, Response
from nodes.api.serving import Asgi
from nodes.streams.codec import ProtocolError
from nodes.streams.door import PATH, StreamDoor

_PATH: Final = PATH.decode()
CONTENT_TYPE: Final = b"application/x-ndjson"
_NORMAL, _POLICY, _TOO_BIG = 1000, 1008, 1009

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def with_streams(app: Asgi, door: StreamDoor, max_message_bytes: int) -> Asgi:
    """``app``, and streams of workers beside it."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket" and scope["path"] == _PATH:
            await _serve_websocket(door, scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == _PATH and scope["method"] == "POST":
            await _serve_http(door, max_message_bytes, scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


def _request(scope: Scope, method: str) -> Request:
    raw_path = scope.get("raw_path", b"") or scope["path"].encode()
    return Request(method, raw_path, scope["query_string"], tuple(scope["headers"]))


# -- WebSocket --------------------------------------------------------------------------------


class WebSocketCarrier:
    """One message of the protocol is one text message."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def deliver(self, take: Take) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            if event["type"] == "websocket.receive":
                data: bytes | str | None = event.get("bytes")
                if not take(data if data is not None else str(event.get("text") or "")):
                    return

    async def send(self, message: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": None, "text": message.decode()})

    async def close(self, failure: ProtocolError | None) -> None:
        code = _NORMAL
        if failure is not None:
            code = _TOO_BIG if failure.reason == "message_too_large" else _POLICY
        await self._send({"type": "websocket.close", "code": code, "reason": ""})


class DirectCarrier(WebSocketCarrier):
    """The same without a detour, where the server and the client allow it."""

    def __init__(self, receive: Receive, send: Send, socket: DirectWebSocket) -> None:
        super().__init__(receive, send)
        self._socket = socket

    async def deliver(self, take: Take) -> None:
        await self._socket.deliver(take)

    async def send(self, message: bytes) -> None:
        await self._socket.send_text(message)


async def _serve_websocket(door: StreamDoor, scope: Scope, receive: Receive, send: Send) -> None:
    event = await receive()
    if event["type"] != "websocket.connect":
        return
    admitted = await door.admit(_request(scope, "GET"))
    if isinstance(admitted, Response):
        await send(
            {
                "type": "websocket.http.response.start",
                "status": admitted.status,
                "headers": admitted.headers,
            }
        )
        await send({"type": "websocket.http.response.body", "body": admitted.body, "more_body": False})
        return
    socket = scope["state"].get(STATE_KEY)
    carrier = WebSocketCarrier(receive, send)
    if isinstance(socket, DirectWebSocket):
        socket.engage()
        carrier = DirectCarrier(receive, send, socket)
    await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    await door.hub.serve(carrier, admitted)


# -- HTTP/2 -----------------------------------------------------------------------------------


class NdjsonCarrier:
    """One message of the protocol is one line of the request's or the response's body."""

    def __init__(self, receive: Receive, send: Send, max_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._scanned = 0

    async def deliver(self, take: Take) -> None:
        while (line := await self._line()) is not None and take(line):
            pass

    async def _line(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                if line.strip():
                    return line
                continue
            self._scanned = len(self._buffer)
            if self._scanned > self._max_bytes:
                return bytes(self._buffer)
            event = await self._receive()
            if event["type"] == "http.disconnect":
                return None
            self._buffer += event.get("body", b"")
            if not event.get("more_body", False) and b"\n" not in self._buffer:
                return None

    async def send(self, message: bytes) -> None:
        await self._send({"type": "http.response.body", "body": message + b"\n", "more_body": True})

    async def close(self, failure: ProtocolError | None) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _serve_http(
    door: StreamDoor, max_message_bytes: int, scope: Scope, receive: Receive, send: Send
) -> None:
    admitted = await door.admit(_request(scope, "POST"))
    if isinstance(admitted, Response):
        await send({"type": "http.response.start", "status": admitted.status, "headers": admitted.headers})
        await send({"type": "http.response.body", "body": admitted.body, "more_body": False})
        return
    headers = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    # Some proxies hold the head back until there is a body; an empty array is a sign of life.
    await send({"type": "http.response.body", "body": b"[]\n", "more_body": True})
    await door.hub.serve(NdjsonCarrier(receive, send, max_message_bytes), admitted)
