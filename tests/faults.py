"""A TCP proxy that breaks connections on purpose."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import trio

DRIP_SECONDS = 0.001
RESET = struct.pack("ii", 1, 0)


@dataclass
class FaultProxy:
    """Forwards TCP to ``upstream`` until told otherwise.

    ``lose_reply_to``: once a request contains these bytes it is forwarded, but its connection is
    cut before any byte of a reply passes back; happens once. ``reply_budget``: so many more reply
    bytes pass, then everything is cut; happens once. ``delay`` (s) before each reply chunk, which
    passes ``drip`` bytes at a time when that is not 0. ``black_hole``: nothing passes, nothing is
    closed. ``refusing``: new connections are closed. ``connections`` and ``replies`` (chunks) count what
    passed.
    """

    upstream: tuple[str, int]
    port: int = 0
    lose_reply_to: bytes | None = None
    reply_budget: int | None = None
    delay: float = 0.0
    drip: int = 0
    refusing: bool = False
    connections: int = 0
    replies: int = 0
    lost: trio.Event = field(default_factory=trio.Event)
    _open: set[trio.SocketStream] = field(default_factory=set)
    _flowing: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._flowing.set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def black_hole(self, on: bool = True) -> None:
        if on and self._flowing.is_set():
            self._flowing = trio.Event()
        elif not on:
            self._flowing.set()

    async def cut(self) -> None:
        """Close every connection now, both ways."""
        for stream in list(self._open):
            await trio.aclose_forcefully(stream)

    async def reset(self) -> None:
        """Break every connection with a TCP reset, both ways."""
        for stream in list(self._open):
            with suppress(OSError):
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await self.cut()

    async def half_close(self) -> None:
        """Tell every peer that nothing more comes, but keep reading."""
        for stream in list(self._open):
            # Also in the middle of what is being sent, of which the rest is lost.
            with suppress(OSError):
                stream.socket.shutdown(socket.SHUT_WR)

    async def _serve(self, client: trio.SocketStream) -> None:
        if self.refusing:
            await trio.aclose_forcefully(client)
            return
        try:
            server = await trio.open_tcp_stream(*self.upstream)
        except OSError:
            await trio.aclose_forcefully(client)
            return
        self.connections += 1
        pair = {client, server}
        self._open |= pair
        try:
            async with trio.open_nursery() as nursery:
                muted = trio.Event()
                nursery.start_soon(self._requests, client, server, muted, nursery.cancel_scope)
                nursery.start_soon(self._replies, server, client, muted, nursery.cancel_scope)
        finally:
            self._open -= pair
            for stream in pair:
                await trio.aclose_forcefully(stream)

    async def _requests(
        self, client: trio.SocketStream, server: trio.SocketStream, muted: trio.Event, scope: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in client:
                await self._flowing.wait()
                if self.lose_reply_to is not None and self.lose_reply_to in chunk:
                    self.lose_reply_to = None
                    muted.set()
                await server.send_all(chunk)
        scope.cancel()

    async def _replies(
        self, server: trio.SocketStream, client: trio.SocketStream, muted: trio.Event, scope: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in server:
                await self._flowing.wait()
                if self.delay:
                    await trio.sleep(self.delay)
                if muted.is_set():
                    self.lost.set()
                    break
                if self.reply_budget is not None:
                    passing = bytes(chunk[: self.reply_budget])
                    self.reply_budget -= len(passing)
                    if len(passing) < len(chunk):
                        await client.send_all(passing)
                        self.reply_budget = None
                        self.lost.set()
                        break
                await self._pass_on(client, bytes(chunk))
                self.replies += 1
        scope.cancel()

    async def _pass_on(self, client: trio.SocketStream, chunk: bytes) -> None:
        size = self.drip  # which may end in between
        if not size:
            await client.send_all(chunk)
            return
        for start in range(0, len(chunk), size):
            await client.send_all(chunk[start : start + size])
            await trio.sleep(DRIP_SECONDS)


@asynccontextmanager
async def open_proxy(upstream: tuple[str, int]) -> AsyncIterator[FaultProxy]:
    """A proxy in front of ``upstream`` (host, port) on a free loopback port."""
    proxy = FaultProxy(upstream)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, proxy._serve, 0, host="127.0.0.1"))
        proxy.port = listeners[0].socket.getsockname()[1]
        yield proxy
        nursery.cancel_scope.cancel()
