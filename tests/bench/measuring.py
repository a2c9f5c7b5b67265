"""What processes and Redis use, read from outside: /proc and INFO; and the machine they ran on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import redis

from cluster.version import VERSION

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def machine() -> str:
    """The machine in one line; its load tells how much of it was ours."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = os.getloadavg()[0]
    versions = f"Headrace {VERSION}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, load {load:.1f} before; {versions}"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of those of its children that have ended."""
    return stat_cpu_seconds(Path(f"/proc/{pid}/stat").read_text())


def stat_cpu_seconds(stat: str) -> float:
    """The time in a line of ``/proc/PID/stat``, ended children included; the name in it may hold anything."""
    columns = stat.rpartition(")")[2].split()
    return sum(map(int, columns[11:15])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def tree(pid: int) -> list[int]:
    """A process and all that descend from it; one that ends meanwhile is left out."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except FileNotFoundError:
        return []
    return [pid, *(found for child in children for found in tree(child))]


def tree_cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its descendants, ended ones included whose parents waited for them."""
    used = 0.0
    for member in tree(pid):
        try:
            used += cpu_seconds(member)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return used


@dataclass(frozen=True)
class Usage:
    """What was used up to a moment, or between two: seconds of CPU and counters of Redis."""

    server: float = 0.0
    """CPU seconds of the nodes, or of another system's server."""
    store: float = 0.0
    """CPU seconds of Redis."""
    worker: float = 0.0
    """CPU seconds of the worker processes."""
    reads: float = 0.0
    """Times Redis read from a connection: at most one for each round trip, less when round trips share it."""
    commands: float = 0.0
    """Commands Redis ran, those inside scripts too."""
    bytes: float = 0.0
    """Bytes over the connections of Redis, both ways."""

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def per(self, tasks: int) -> Usage:
        """The share of one of so many tasks."""
        return Usage(*(getattr(self, f.name) / tasks for f in fields(self)))

    @property
    def cpu(self) -> float:
        """CPU seconds of server, store and workers together."""
        return self.server + self.store + self.worker


def usage(client: redis.Redis | None, servers: Iterable[int] = (), workers: Iterable[int] = ()) -> Usage:
    """What has been used so far by Redis and by the processes with these ids, descendants included."""
    info = {} if client is None else client.info("everything")
    return Usage(
        server=sum(map(tree_cpu_seconds, servers)),
        store=float(info.get("used_cpu_user", 0) + info.get("used_cpu_sys", 0)),
        worker=sum(map(tree_cpu_seconds, workers)),
        reads=float(info.get("total_reads_processed", 0)),
        commands=float(info.get("total_commands_processed", 0)),
        bytes=float(info.get("total_net_input_bytes", 0) + info.get("total_net_output_bytes", 0)),
    )
