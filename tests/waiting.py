"""Bounded waiting for conditions that have no event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

PATIENCE = 20.0
"""Seconds until a test gives up on what has to happen: more than a busy machine takes, less than what
nodes do every half a minute, whether they were told or not."""
LONG_PATIENCE = 90.0
"""For programs that start or end, and for hundreds of tasks."""


async def eventually(condition: Callable[[], Awaitable[bool] | bool], within: float = PATIENCE) -> None:
    """Look again and again until ``condition`` holds; fails after ``within`` seconds."""
    with trio.fail_after(within):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await trio.sleep(0.01)
