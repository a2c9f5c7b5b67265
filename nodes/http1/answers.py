"""From responses to bytes: head and body in one piece, without I/O."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from nodes.api.messages import Response

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Calendar:
    """The Date header, made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def line(self, now: float) -> bytes:
        """The header line for ``now``, in seconds since 1970."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


def encode(response: Response, date_line: bytes, *, close: bool, to_head: bool = False) -> bytes:
    """``response`` as it travels; ``close`` says that no other follows on its connection.

    An answer ``to_head`` says how long it would be. Of a stream, this is the beginning: without a length,
    each piece says its own (:func:`piece`), unless it ends with the connection.
    """
    parts = [_STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status]
    has_body = response.status not in _BODILESS
    is_sized = not has_body
    for name, value in response.headers:
        if name == b"content-length":
            if not has_body:
                continue
            is_sized = True
        parts += (name, b": ", value, b"\r\n")
    if response.stream is not None:
        parts.append(b"" if close else b"transfer-encoding: chunked\r\n")
    elif not is_sized:
        parts.append(b"content-length: %d\r\n" % len(response.body))
    parts.append(date_line)
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    if has_body and not to_head:
        parts.append(response.body)
    return b"".join(parts)


def piece(data: bytes) -> bytes:
    """A piece of a stream that does not end with its connection; the last one is ``b""``."""
    return b"%x\r\n%b\r\n" % (len(data), data)
