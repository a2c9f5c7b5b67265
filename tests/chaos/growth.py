"""What a cluster uses while it works, sampled from outside, and whether that grows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import trio

from tests.cluster_processes import NodeProcess
from tests.servers import Server

MIB: Final = 1024 * 1024
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
QUARTER: Final = 4
"""The first quarter of the samples after warming up is compared with the last one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, ``at`` seconds after the first: bytes of the store and of all nodes, numbers of things.

    ``keys`` are those that do not expire by themselves: the others follow the rate of work.
    """

    at: float
    tasks: int
    store_bytes: int
    keys: int
    node_bytes: int
    descriptors: int
    series: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much more may be used at the end: a share, and what is too little to mean anything."""

    share: float
    slack: float


ALLOWED: Final[dict[str, Allowance]] = {
    "store_bytes": Allowance(0.10, 0),
    "keys": Allowance(0.10, 50),
    "node_bytes": Allowance(0.10, 8 * MIB),
    "descriptors": Allowance(0.0, 16),
    "series": Allowance(0.0, 10),
}


@dataclass
class Sampler:
    """Looks at a store and its nodes every so many seconds. ``tasks`` says how much was done."""

    server: Server
    nodes: Sequence[NodeProcess]
    tasks: Callable[[], int]
    samples: list[Sample] = field(default_factory=list)

    async def run(self, every: float) -> None:
        """Sample until cancelled."""
        began = trio.current_time()
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
            while True:
                self.samples.append(await self._look(http, trio.current_time() - began))
                await trio.sleep(every)

    async def _look(self, http: httpx.AsyncClient, at: float) -> Sample:
        with self.server.client() as client:
            used, databases = int(client.info("memory")["used_memory"]), client.info("keyspace")
        keys = sum(int(one["keys"]) - int(one["expires"]) for one in databases.values())
        series = 0
        for node in self.nodes:
            text = (await http.get(f"{node.url}/metrics")).text
            series += sum(bool(line) and not line.startswith("#") for line in text.splitlines())
        pids = [node.child.process.pid for node in self.nodes]
        return Sample(
            at=at,
            tasks=self.tasks(),
            store_bytes=used,
            keys=keys,
            node_bytes=sum(_resident(pid) for pid in pids),
            descriptors=sum(_open_files(pid) for pid in pids),
            series=series,
        )


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def judge(samples: Sequence[Sample]) -> list[str]:
    """What grew, as sentences. ``samples`` without those of the time in which everything warms up."""
    return [
        f"{name} grew from {first:.0f} to {last:.0f}"
        for name, (first, last) in quarters(samples).items()
        if last > first * (1 + ALLOWED[name].share) + ALLOWED[name].slack
    ]


def quarters(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Medians of the first and the last quarter of each figure."""
    size = max(1, len(samples) // QUARTER)
    return {
        name: (
            median(getattr(sample, name) for sample in samples[:size]),
            median(getattr(sample, name) for sample in samples[-size:]),
        )
        for name in (one.name for one in fields(Sample))
        if name in ALLOWED
    }


def table(samples: Sequence[Sample]) -> str:
    """First and last quarter, and what there was at least and at most, as text."""
    rows = [f"{'':12} {'first quarter':>14} {'last quarter':>14} {'change':>8} {'least':>14} {'most':>14}"]
    for name, (first, last) in quarters(samples).items():
        values = [getattr(sample, name) for sample in samples]
        change = f"{(last / first - 1):+.1%}" if first else ""
        rows.append(f"{name:12} {first:14,.0f} {last:14,.0f} {change:>8} {min(values):14,} {max(values):14,}")
    return "\n".join(rows)
