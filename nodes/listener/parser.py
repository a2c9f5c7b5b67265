"""From bytes to requests, without I/O: llhttp, and the rules that it leaves to its caller.

llhttp refuses bare line feeds, folded lines, spaces around header names, control characters, repeated or
contradicting lengths and bad chunk sizes. Refused here: any transfer coding but ``chunked``, a target
that is no path, versions other than 1.1, a missing or repeated Host, upgrades and trailers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import httptools

from cluster.errors import Refused
from nodes.api import guards
from nodes.api.limits import ListenerLimits
from nodes.api.messages import Request


@dataclass(frozen=True, slots=True)
class Arrived:
    """A whole request. After a ``last`` one the client sends nothing more."""

    request: Request
    last: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The client wants to hear that it may send its body (``Expect: 100-continue``)."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A request that is refused before it was read; what follows on its connection means nothing.

    ``request`` is what was understood of it.
    """

    request: Request
    refusal: Refused


Item = Arrived | Waiting | Broken


class Phase(Enum):
    """Where in a request the next byte belongs."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


_SPECIAL: Final = frozenset({b"host", b"transfer-encoding", b"expect"})
_WAITING: Final = Waiting()


class Parser:
    """Reads the requests of one connection, of the address ``client``. The ``on_`` methods are for llhttp."""

    def __init__(self, limits: ListenerLimits, client: str) -> None:
        self._limits = limits
        self._client = client
        self._parser = httptools.HttpRequestParser(self)
        self._items: list[Item] = []
        self._head_bytes = 0
        self.phase = Phase.BETWEEN
        self.received = 0
        """Bytes of the present body that are here."""
        self._begin()

    def feed(self, data: bytes) -> list[Item]:
        """What is known with ``data``, in order. Must not be called again after a :class:`Broken`."""
        items: list[Item] = []
        self._items = items
        try:
            self._parser.feed_data(data)
            if self.phase is not Phase.BODY and not items:
                self._count_head(len(data))
        except httptools.HttpParserError as error:
            refusal = error.__context__
            if not isinstance(refusal, Refused):
                refusal = _malformed(str(error))
            items.append(Broken(self.head, refusal))
        except Refused as refusal:
            items.append(Broken(self.head, refusal))
        if items and isinstance(items[-1], Waiting) and self.received:
            items.pop()  # the client did not wait
        return items

    @property
    def head(self) -> Request:
        """What is known of the request that is being read."""
        path, _, query = self._target.partition(b"?")
        return Request(self._method, path or b"/", query, tuple(self._headers), client=self._client)

    def _begin(self) -> None:
        self._method = ""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._size = 0
        self._expects = False
        self._body: list[bytes] = []

    def _count_head(self, size: int) -> None:
        """Bound a head that does not end. One read may also hold the end of what came before it."""
        self.phase = Phase.HEAD
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes:
            raise _header_too_large(self._limits)

    # -- called by llhttp -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()
        self.phase = Phase.HEAD

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self._limits.target_bytes:
            raise guards.target_too_long(self._limits.target_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is Phase.BODY:
            raise _malformed("trailers are not accepted")
        name, value = name.lower(), value.rstrip(b" \t")
        self._headers.append((name, value))
        self._size += len(name) + len(value) + 4
        if name in _SPECIAL:
            self._check(name, value)

    def on_headers_complete(self) -> None:
        parser, limits = self._parser, self._limits
        self._method = parser.get_method().decode()
        if self._size > limits.header_bytes or len(self._headers) > limits.headers:
            raise _header_too_large(limits)
        if parser.get_http_version() != "1.1":
            raise Refused("http_version_not_supported", "This port speaks HTTP/1.1 only.", status=505)
        if parser.should_upgrade():
            raise Refused("upgrade_not_supported", "This port speaks HTTP/1.1 only.", status=400)
        if not self._target.startswith(b"/") or b"#" in self._target:
            raise _malformed("the target is not a path")
        if self._hosts != 1:
            raise _malformed("one Host header is required")
        self.phase = Phase.BODY
        self.received = 0
        declared = next((value for name, value in self._headers if name == b"content-length"), b"0")
        if int(declared) > limits.body_bytes:
            raise guards.too_large(limits.body_bytes)
        if self._expects:
            self._items.append(_WAITING)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self.received += len(body)
        if self.received > self._limits.body_bytes:
            raise guards.too_large(self._limits.body_bytes)

    def on_message_complete(self) -> None:
        if self._items and isinstance(self._items[-1], Waiting):
            self._items.pop()
        path, _, query = self._target.partition(b"?")
        request = Request(self._method, path, query, self._headers, b"".join(self._body), self._client)
        self._items.append(Arrived(request, not self._parser.should_keep_alive()))
        self.phase = Phase.BETWEEN
        self._head_bytes = 0
        self._begin()

    def _check(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise _malformed("no transfer coding but chunked is accepted")
        elif value.lower() == b"100-continue":
            self._expects = True
        else:
            raise Refused("expectation_failed", "This expectation cannot be met.", status=417)


def _malformed(cause: str) -> Refused:
    return Refused("malformed_request", f"The request is not valid HTTP/1.1: {cause}.", status=400)


def _header_too_large(limits: ListenerLimits) -> Refused:
    return guards.header_too_large(limits.header_bytes, limits.headers)
