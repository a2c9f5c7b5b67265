"""Lists over all partitions, newest first (F4).

Every partition answers with its newest rows below a place; the page is what is certain: rows above
the highest place at which some partition stopped looking.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import trio

from cluster.errors import StoreError

LOOK_LIMIT: Final = 2_000
"""Most records one script looks at; a selective list takes more looks, until its page is full."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a list stands: lists run from the greatest place to the smallest."""

    ms: int
    name: str

    def encode(self) -> str:
        return urlsafe_b64encode(f"{self.ms}:{self.name}".encode()).decode()

    @staticmethod
    def decode(token: str | None) -> Place | None:
        """The place a token stands for; a token nobody made counts as absent (1.7)."""
        try:
            ms, _, name = urlsafe_b64decode((token or "").encode()).decode().partition(":")
            return Place(int(ms), name)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Part(Generic[Row]):
    """One partition's rows. ``end`` is None when it has no more, else the last place looked at."""

    rows: list[tuple[Place, Row]]
    end: Place | None


async def newest_first(
    partitions: int,
    look: Callable[[int, Place | None], Awaitable[Part[Row]]],
    page_size: int,
    token: str | None,
) -> tuple[list[Row], str | None]:
    """A page of rows and the token of the next one. Raises what ``look`` raises.

    A page is short only at the end of the list, however few rows there are among those looked at, and
    the last page has no token: one row more than asked for is looked for.
    """
    found: list[tuple[Place, Row]] = []
    place = Place.decode(token)
    while True:
        rows, place = await _below(place, partitions, look, page_size + 1 - len(found))
        found += rows
        if place is None or len(found) > page_size:
            break
    page = found[:page_size]
    return [row for _, row in page], page[-1][0].encode() if len(found) > page_size else None


async def _below(
    place: Place | None,
    partitions: int,
    look: Callable[[int, Place | None], Awaitable[Part[Row]]],
    wanted: int,
) -> tuple[list[tuple[Place, Row]], Place | None]:
    """At most ``wanted`` rows from one look at each partition, and the place to go on from."""
    parts: list[Part[Row]] = []
    failures: list[StoreError] = []

    async def ask(partition: int) -> None:
        try:
            parts.append(await look(partition, place))
        except StoreError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for partition in range(partitions):
            nursery.start_soon(ask, partition)
    if failures:
        raise failures[0]
    # Below the highest place at which a partition stopped looking, rows may be missing.
    horizon = max((part.end for part in parts if part.end is not None), default=None)
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row[0], reverse=True)
    sure = [row for row in rows if horizon is None or row[0] >= horizon]
    page = sure[:wanted]
    following = page[-1][0] if len(page) < len(sure) else horizon
    return page, following
