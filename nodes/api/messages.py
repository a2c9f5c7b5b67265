"""Requests and responses without a web framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from cluster.errors import Refused

Headers = Sequence[tuple[bytes, bytes]]

Stream = Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]
"""Makes a body while it is sent: gives each piece to what it is called with.

It is cancelled when the client leaves.
"""


class Request(msgspec.Struct, frozen=True):
    """One HTTP request, body included.

    ``raw_path`` is the path as it stood on the wire (percent-encoded, no query); ``headers`` have
    lower-case names. ``client`` is the address of the other end of the connection, where it is known.
    """

    method: str
    raw_path: bytes
    query_string: bytes
    headers: Headers
    body: bytes = b""
    client: str | None = None
    _single: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    """The headers that came once, by name; made from ``headers``, whatever is given."""

    def __post_init__(self) -> None:
        single = dict(self.headers)
        if len(single) != len(self.headers):
            counts = Counter(name for name, _ in self.headers)
            single = {name: value for name, value in single.items() if counts[name] == 1}
        msgspec.structs.force_setattr(self, "_single", single)

    def header(self, name: bytes) -> str | None:
        """The value of a header that must not be repeated: None when absent *or* ambiguous."""
        value = self._single.get(name)
        return None if value is None else value.decode("utf-8", "replace").strip()

    def header_list(self, name: bytes) -> str:
        """All values of a list header, joined by commas; "" when absent."""
        return ",".join(value.decode("latin-1") for key, value in self.headers if key == name)

    @property
    def content_length(self) -> int | None:
        """The declared body length, or None when it is absent or no number."""
        value = self.header(b"content-length")
        return int(value) if value is not None and value.isascii() and value.isdigit() else None


@dataclass(slots=True)
class Response:
    """One HTTP response. ``undelivered`` is called when the client left before it could be sent.

    A ``stream`` is the body where one of unknown length follows.
    """

    status: int
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    undelivered: Callable[[], None] | None = None
    stream: Stream | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)


class Answering(Protocol):
    """Who answers requests: a pipeline, or what stands in front of it."""

    async def handle(self, request: Request) -> Response:
        """The response to ``request``. Raises nothing but cancellation."""

    def refuse(self, request: Request, refusal: Refused) -> Response:
        """The response to a request that the transport gave up on (too large, too slow)."""
