"""A measured system as data: what it is made of, and how its programs are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Peer:
    """A task queue over Redis, or Headrace in one of its uses.

    The command lines may hold ``{bin}`` (programs of its environment), ``{python}`` and ``{programs}``. The
    sender gets two more arguments: how many tasks, and how many a second (0: as fast as it can).
    """

    name: str
    title: str
    """How reports call it: what is done by whom, with which settings that matter."""
    sender: tuple[str, ...]
    worker: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    """For pip, exact versions. A peer without requirements and packages runs in our own environment."""
    packages: tuple[str, ...] = ()
    """For npm, exact versions."""
    debian: tuple[str, ...] = ()
    """For apt, whose version is what the distribution has."""
    share: float = 1.0
    """The part of a drain's tasks that a run of it gets, so that slow systems take no longer than others."""
    environ: Mapping[str, str] = field(default_factory=dict)
    headrace: bool = False
    """Needs a node; its tasks are durable in the same Redis."""
    nodes: int = 1
    """How many of them."""
    balanced: bool = False
    """Workers go through HAProxy, which brings what workers ask for to the worker listener."""

    @property
    def installed(self) -> bool:
        """Whether it has an environment of its own."""
        return bool(self.requirements or self.packages)

    @property
    def version(self) -> str:
        """What is pinned, for the report."""
        return ", ".join((*self.requirements, *self.packages, *self.debian)) or "this one"
