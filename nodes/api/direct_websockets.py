"""WebSockets whose messages go straight to who wants them.

On its way through hypercorn a message is parsed by a library of pure Python, copied, queued, and taken by a
task that has to be woken for it. A node that serves thousands of small messages a second spends more on that
than on what they say. So an application may :meth:`engage` the stream it finds in its scope. From then on
whole text messages in one masked frame, which is how all clients send them unless asked for more, are taken
off the wire here and given to a function. Everything else, control frames, fragments, binary messages, what
is too large and what breaks the protocol, is still for the library, which sees the same bytes as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio
from hypercorn.protocol.events import Data, Event, Request, StreamClosed
from wsproto.connection import ConnectionState

from nodes.api.websockets import StrictWSStream

STATE_KEY: Final = "headrace.websocket"
"""Where in the ``state`` of its scope an application finds the stream."""

Take = Callable[[bytes | str], bool]
"""Takes a message; False: no further ones."""

_TEXT: Final = 0x81
"""First byte of a text message in one frame, without extensions."""
_PING, _PONG, _CLOSE = 0x89, 0x8A, 0x88
_CONTROL: Final = frozenset({_PING, _PONG, _CLOSE})
_MASKED: Final = 0x80
_HEAD: Final = 6
"""Bytes of the shortest head of a masked frame."""


class DirectWebSocket(StrictWSStream):
    """One WebSocket over HTTP/1.1. It has no extensions, so a message is what its frame says."""

    engaged = False
    """Whether :meth:`feed` is to be given what comes, once the handshake is over."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._take: Take | None = None
        self._early: list[bytes | str] = []
        self._attended = trio.Event()
        self._over = trio.Event()
        self._pending = bytearray()
        """The beginning of a frame whose rest has not come."""
        self._library_only = False
        """The library is in the middle of something: from now on everything is for it."""

    # -- the application's side ---------------------------------------------------------------

    def engage(self) -> None:
        """Let messages come by :meth:`deliver`; to be asked before the handshake is accepted."""
        self.engaged = True
        self._queue, self.app_put = self.app_put, self._put

    async def deliver(self, take: Take) -> None:
        """Give all messages to ``take``, in order, until it says False or the connection is over."""
        early, self._early = self._early, []
        self._take = take
        for message in early:
            self._deliver(message)
        self._attended.set()
        try:
            await self._over.wait()
        finally:
            self._over.set()

    async def send_text(self, message: bytes) -> None:
        """Send a text message, UTF-8. No-op once the connection is closing."""
        if self.closed or self.connection.state is not ConnectionState.OPEN:
            return
        size = len(message)
        if size < 126:
            head = bytes((_TEXT, size))
        elif size < 1 << 16:
            head = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            head = b"\x81\x7f" + size.to_bytes(8, "big")
        await self.send(Data(stream_id=self.stream_id, data=head + message))

    # -- the server's side --------------------------------------------------------------------

    async def handle(self, event: Event) -> None:
        if isinstance(event, Request):
            event.state[STATE_KEY] = self
        await super().handle(event)
        if isinstance(event, StreamClosed):
            self._attended.set()
            self._over.set()

    async def attended(self) -> None:
        """Wait until somebody takes messages, or nobody ever will: no more is read before."""
        await self._attended.wait()

    def feed(self, data: bytes) -> bytes:
        """Take whole messages off what came. What is returned is for the library; until it is nothing, ask
        again with ``b""``.
        """
        if self._library_only:
            return data
        if self._pending:
            self._pending += data
            data = bytes(self._pending)
            self._pending.clear()
        start = 0
        while start < len(data):
            if data[start] in _CONTROL:
                return self._control(data, start)
            end = self._message(data, start)
            if end is None:
                self._library_only = True
                return data[start:]
            if end > len(data) or end < 0:
                self._pending += data[start:]
                break
            start = end
        return b""

    def _control(self, data: bytes, start: int) -> bytes:
        """A control frame is for the library; it is between two frames afterwards."""
        if self.connection.state is not ConnectionState.OPEN or data[start] == _CLOSE:
            self._library_only = True
            return data[start:]
        size = data[start + 1] - _MASKED if start + 1 < len(data) else 0
        end = start + _HEAD + size
        if not 0 <= size < 126:
            self._library_only = True
            return data[start:]
        if end > len(data):
            self._pending += data[start:]
            return b""
        self._pending += data[end:]
        return data[start:end]

    def _message(self, data: bytes, start: int) -> int | None:
        """Where the frame at ``start`` ends; it was delivered if that is not after the end of ``data``.
        Negative: not known yet. None: the library has to see to it.
        """
        if data[start] != _TEXT or self.connection.state is not ConnectionState.OPEN:
            return None
        if start + 2 > len(data):
            return -1
        size, width = data[start + 1] - _MASKED, 0
        if size >= 126:
            width = 2 if size == 126 else 8
            if start + 2 + width > len(data):
                return -1
            size = int.from_bytes(data[start + 2 : start + 2 + width], "big")
            if size < (126 if width == 2 else 1 << 16):
                return None
        if not 0 <= size <= self.buffer.max_length:
            return None
        body = start + _HEAD + width
        end = body + size
        if end > len(data):
            return end
        payload = _unmasked(data[body:end], data[body - 4 : body])
        try:
            payload.decode()
        except UnicodeDecodeError:
            return None
        self._deliver(payload)
        return end

    async def _put(self, event: Any) -> None:
        """What the library made of the bytes it got."""
        if event["type"] == "websocket.receive":
            self._deliver(event["text"] if event["bytes"] is None else event["bytes"])
        elif self._queue is not None:
            await self._queue(event)

    def _deliver(self, message: bytes | str) -> None:
        if self._take is None:
            self._early.append(message)
        elif not self._over.is_set() and not self._take(message):
            self._over.set()


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
