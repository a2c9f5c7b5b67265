"""Nodes that were given the same name: they work, but nobody can tell them apart.

A session is a name and something random, so two nodes of one name harm nothing. But logs, metrics and
the list of nodes name them alike. A node that was only restarted leaves its old session behind for a
few seconds; one that goes on being renewed is a namesake.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.membership.sessions import Session


@dataclass(slots=True)
class Namesakes:
    """Watches for them. ``patience`` seconds a session must be renewed beside ours."""

    name: str
    patience: float
    _since: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def look(self, renewed: Iterable[Session], own: str, now: float) -> list[Session]:
        """The namesakes not named before, among the sessions that were renewed lately."""
        others = {s.incarnation: s for s in renewed if self.name and s.info.name == self.name}
        others.pop(own, None)
        self._since = {incarnation: self._since.get(incarnation, now) for incarnation in others}
        self._told &= set(others)
        new = [i for i, since in self._since.items() if now - since >= self.patience and i not in self._told]
        self._told.update(new)
        return [others[incarnation] for incarnation in new]
