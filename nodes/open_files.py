"""How many connections the open files of this process allow, with some left for what a node itself needs.

A node whose files are used up by its clients could not reach Redis again after a lost connection.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

RESERVED: Final = 128
"""Files of a node's own: the store's connections, logs, libraries that are loaded late."""

ENOUGH: Final = 65_536
FEWEST: Final = 16


def raise_limit() -> int:
    """Allow this process as many open files as it may have; how many that are, or ENOUGH if that is less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def connections(open_files: int, wanted: int) -> int:
    """Most connections of one of two ports, ``wanted`` where that many fit."""
    return max(FEWEST, min(wanted, (open_files - RESERVED) // 2))
