"""Ports for the servers of tests.

They lie below those that the system gives to whoever connects somewhere, so nobody takes one between its
choice and the start of its server, nor while a server that was killed is started again on it.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

FIRST, ENOUGH = 10_000, 5_000
LAST = 65_535 - 1
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_random = SystemRandom()
"""Not seeded: the processes of a test run would all choose the same ports."""
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on and that this process was not given before."""
    return free_port_range(1)


def free_ports(count: int) -> list[int]:
    """So many of them."""
    return [free_port() for _ in range(count)]


def free_port_range(count: int) -> int:
    """The first of ``count`` consecutive ones."""
    end = _end()
    while True:
        first = _random.randrange(FIRST, end - count)
        ports = set(range(first, first + count))
        if not ports & _given and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first


def _end() -> int:
    """The first port that the system gives away, or the end of all where that leaves too few below it."""
    lowest = LAST
    with suppress(OSError):
        lowest = int(RANGE_FILE.read_text().split()[0])
    return lowest if lowest >= FIRST + ENOUGH else LAST


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
