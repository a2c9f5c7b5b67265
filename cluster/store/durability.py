"""When a write counts as done."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.errors import StartupError


@dataclass(frozen=True, slots=True)
class Durability:
    """``mode`` is memory, fsync or replica; ``replicas`` is how many must confirm a write."""

    mode: str
    replicas: int = 0


def parse_durability(text: str) -> Durability:
    """Read a durability setting. Raises StartupError.

    ``memory``: Redis answered. ``fsync``: Redis runs with ``appendfsync always``, so its answer
    means that the write is on disk. ``replica:N``: N replicas confirmed it.
    """
    if text in ("memory", "fsync"):
        return Durability(text)
    match = re.fullmatch(r"replica:([1-9])", text)
    if match is None:
        raise StartupError(f"durability {text!r} is unknown: use memory, fsync or replica:N (N from 1 to 9)")
    return Durability("replica", int(match[1]))
