"""From bytes to requests, without I/O: llhttp, and the rules that it leaves to its caller.

llhttp refuses bare line feeds, folded lines, spaces around header names, control characters, repeated or
contradicting lengths and bad chunk sizes. Refused here: any transfer coding but ``chunked``, a target
that is no path, other versions, a missing or repeated Host.

Workers need no more. For others there is HTTP/1.0 (health checks of balancers), one request a connection;
trailers, which are thrown away; HTTP/2 for who begins with it; and WebSockets. Any other upgrade is passed
over, as RFC 9110 7.8 allows: what clients offer with it (h2c) would make a proxy that passes it on a tunnel
past all that the proxy decides about requests (CWE-444). Who reads on after an upgrade gets the head as it
was understood here.
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


@dataclass(frozen=True, slots=True)
class Handover:
    """What follows is another protocol; ``data`` is how it begins. Nothing else follows."""

    data: bytes


Item = Arrived | Waiting | Broken | Handover


class Phase(Enum):
    """Where in a request the next byte belongs."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""How HTTP/2 begins (RFC 9113 3.4)."""

_FRAMING: Final = 8
"""Most bytes that a byte of a body may come with, besides ``_FREE_FRAMING``; bytes sent one by one need six.

Chunk extensions and trailers mean nothing here, and would be read for as long as a body may take.
"""
_FREE_FRAMING: Final = 128 * 1024
_LENGTHS: Final = (b"content-length", b"transfer-encoding")

_SPECIAL: Final = frozenset({b"host", b"transfer-encoding", b"expect"})
_WAITING: Final = Waiting()


class Parser:
    """Reads the requests of one connection, of the address ``client``. The ``on_`` methods are for llhttp."""

    def __init__(self, limits: ListenerLimits, client: str, *, for_workers: bool) -> None:
        self._limits = limits
        self._client = client
        self._for_workers = for_workers
        self._opening: bytes | None = None if for_workers else b""
        """What came as long as it may still be HTTP/2."""
        self._parser = httptools.HttpRequestParser(self)
        self._items: list[Item] = []
        self._head_bytes = 0
        self._body_bytes = 0
        self.phase = Phase.BETWEEN
        self.received = 0
        """Bytes of the present body that are here."""
        self._begin()

    def feed(self, data: bytes) -> list[Item]:
        """What is known with ``data``, in order.

        Must not be called again after a :class:`Broken` or a :class:`Handover`.
        """
        items: list[Item] = []
        self._items = items
        if self._opening is not None:
            data = self._opening + data
            if data.startswith(PREFACE):
                return [Handover(data)]
            if PREFACE.startswith(data):
                self._opening = data
                self.phase = Phase.HEAD
                return items
            self._opening = None
        try:
            self._read(data)
            if not items or isinstance(items[-1], Waiting):
                self._count(len(data))
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

    def end(self) -> None:
        """Nothing is fed any more: let go of llhttp, which refers back to this.

        Thousands of ended connections would wait for a full collection of garbage otherwise.
        """
        del self._parser

    @property
    def head(self) -> Request:
        """What is known of the request that is being read."""
        path, _, query = self._target.partition(b"?")
        method = self._parser.get_method().decode() if self._target else ""
        return Request(method, path or b"/", query, tuple(self._headers), client=self._client)

    def _begin(self) -> None:
        self._method = ""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._size = 0
        self._expects = False
        self._upgrades = False
        self._version = ""
        self._body: list[bytes] = []

    def _read(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
            if self._is_websocket():
                self._items.append(Handover(self._rewritten(b"connection", b"connection: upgrade") + rest))
                return
            # llhttp has passed over the body as well; so it reads the same request without the offer.
            data = self._rewritten(b"upgrade") + rest
            self._parser = httptools.HttpRequestParser(self)

    def _is_websocket(self) -> bool:
        """Whether that is what is asked for. Raises Refused for a handshake with a body."""
        asked = [value.lower() for name, value in self._headers if name == b"upgrade"]
        if asked != [b"websocket"] or self._method != "GET" or self._version != "1.1":
            return False
        lengths = {name: value for name, value in self._headers if name in _LENGTHS}
        if lengths and lengths != {b"content-length": b"0"}:
            raise _malformed("the handshake of a WebSocket has no body")
        return True

    def _rewritten(self, without: bytes, *more: bytes) -> bytes:
        """The head as it was understood, but for the headers called ``without``, and with ``more`` lines."""
        lines = [b"%b %b HTTP/%b" % (self._method.encode(), self._target, self._version.encode())]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != without]
        return b"\r\n".join((*lines, *more, b"", b""))

    def _count(self, size: int) -> None:
        """Bound a head that does not end, and what comes with a body and is none of it.

        One read may also hold the end of what came before it.
        """
        limit = self._limits.header_bytes
        if self.phase is Phase.BODY:
            self._body_bytes += size
            if self._body_bytes > _FREE_FRAMING + _FRAMING * self.received:
                raise _malformed("the body is hardly anything but framing")
            return
        self.phase = Phase.HEAD
        self._head_bytes += size
        if self._head_bytes > limit:
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
            if self._for_workers:
                raise _malformed("trailers are not accepted")
            return
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
        self._version = parser.get_http_version()
        if self._version != "1.1":
            self._check_version()
        elif self._hosts != 1:
            raise _malformed("one Host header is required")
        if not self._target.startswith(b"/") or b"#" in self._target or self._method == "CONNECT":
            raise _malformed("the target is not a path")
        self._upgrades = parser.should_upgrade()
        if self._upgrades and self._for_workers:
            raise Refused("upgrade_not_supported", "This port speaks HTTP/1.1 only.", status=400)
        self.phase = Phase.BODY
        self.received = 0
        self._body_bytes = 0
        declared = next((value for name, value in self._headers if name == b"content-length"), b"0")
        if int(declared) > limits.body_bytes:
            raise guards.too_large(limits.body_bytes)
        if self._expects and not self._upgrades:
            self._items.append(_WAITING)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self.received += len(body)
        if self.received > self._limits.body_bytes:
            raise guards.too_large(self._limits.body_bytes)

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        if self._items and isinstance(self._items[-1], Waiting):
            self._items.pop()
        path, _, query = self._target.partition(b"?")
        request = Request(self._method, path, query, self._headers, b"".join(self._body), self._client)
        last = self._version != "1.1" or not self._parser.should_keep_alive()
        self._items.append(Arrived(request, last))
        self.phase = Phase.BETWEEN
        self._head_bytes = 0
        self._begin()

    def _check_version(self) -> None:
        """Raises Refused for what is not HTTP/1.1, but for HTTP/1.0 that all readers understand alike."""
        if self._for_workers or self._version != "1.0":
            raise Refused("http_version_not_supported", "This port speaks HTTP/1.1 only.", status=505)
        self._expects = False
        if self._hosts > 1:
            raise _malformed("one Host header is enough")
        if any(name == b"transfer-encoding" for name, _ in self._headers):
            raise _malformed("HTTP/1.0 has no transfer codings")

    def _check(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise _malformed("no transfer coding but chunked is accepted", status=501)
        elif value.lower() == b"100-continue":
            self._expects = True
        else:
            raise Refused("expectation_failed", "This expectation cannot be met.", status=417)


def _malformed(cause: str, status: int = 400) -> Refused:
    return Refused("malformed_request", f"The request is not valid HTTP/1.1: {cause}.", status=status)


def _header_too_large(limits: ListenerLimits) -> Refused:
    return guards.header_too_large(limits.header_bytes, limits.headers)
