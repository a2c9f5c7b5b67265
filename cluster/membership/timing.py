"""How long things last in membership, in seconds. One object, so that tests can run in fast time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of sessions and partition leases (E1, E2, B4)."""

    session_ttl: float = 7.0
    """A session not renewed for this long is suspected."""
    session_margin: float = 1.0
    """A node stops acting this long before its session could expire."""
    patience: float = 3.0
    """From suspicion to burial: the living renew in this time, whatever stood still."""
    suspicion_void: float = 10.0
    """A suspicion nobody acted on for this long starts over."""
    memory: float = 86_400.0
    """How long the buried are remembered."""
    lease_ttl: float = 3.0
    lease_margin: float = 0.5
    renew_every: float = 1.0
    retry_every: float = 0.25
    """Pause after a renewal that failed."""

    def scaled(self, factor: float) -> Self:
        """The same proportions in faster (``factor`` < 1) or slower time; memory stays."""
        return replace(
            self,
            **{name: getattr(self, name) * factor for name in self.__slots__ if name != "memory"},
        )

    @property
    def quiet(self) -> float:
        """A session that missed a renewal for this long gets no share of the partitions.

        Its leases have run out as well by the next look, so others may keep what it kept.
        """
        return self.lease_ttl - self.renew_every


def milliseconds(seconds: float) -> int:
    """``seconds`` as scripts take them."""
    return max(1, round(seconds * 1000))
