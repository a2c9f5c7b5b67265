"""What every program of a measured system shares: the clock, the notes of what ran, the pace of sending.

It needs nothing but the standard library, because each program runs in the environment of its own system.
The file of notes (``BENCH_NOTES``) gets eight bytes for each task that ran: the seconds from when it should
have been sent until its handler began. Appends of one write are not torn, so any number of processes share it
and its size says how many tasks ran.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterator

_START_DELAY = 0.2
_descriptor = -1


def note(due: float) -> None:
    """Note that a task runs which should have been sent at ``due`` (``time.monotonic()``)."""
    global _descriptor
    if _descriptor < 0:
        _descriptor = os.open(os.environ["BENCH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_descriptor, struct.pack("<d", time.monotonic() - due))


def moments(rate: float, count: int) -> list[float]:
    """When ``count`` tasks are due at ``rate`` a second; a rate of 0 says: all of them now."""
    start = time.monotonic()
    return [start + _START_DELAY + n / rate if rate else start for n in range(count)]


def paced(rate: float, count: int) -> Iterator[float]:
    """The moments in turn, none before it has come. The lateness of the sender is part of what is noted."""
    for due in moments(rate, count):
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        yield due


async def send_all(
    rate: float, count: int, send: Callable[[float], Awaitable[object]], at_once: int = 100
) -> None:
    """Send under asyncio, at most ``at_once`` side by side."""
    room = asyncio.Semaphore(at_once)

    async def one(due: float) -> None:
        try:
            await send(due)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for due in moments(rate, count):
            wait = due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            await room.acquire()
            group.create_task(one(due))


async def closed_loop(run: Callable[[], Awaitable[object]], at_once: int, count: int) -> None:
    """Run ``count`` times, ``at_once`` side by side; print the seconds it took, and this process's CPU."""
    left = count

    async def runner() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await run()

    began, used = time.monotonic(), time.process_time()
    await asyncio.gather(*(runner() for _ in range(at_once)))
    print(time.monotonic() - began, time.process_time() - used, flush=True)
