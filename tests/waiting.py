"""Bounded waiting for conditions that have no event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


async def eventually(condition: Callable[[], Awaitable[bool] | bool], within: float = 10.0) -> None:
    """Look again and again until ``condition`` holds; fails after ``within`` seconds."""
    with trio.fail_after(within):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await trio.sleep(0.01)
