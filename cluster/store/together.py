"""Asks several things of the store at once, so that they travel as one batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from cluster.errors import StoreError

Item = TypeVar("Item")


async def together(job: Callable[[Item], Awaitable[object]], items: Iterable[Item]) -> None:
    """Run ``job`` for every item side by side; all are finished when this returns.

    Raises the first StoreError that any of them raised, by itself and not in a group.
    """
    failures: list[StoreError] = []

    async def attempt(item: Item) -> None:
        try:
            await job(item)
        except StoreError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(attempt, item)
    if failures:
        raise failures[0]
