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
from nodes.streams.whole_frames import WholeFrames, text_frame

STATE_KEY: Final = "headrace.websocket"
"""Where in the ``state`` of its scope an application finds the stream."""

Take = Callable[[bytes | str], bool]
"""Takes a message; False: no further ones."""


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
        self._frames = WholeFrames(self._deliver, self.buffer.max_length, masked=True)

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
        await self.send(Data(stream_id=self.stream_id, data=text_frame(message)))

    # -- the server's side --------------------------------------------------------------------

    async def handle(self, event: Event) -> None:
        if isinstance(event, Request):
            event.state[STATE_KEY] = self
        await super().handle(event)
        if isinstance(event, StreamClosed):
            self._attended.set()
            self._over.set()

    async def attended(self) -> None:
        """Wait until somebody takes messages, or nobody ever will: no more is read before.

        Later it does not give way: the next read does, and a message would wake this task twice.
        """
        if not self._attended.is_set():
            await self._attended.wait()

    def feed(self, data: bytes) -> bytes:
        """Take whole messages off what came. What is returned is for the library; until it is nothing, ask
        again with ``b""``.
        """
        if self.connection.state is not ConnectionState.OPEN:
            self._frames.library_only = True
        return self._frames.feed(data)

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
