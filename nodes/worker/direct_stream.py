"""The stream under a worker's WebSocket: messages go past the library that keeps the WebSocket.

The library does the handshake, answers pings and closes. What it would only parse, copy and queue is taken
off the wire before it sees it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import trio

from nodes.streams.whole_frames import WholeFrames, text_frame

_HEAD_END: Final = b"\r\n\r\n"
_SWITCHED: Final = b"HTTP/1.1 101 "
_LARGEST_HEAD: Final = 64 * 1024


class DirectStream(trio.abc.Stream):
    """``stream`` as the library is to see it. Messages have at most ``largest`` bytes."""

    def __init__(self, stream: trio.abc.Stream, largest: int) -> None:
        self._stream = stream
        self._frames = WholeFrames(self._deliver, largest, masked=False)
        self._head: bytes | None = b""
        """The head of the answer to the handshake, as far as it came; None once it is complete."""
        self._sending = trio.Lock()
        self._take: Callable[[bytes], object] | None = None
        self._early: list[bytes] = []

    def attend(self, take: Callable[[bytes], object]) -> None:
        """Give messages to ``take`` from now on, also those that came already. It must not raise."""
        self._take = take
        early, self._early = self._early, []
        for message in early:
            take(message)

    def _deliver(self, message: bytes) -> None:
        if self._take is None:
            self._early.append(message)
        else:
            self._take(message)

    async def send_text(self, message: bytes) -> None:
        """Send a text message, UTF-8."""
        await self.send_all(text_frame(message, os.urandom(4)))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # The library and the worker both send; without contention a lock need not cost a turn of the loop.
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            await self._stream.send_all(data)
        finally:
            self._sending.release()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        left = b"" if self._head is not None else self._frames.feed(b"")
        while not left:
            data = bytes(await self._stream.receive_some(max_bytes))
            if not data:
                return data
            left = self._frames.feed(data) if self._head is None else self._shake_hands(self._head + data)
        return left

    def _shake_hands(self, head: bytes) -> bytes:
        """What is for the library, of an answer as far as it came."""
        end = head.find(_HEAD_END) + len(_HEAD_END)
        if end < len(_HEAD_END) and len(head) < _LARGEST_HEAD:
            self._head = head
            return b""
        self._head = None
        if not head.startswith(_SWITCHED):
            self._frames.library_only = True
            return head
        return head[:end] + self._frames.feed(head[end:])

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()
