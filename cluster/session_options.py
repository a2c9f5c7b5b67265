"""What a worker session is to be like: the options of a session, their ranges and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

LEASE_SECONDS: Final = 120
TTL_SECONDS: Final = 1800
LONGEST_SECONDS: Final = 7 * 24 * 3600
MOST_ACTIVITIES: Final = 10_000

NUMBERS: Final[Mapping[str, int]] = {
    "lease_seconds": LONGEST_SECONDS,
    "ttl_seconds": LONGEST_SECONDS,
    "max_concurrent_activities": MOST_ACTIVITIES,
}
"""Whole numbers among the options, and how large each may be."""
SWITCHES: Final = ("create_if_missing", "allow_reacquire_after_failure")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session is to be like; the wire object of sdk-wire 2.10."""

    session_id: str
    requirements: tuple[str, ...] = ()
    lease_seconds: int = LEASE_SECONDS
    ttl_seconds: int = TTL_SECONDS
    max_concurrent_activities: int = 1
    create_if_missing: bool = True
    allow_reacquire_after_failure: bool = True
    queue: str | None = None

    @classmethod
    def of_command(cls, wire: Mapping[str, Any]) -> Self:
        """The options in an activity command, which were checked when it came."""
        known = {name: wire[name] for name in cls.__slots__ if wire.get(name) is not None}
        known |= {name: int(known[name]) for name in NUMBERS if name in known}
        return cls(**known | {"requirements": tuple(known.get("requirements", ()))})
