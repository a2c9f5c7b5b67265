"""What could not be done, and when it is worth another try.

A run that can never advance (a record nobody can read, a decision that does not fit) must cost next
to nothing and hold up nobody. So what failed rests: half a second, then twice as long each time, up
to a minute. Only this node's own tries count; another node that takes over begins anew.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 60.0
MOST: Final = 10_000
"""Things remembered for one partition; the one that failed longest ago is forgotten first."""


@dataclass(frozen=True, slots=True)
class Setback:
    """``again_ms`` is when to try again, ``failures`` how often it failed in a row."""

    failures: int
    again_ms: int


class Setbacks:
    """The setbacks in one partition. Times are milliseconds of the cluster's clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Setback] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def rests(self, name: str, now_ms: int) -> bool:
        """Whether it is too early to try ``name`` again."""
        setback = self._known.get(name)
        return setback is not None and setback.again_ms > now_ms

    def failed(self, name: str, now_ms: int, *, longest: float = LONGEST_SECONDS) -> Setback:
        """``name`` failed (again): it rests for at most ``longest`` seconds."""
        before = self._known.pop(name, None)
        failures = 1 if before is None else before.failures + 1
        seconds = min(longest, FIRST_SECONDS * 2 ** min(failures - 1, 10))
        setback = self._known[name] = Setback(failures, now_ms + int(seconds * 1000))
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return setback

    def done(self, name: str) -> bool:
        """``name`` was done, or need not be done any more; whether it had failed before."""
        return self._known.pop(name, None) is not None

    def keep_only(self, names: set[str]) -> None:
        """Forget what is not among ``names``: somebody else did it."""
        for name in [known for known in self._known if known not in names]:
            del self._known[name]

    def next_ms(self) -> int | None:
        """When the first of them is worth a try; None when there is none."""
        return min((setback.again_ms for setback in self._known.values()), default=None)
