"""What a node remembers of the heads of one (partition, queue, marker): rule W3.

The memory errs on one side only: it may believe in work that is gone, never in absence of work
that is there. So it starts with "maybe", only a reply may say "none", and a wake that arrived
after the request of that reply was sent outlives it. Replies may come in any order: one whose
request was sent before a wake that a later reply already knew of says nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mark:
    """What had been taken in when a request was sent."""

    wakes: int
    replies: int


@dataclass(slots=True)
class Counts:
    """Numbers wakes and replies in the order in which they are taken in. Memories may share it, so that
    one mark is good for all of them.
    """

    wakes: int = 0
    replies: int = 0

    def mark(self) -> Mark:
        """Call when a request is sent; what comes of it is learnt with the result."""
        return Mark(self.wakes, self.replies)


@dataclass(slots=True)
class HeadMemory:
    """Oldest known ready time (ms) per encoded type, None for a type that has no work.

    ``complete`` says that types not named have no work; otherwise they may have some of any age.
    """

    counts: Counts = field(default_factory=Counts)
    known: dict[str, int | None] = field(default_factory=dict)
    complete: bool = False
    _woke: int = 0
    _replied: int = 0
    _valid_from: int = 0
    _woken: dict[str, tuple[int, int]] = field(default_factory=dict)

    def oldest(self, types: Iterable[str]) -> int | None:
        """Oldest ready time that one of ``types`` (none given: any) may have, else None."""
        wanted = tuple(types)
        known = self.known
        if not self.complete and (not wanted or any(name not in known for name in wanted)):
            return 0
        times = (known.get(name) for name in wanted) if wanted else known.values()
        return min((ready_ms for ready_ms in times if ready_ms is not None), default=None)

    def oldest_but(self, never: Set[str]) -> int | None:
        """Oldest ready time that a type other than ``never`` may have, else None."""
        if not self.complete:
            return 0
        times = (ready_ms for name, ready_ms in self.known.items() if name not in never)
        return min((ready_ms for ready_ms in times if ready_ms is not None), default=None)

    def mark(self) -> Mark:
        """Call when a request is sent; hand the result to :meth:`learn` with its reply."""
        return self.counts.mark()

    def wake(self, type_part: str, ready_ms: int) -> None:
        """A head appeared or got older work."""
        self.counts.wakes += 1
        self._woke = self.counts.wakes
        _, earlier_ms = self._woken.get(type_part, (0, ready_ms))
        self._woken[type_part] = (self._woke, min(ready_ms, earlier_ms))
        self._lower(type_part, ready_ms)

    def learn(self, mark: Mark, heads: Mapping[str, int | None], *, complete: bool) -> None:
        """Take over what a reply says, except about what was woken since ``mark``."""
        if mark.wakes < self._valid_from:
            return
        self._valid_from = mark.wakes
        self.counts.replies += 1
        self._replied = self.counts.replies
        self._woken = {name: woken for name, woken in self._woken.items() if woken[0] > mark.wakes}
        self.known = dict(heads)
        self.complete = complete
        for name, (_, ready_ms) in self._woken.items():
            self._lower(name, ready_ms)

    def _lower(self, type_part: str, ready_ms: int) -> None:
        known = self.known.get(type_part)
        self.known[type_part] = ready_ms if known is None else min(ready_ms, known)

    def forget(self) -> None:
        """Anything may have been missed: everything is "maybe" again (W5)."""
        self.counts.wakes += 1
        self._woke = self._valid_from = self.counts.wakes
        self.known.clear()
        self._woken.clear()
        self.complete = False

    def denied_since(self, mark: Mark, type_part: str) -> bool:
        """Whether the memory holds, and held already at ``mark``, that this type has no work."""
        unchanged = self._woke <= mark.wakes and self._replied <= mark.replies
        return unchanged and self.known.get(type_part) is None and (self.complete or type_part in self.known)
