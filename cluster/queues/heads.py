"""What a node remembers of the heads of one (partition, queue, marker): rule W3.

The memory errs on one side only: it may believe in work that is gone, never in absence of work
that is there. So it starts with "maybe", only a reply may say "none", and a wake that arrived
after the request of that reply was sent outlives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class HeadMemory:
    """Oldest known ready time (ms) per encoded type.

    ``complete`` says that types not named have no work; otherwise they may have some of any age.
    """

    known: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    _sequence: int = 0
    _valid_from: int = 0
    _woken: dict[str, tuple[int, int]] = field(default_factory=dict)

    def oldest(self, types: Iterable[str]) -> int | None:
        """Oldest ready time that one of ``types`` (none given: any) may have, else None."""
        wanted = tuple(types)
        if not self.complete:
            if not wanted or any(name not in self.known for name in wanted):
                return 0
        if not wanted:
            return min(self.known.values(), default=None)
        return min((self.known[name] for name in wanted if name in self.known), default=None)

    def mark(self) -> int:
        """Call when a request is sent; hand the result to :meth:`learn` with its reply."""
        return self._sequence

    def wake(self, type_part: str, ready_ms: int) -> None:
        """A head appeared or got older work."""
        self._sequence += 1
        self._woken[type_part] = (self._sequence, ready_ms)
        self.known[type_part] = min(ready_ms, self.known.get(type_part, ready_ms))

    def learn(self, mark: int, heads: Mapping[str, int], *, complete: bool) -> None:
        """Take over what a reply says, except about what was woken since ``mark``."""
        if mark < self._valid_from:
            return
        self._woken = {name: woken for name, woken in self._woken.items() if woken[0] > mark}
        self.known = dict(heads)
        self.complete = complete
        for name, (_, ready_ms) in self._woken.items():
            self.known[name] = min(ready_ms, self.known.get(name, ready_ms))

    def forget(self) -> None:
        """Anything may have been missed: everything is "maybe" again (W5)."""
        self._sequence += 1
        self._valid_from = self._sequence
        self.known.clear()
        self._woken.clear()
        self.complete = False

    def denies(self, type_part: str) -> bool:
        """Whether the memory holds that this type has no work."""
        return self.complete and type_part not in self.known
