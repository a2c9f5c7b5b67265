"""Response compression (server-behaviour 1.6)."""

from __future__ import annotations

import zlib
from typing import Final

from nodes.api.messages import Request, Response

THRESHOLD: Final = 1024
ENCODINGS: Final = ("gzip", "deflate")
_LEVEL: Final = 1
_MOST_BITS: Final = 15
_LEAST_BITS: Final = 9
_SMALL_MEMORY: Final = 5
"""zlib clears its memory for every answer; what it takes by default costs more than packing a small one."""
_FULL_MEMORY: Final = 8


def compress(data: bytes, encoding: str) -> bytes:
    """``data`` as a gzip member or a raw deflate stream."""
    bits = min(max(len(data).bit_length(), _LEAST_BITS), _MOST_BITS)
    memory = _SMALL_MEMORY if bits < _MOST_BITS else _FULL_MEMORY
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, bits + 16 if encoding == "gzip" else -bits, memory)
    return packer.compress(data) + packer.flush()


def choose(accept_encoding: str) -> str | None:
    """The best encoding an Accept-Encoding value allows, or None. gzip wins ties."""
    weights: dict[str, float] = {}
    for part in accept_encoding.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(text)
                except ValueError:
                    weight = 0.0
        if name:
            weights[name] = weight
    best = max(ENCODINGS, key=lambda name: weights.get(name, weights.get("*", 0.0)))
    return best if weights.get(best, weights.get("*", 0.0)) > 0 else None


def apply(request: Request, response: Response) -> None:
    """Compress a large JSON response in place when the client allows it."""
    if len(response.body) < THRESHOLD or response.header(b"content-encoding") is not None:
        return
    if response.header(b"content-type") != b"application/json":
        return
    encoding = choose(request.header_list(b"accept-encoding"))
    if encoding is None:
        return
    response.body = compress(response.body, encoding)
    response.headers.append((b"content-encoding", encoding.encode()))
    vary = response.header(b"vary")
    if vary is None:
        response.headers.append((b"vary", b"Accept-Encoding"))
    elif b"accept-encoding" not in vary.lower():
        response.headers[:] = [pair for pair in response.headers if pair[0] != b"vary"]
        response.headers.append((b"vary", vary + b", Accept-Encoding"))
