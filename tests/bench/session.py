"""What a bench session was asked for, and where it puts what it finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.bench.peers.peer import Peer

_numbers = count()


@dataclass(frozen=True)
class Session:
    """Chosen peers, sizes and a directory of its own."""

    peers: tuple[Peer, ...]
    directory: Path
    tasks: int
    """Tasks of a drain."""
    runs: int
    queued: int
    """Tasks of the long queue."""
    only: frozenset[str]
    """Names that were asked for; empty: all."""

    def place(self, name: str) -> Path:
        """A directory nobody else uses; not made yet."""
        return self.directory / f"{name}-{next(_numbers)}"

    def numbers(self) -> Iterator[int]:
        """The runs in turn."""
        return iter(range(self.runs))
