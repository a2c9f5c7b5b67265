"""How much a client may send, and how long it may take: the same on every port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADER_SECONDS: Final = 5.0
"""Connections whose first header does not arrive in time are closed."""

KEEP_ALIVE_SECONDS: Final = 90.0
"""How long a connection that had an answer may idle; longer than any client should keep it."""

SEND_SECONDS: Final = 60.0
"""Longest time an answer may take to be handed to the network."""

GRACE_SECONDS: Final = 3.0
"""How long open requests have once a node that stops has answered its parked polls."""

MAX_HEADER_BYTES: Final = 16 * 1024
MAX_HEADERS: Final = 64
MAX_TARGET_BYTES: Final = 4096
"""Path and query string together."""

MAX_CONNECTIONS: Final = 10_000
"""Most connections of the main port, and by default of the worker listener."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How fast a body has to arrive: within ``seconds``, and after ``grace_seconds`` at
    ``bytes_per_second`` on average.
    """

    seconds: float = 10.0
    grace_seconds: float = 5.0
    bytes_per_second: int = 1024

    def allowed(self, received: int) -> float:
        """Seconds after the start by which more than ``received`` bytes must be here."""
        return min(self.seconds, self.grace_seconds + received / self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of a port. Sizes are bytes, times seconds.

    ``ahead_bytes`` is what is read of later requests while one is answered; ``linger_seconds`` is how
    long a connection is read after its last answer, so that closing it does not take the answer away.
    """

    body_bytes: int
    body: BodyLimits = BodyLimits()
    headers: int = MAX_HEADERS
    header_bytes: int = MAX_HEADER_BYTES
    target_bytes: int = MAX_TARGET_BYTES
    header_seconds: float = HEADER_SECONDS
    idle_seconds: float = KEEP_ALIVE_SECONDS
    send_seconds: float = SEND_SECONDS
    grace_seconds: float = GRACE_SECONDS
    linger_seconds: float = 1.0
    ahead_bytes: int = 64 * 1024
    connections: int = MAX_CONNECTIONS
