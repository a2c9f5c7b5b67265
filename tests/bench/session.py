"""What a bench session was asked for, where it puts what it finds, and when its workloads have to end."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import trio

from tests.bench.peers.peer import Peer
from tests.bench.report import Section, brief

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
    seconds: float = math.inf
    """How long the measuring of a workload may take."""

    def place(self, name: str) -> Path:
        """A directory nobody else uses; not made yet."""
        return self.directory / f"{name}-{next(_numbers)}"

    def numbers(self) -> Iterator[int]:
        """The runs in turn."""
        return iter(range(self.runs))

    @contextmanager
    def measuring(self, section: Section) -> Iterator[None]:
        """The block ends at the time limit or with its first failure; the section says so."""
        with trio.move_on_after(self.seconds) as scope:
            try:
                yield
            except Exception as error:
                traceback.print_exc()
                section.notes.append(f"**Cut short by a failure**: {brief(error)}. There are fewer runs.")
        if scope.cancelled_caught:
            limit = f"{self.seconds / 60:.1f} minutes"
            section.notes.append(f"**Cut at its time limit** of {limit}. There are fewer runs.")
