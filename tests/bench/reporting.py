"""What a bench run says about itself, and the figures it makes of its samples."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cluster.version import VERSION

RUNS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


def say(figure: str, text: str) -> None:
    """One line of the report."""
    print(f"bench  {figure:<34} {text}", flush=True)


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
    """User and system time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def repeated(run: Callable[[], Awaitable[float]]) -> list[float]:
    """The results of RUNS runs, after one that is thrown away."""
    return [await run() for _ in range(RUNS + 1)][1:]


def spread(values: Sequence[float], unit: str, digits: int = 0) -> str:
    """Median, smallest and largest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} {unit} (min {low:,.{digits}f}, max {high:,.{digits}f}, {len(values)} runs)"


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
