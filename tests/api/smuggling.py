"""Requests that two readers could understand differently, each with another one hidden behind it.

Public classes of request smuggling and of malformed heads. ``HIDDEN`` must never reach the pipeline as a
request of its own where it is part of the request before it, or follows something that is no request.
"""

from __future__ import annotations

from typing import Final

HIDDEN: Final = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"


def _post(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"POST /x HTTP/1.1", b"Host: h", *lines, b"", b"")) + body


_CHUNKED: Final = b"Transfer-Encoding: chunked"
_LENGTH: Final = b"Content-Length: 5"
_END: Final = b"0\r\n\r\n"
_FIVE: Final = b"5\r\nhello\r\n"


def _chunks(body: bytes, *lines: bytes) -> bytes:
    return _post(_CHUNKED, *lines, body=body + HIDDEN)


def _length(value: bytes) -> bytes:
    return _post(b"Content-Length: " + value, body=b"hello" + HIDDEN)


def _coding(line: bytes) -> bytes:
    return _post(line, body=_END + HIDDEN)


REFUSED: Final[dict[str, bytes]] = {
    # Two ways to tell the length.
    "length-then-chunked": _post(_LENGTH, _CHUNKED, body=_END + HIDDEN),
    "chunked-then-length": _post(_CHUNKED, _LENGTH, body=_END + HIDDEN),
    "two-equal-lengths": _post(_LENGTH, _LENGTH, body=b"hello" + HIDDEN),
    "two-lengths": _post(_LENGTH, b"Content-Length: 6", body=b"hello" + HIDDEN),
    "a-list-of-lengths": _length(b"5, 5"),
    "length-in-a-trailer": _chunks(b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n"),
    # Lengths that are no number.
    "length-plus": _length(b"+5"),
    "length-minus": _length(b"-5"),
    "length-hex": _length(b"0x5"),
    "length-float": _length(b"5.0"),
    "length-words": _length(b"5 5"),
    "length-empty": _length(b""),
    "length-overflow": _length(b"18446744073709551621"),
    "length-underscore": _length(b"1_0"),
    "length-other-digits": _length("\u0665".encode()),
    # Transfer codings.
    "coding-unknown": _coding(b"Transfer-Encoding: xchunked"),
    "coding-identity": _coding(b"Transfer-Encoding: identity"),
    "coding-gzip-chunked": _coding(b"Transfer-Encoding: gzip, chunked"),
    "coding-chunked-gzip": _coding(b"Transfer-Encoding: chunked, gzip"),
    "coding-twice": _post(_CHUNKED, _CHUNKED, body=_END + HIDDEN),
    "coding-twice-different": _post(_CHUNKED, b"Transfer-Encoding: cow", body=_END + HIDDEN),
    "coding-empty-member": _coding(b"Transfer-Encoding: ,chunked"),
    "coding-quoted": _coding(b'Transfer-Encoding: "chunked"'),
    "coding-parameter": _coding(b"Transfer-Encoding: chunked;q=1"),
    "coding-vertical-tab": _coding(b"Transfer-Encoding: \x0bchunked"),
    "coding-space-before-colon": _coding(b"Transfer-Encoding : chunked"),
    "coding-tab-before-colon": _coding(b"Transfer-Encoding\t: chunked"),
    "coding-folded": _coding(b"Transfer-Encoding:\r\n chunked"),
    "coding-after-bare-lf": _coding(b"X: y\nTransfer-Encoding: chunked"),
    "coding-after-bare-cr": _coding(b"X: y\rTransfer-Encoding: chunked"),
    "coding-after-nul": _coding(b"X: y\x00Transfer-Encoding: chunked"),
    # Chunks.
    "chunk-negative": _chunks(b"-5\r\nhello\r\n0\r\n\r\n"),
    "chunk-hex-prefix": _chunks(b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk-overflow": _chunks(b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "chunk-space": _chunks(b" 5\r\nhello\r\n0\r\n\r\n"),
    "chunk-no-size": _chunks(b"\r\nhello\r\n0\r\n\r\n"),
    "chunk-bare-lf": _chunks(b"5\nhello\r\n0\r\n\r\n"),
    "chunk-extension-with-lf": _chunks(b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "chunk-too-short": _chunks(b"4\r\nhello\r\n0\r\n\r\n"),
    "chunk-without-end": _chunks(b"5\r\nhello0\r\n\r\n"),
    "trailer": _chunks(b"5\r\nhello\r\n0\r\nX: y\r\n\r\n"),
    # Heads.
    "folded-line": _post(b"X: a", b" b", _LENGTH, body=b"hello" + HIDDEN),
    "folded-first-line": b"GET /x HTTP/1.1\r\n Host: h\r\n\r\n" + HIDDEN,
    "bare-line-feeds": b"GET /x HTTP/1.1\nHost: h\n\n" + HIDDEN,
    "head-ends-with-bare-lf": b"GET /x HTTP/1.1\r\nHost: h\r\n\n" + HIDDEN,
    "nul-in-a-name": _post(b"X\x00Y: a") + HIDDEN,
    "nul-in-a-value": _post(b"X: a\x00b") + HIDDEN,
    "control-in-a-value": _post(b"X: a\x01b") + HIDDEN,
    "space-before-colon": _post(b"Content-Length : 5", body=b"hello" + HIDDEN),
    "no-name": _post(b": 5") + HIDDEN,
    "no-colon": _post(b"nonsense") + HIDDEN,
    "name-with-high-byte": _post(b"Content-Length\xff: 5", body=b"hello" + HIDDEN),
    "no-host": b"GET /x HTTP/1.1\r\n\r\n" + HIDDEN,
    "two-hosts": _post(b"Host: other") + HIDDEN,
    # Targets and versions.
    "absolute-target": b"GET http://other/x HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "authority-target": b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "tunnel-to-a-path": b"CONNECT /x HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "asterisk-target": b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "relative-target": b"GET x HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "fragment": b"GET /x#y HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "target-with-tab": b"GET /x\ty HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "target-with-high-byte": b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "version-0.9": b"GET /x\r\n" + HIDDEN,
    "version-1.0": b"GET /x HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n" + HIDDEN,
    "version-1.2": b"GET /x HTTP/1.2\r\nHost: h\r\n\r\n" + HIDDEN,
    "version-2.0": b"GET /x HTTP/2.0\r\nHost: h\r\n\r\n" + HIDDEN,
    "version-lower-case": b"GET /x http/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "http2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "upgrade": _post(b"Connection: Upgrade", b"Upgrade: h2c", _LENGTH, body=b"hello" + HIDDEN),
    "expectation": _post(b"Expect: the-moon", _LENGTH, body=b"hello" + HIDDEN),
    "tls-hello": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + HIDDEN,
}
"""What workers may not send: it has one answer and the end of the connection."""

ONE_REQUEST: Final[dict[str, bytes]] = {
    "length-with-zeros": _post(b"Content-Length: 0033", body=HIDDEN),
    "length-with-spaces": _post(b"Content-Length: \t33 ", body=HIDDEN),
    "underscore-is-another-name": _post(b"Content-Length: 33", b"Transfer_Encoding: chunked", body=HIDDEN),
    "chunked-upper-case": _post(b"TRANSFER-ENCODING: CHUNKED", body=b"21\r\n" + HIDDEN + b"\r\n" + _END),
    "chunk-extension": _post(_CHUNKED, body=b"21;x=y\r\n" + HIDDEN + b"\r\n" + _END),
    "body-of-a-get": b"GET /x HTTP/1.1\r\nHost: h\r\nContent-Length: 33\r\n\r\n" + HIDDEN,
}
"""What is one request whose body is ``HIDDEN``."""

assert len(HIDDEN) == 33
