"""Takes messages that came whole in one frame off the bytes of a WebSocket, and leaves the rest to a library.

Libraries of pure Python parse every frame as if it could be anything, which costs more than what a small
message says. Nearly all messages are text in one frame without extensions. Everything else, control frames,
fragments, binary messages, what is too large and what breaks the protocol, is for the library, which sees
the same bytes as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TEXT: Final = 0x81
"""First byte of a text message in one frame, without extensions."""
_PING, _PONG, _CLOSE = 0x89, 0x8A, 0x88
_CONTROL: Final = frozenset({_PING, _PONG, _CLOSE})
_MASKED: Final = 0x80


class WholeFrames:
    """What one side of a connection receives: ``masked`` frames from a client, plain ones from a server.

    ``deliver`` gets the messages, UTF-8 of at most ``largest`` bytes.
    """

    def __init__(self, deliver: Callable[[bytes], object], largest: int, *, masked: bool) -> None:
        self.library_only = False
        """The library is in the middle of something: from now on everything is for it."""
        self._deliver = deliver
        self._largest = largest
        self._mask_bit = _MASKED if masked else 0
        self._shortest_head = 6 if masked else 2
        self._pending = bytearray()
        """The beginning of a frame whose rest has not come."""

    def feed(self, data: bytes) -> bytes:
        """Take whole messages off what came. What is returned is for the library; until it is nothing, ask
        again with ``b""``.
        """
        if self._pending:
            self._pending += data
            data = bytes(self._pending)
            self._pending.clear()
        if self.library_only:
            return data
        start = 0
        while start < len(data):
            if data[start] in _CONTROL:
                return self._control(data, start)
            end = self._message(data, start)
            if end is None:
                self.library_only = True
                return data[start:]
            if end > len(data) or end < 0:
                self._pending += data[start:]
                break
            start = end
        return b""

    def _control(self, data: bytes, start: int) -> bytes:
        """A control frame is for the library; it is between two frames afterwards."""
        size = data[start + 1] - self._mask_bit if start + 1 < len(data) else 0
        end = start + self._shortest_head + size
        if data[start] == _CLOSE or not 0 <= size < 126:
            self.library_only = True
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
        if data[start] != TEXT:
            return None
        if start + 2 > len(data):
            return -1
        size, width = data[start + 1] - self._mask_bit, 0
        if not 0 <= size < _MASKED:
            return None
        if size >= 126:
            width = 2 if size == 126 else 8
            if start + 2 + width > len(data):
                return -1
            size = int.from_bytes(data[start + 2 : start + 2 + width], "big")
            if size < (126 if width == 2 else 1 << 16):
                return None
        if size > self._largest:
            return None
        body = start + self._shortest_head + width
        end = body + size
        if end > len(data):
            return end
        payload = data[body:end]
        if self._mask_bit:
            payload = masked(payload, data[body - 4 : body])
        try:
            payload.decode()
        except UnicodeDecodeError:
            return None
        self._deliver(payload)
        return end


def text_frame(message: bytes, mask: bytes = b"") -> bytes:
    """A text message, UTF-8, as one frame; clients need a ``mask`` of four bytes that nobody can foresee."""
    size, bit = len(message), _MASKED if mask else 0
    if size < 126:
        head = bytes((TEXT, bit | size))
    elif size < 1 << 16:
        head = bytes((TEXT, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((TEXT, bit | 127)) + size.to_bytes(8, "big")
    return head + mask + masked(message, mask) if mask else head + message


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload under a mask of four bytes, or without it if it was."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
