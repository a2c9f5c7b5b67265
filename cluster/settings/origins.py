"""Where a setting's value came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Source(IntEnum):
    """Sources of settings; a higher one wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """A source and the place in it: ``headrace.yaml:12``, ``DW_WORKER_TOKEN``, ``--listen``."""

    source: Source
    place: str = ""

    def __str__(self) -> str:
        return self.place or self.source.name.lower()


DEFAULT = Origin(Source.DEFAULT)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, before it is parsed."""

    value: object
    origin: Origin
