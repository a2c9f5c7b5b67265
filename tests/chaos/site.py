"""Everything that runs during a campaign, each a real process: Redis, nodes, HAProxy, workers, proxies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodes.cli.processes import Child
from tests.chaos.arrangements import ALWAYS, Arrangement, Kind, arrange
from tests.cluster_processes import HOST, Cluster, make_cluster, worker_ready
from tests.faults import FaultProxy, open_proxy
from tests.wire import open_wire

TENANTS: Final = ("red", "blue")
LEASE_SECONDS: Final = 2
CAP: Final = 3
"""Most live leases of activities in the queue of the first tenant."""
FAKE_CLOCK: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")

DURABILITY: Final = {Kind.SINGLE: "fsync", Kind.SENTINEL: "replica:1", Kind.CLUSTER: "memory"}
OPTIONS: Final = {
    Kind.SINGLE: ALWAYS,
    # A replica that is promoted before it has caught up must at least have what it had before.
    Kind.SENTINEL: ("--min-replicas-to-write", "1", "--appendonly", "yes"),
    Kind.CLUSTER: ("--appendonly", "yes"),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How large a site is. ``durability`` "" means the one that fits the arrangement."""

    kind: Kind = Kind.SINGLE
    program: str = "valkey"
    nodes: int = 3
    workers: int = 1
    """Worker processes of each plane and tenant."""
    sdk: bool = True
    """With a worker and a client of the public SDK for the last tenant."""
    slots: int = 4
    """Of a worker process of the stream plane."""
    replicas: int = 1
    """Of the primary under Sentinel. ``replica:N`` keeps its promise with just N of them: with more, Sentinel
    may promote one that was not among those that had confirmed."""
    durability: str = ""
    tampered: bool = True
    """With a proxy between each node and Redis, and a clock of the first node that can be moved."""

    @property
    def promised(self) -> str:
        return self.durability or DURABILITY[self.kind]

    @property
    def server_options(self) -> tuple[str, ...]:
        if self.promised == "memory" and self.kind is Kind.SENTINEL:
            return ()
        return OPTIONS[self.kind]


@dataclass(frozen=True, slots=True)
class Staff:
    """One worker process and how to start another in its place."""

    tenant: str
    module: str


STREAM_WORKER: Final = "tests.chaos.recorded_flow_worker"
POLL_WORKER: Final = "tests.chaos.recorded_worker"
SDK_WORKER: Final = "tests.chaos.recorded_sdk_worker"
SDK_CLIENT: Final = "tests.chaos.recorded_sdk_client"
PLANES: Final = {STREAM_WORKER: "stream", POLL_WORKER: "poll", SDK_WORKER: "sdk", SDK_CLIENT: "client"}
SDK_TENANT: Final = TENANTS[-1]


@dataclass
class Site:
    """A running site; ``entrance`` stands between workers and the balancer."""

    directory: Path
    layout: Layout
    seed: int
    store: Arrangement
    cluster: Cluster
    to_redis: list[FaultProxy]
    entrance: FaultProxy
    staff: list[tuple[Staff, Child]] = field(default_factory=list)
    sdk_client: Child | None = None
    """Asks for work; never broken itself, so it is no part of the staff."""
    hired: int = 0

    @property
    def clock_file(self) -> Path:
        """What the clock of the first node is ahead, as faketime reads it."""
        return self.directory / "clock"

    def set_clock(self, ahead: str) -> None:
        """Move the clock of the first node, for example ``+3600s``."""
        fresh = self.clock_file.with_suffix(".new")
        fresh.write_text(ahead + "\n")
        fresh.rename(self.clock_file)

    def records(self) -> list[Path]:
        """The files that clients and workers write."""
        return sorted(self.directory.glob("*.events"))

    async def start(self) -> None:
        """Start nodes, tenants and workers, and wait until all are at work."""
        await self.cluster.start()
        async with open_wire(self.cluster.url) as wire:
            for tenant in TENANTS:
                await wire.post("/namespaces", {"name": tenant})
        for tenant in TENANTS:
            for module in (POLL_WORKER, STREAM_WORKER) * self.layout.workers:
                self.staff.append(self._hire(Staff(tenant, module)))
        if self.layout.sdk:
            self.staff.append(self._hire(Staff(SDK_TENANT, SDK_WORKER)))
        for _, child in self.staff:
            await worker_ready(child)
        if self.layout.sdk:
            _, self.sdk_client = self._hire(Staff(SDK_TENANT, SDK_CLIENT))
            await worker_ready(self.sdk_client)

    def _hire(self, place: Staff) -> tuple[Staff, Child]:
        self.hired += 1
        options = {"id": f"{place.tenant}-{PLANES[place.module]}-{self.hired}"}
        if place.module == POLL_WORKER:
            options |= {"seed": str(self.seed), "lease": str(LEASE_SECONDS)}
        elif place.module == STREAM_WORKER:
            options |= {"slots": str(self.layout.slots)}
        url = f"http://{HOST}:{self.entrance.port}"
        return place, self.cluster.start_worker(place.tenant, url=url, module=place.module, **options)

    async def replace(self, index: int) -> None:
        """Start a worker in the place of a dead one, under a new name."""
        place, _ = self.staff[index]
        self.staff[index] = self._hire(place)
        await worker_ready(self.staff[index][1])

    async def whole(self, within: float = 60.0) -> None:
        """Wait until every node is ready."""
        for node in self.cluster.nodes:
            await node.ready(within)


def _environment(layout: Layout) -> Mapping[str, str]:
    limits = {f"{TENANTS[0]}:*": {"activity_tasks": {"max_active_leases_per_queue": CAP}}}
    return {
        "DW_ACTIVITY_TASK_TIMEOUT": str(LEASE_SECONDS),
        "DW_WORKFLOW_TASK_TIMEOUT": str(LEASE_SECONDS),
        "DW_TASK_QUEUE_ADMISSION_OVERRIDES": json.dumps(limits),
        "HEADRACE_DURABILITY": layout.promised,
        # A node may come back while Redis is still frozen or loading.
        "DW_BOOTSTRAP_RETRIES": "20",
        "DW_BOOTSTRAP_DELAY_SECONDS": "1",
    }


@asynccontextmanager
async def open_site(directory: Path, layout: Layout, seed: int) -> AsyncIterator[Site]:
    """A site that is not started yet; everything in it ends with the block."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            arrange(
                layout.kind,
                layout.program,
                directory / "redis",
                layout.server_options,
                replicas=layout.replicas,
            )
        )
        proxies: list[FaultProxy] = []
        if layout.kind is Kind.SINGLE and layout.tampered:
            for _ in range(layout.nodes):
                proxies.append(await stack.enter_async_context(open_proxy(store.servers[0].address)))
        environ = _environment(layout)
        cluster = stack.enter_context(
            make_cluster(layout.nodes, store.url, directory, environ, balanced=True)
        )
        for node, proxy in zip(cluster.nodes, proxies, strict=False):
            node.redis_url = proxy.url
        assert cluster.balancer is not None
        entrance = await stack.enter_async_context(open_proxy((HOST, cluster.balancer.port)))
        site = Site(directory, layout, seed, store, cluster, proxies, entrance)
        if layout.tampered and FAKE_CLOCK.exists():
            site.set_clock("+0s")
            cluster.nodes[0].environ = {
                **environ,
                "LD_PRELOAD": str(FAKE_CLOCK),
                "FAKETIME_TIMESTAMP_FILE": str(site.clock_file),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        yield site
