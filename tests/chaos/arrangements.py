"""Redis as a cluster of nodes uses it: one server, a primary with a replica under Sentinel, a Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import redis

from tests.ports import free_port
from tests.servers import Sentinel, Server, run_server
from tests.waiting import eventually

SERVICE = "main"
SLOTS = 16384
ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


class Kind(StrEnum):
    """Arrangements of servers."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass
class Arrangement:
    """Servers and the URL under which nodes find them. ``servers[0]`` is the first primary."""

    kind: Kind
    url: str
    servers: Sequence[Server]
    sentinel: Sentinel | None = None

    def primaries(self) -> list[Server]:
        """The servers that take writes at this moment."""
        if self.sentinel is None:
            return list(self.servers)
        with self.sentinel.client() as client:
            _, port = client.sentinel_get_master_addr_by_name(SERVICE)
        return [server for server in self.servers if server.port == int(port)]

    def replicas(self) -> list[Server]:
        """The other servers under Sentinel."""
        (primary,) = self.primaries()
        return [server for server in self.servers if server is not primary]

    def replica(self) -> Server:
        """One of them."""
        return self.replicas()[0]

    async def in_sync(self, within: float = 30.0) -> None:
        """Wait until Sentinel knows all replicas, and each follows its primary without a gap."""
        assert self.sentinel is not None
        others = len(self.servers) - 1

        def whole() -> bool:
            try:
                (primary,) = self.primaries()
                with primary.client() as client:
                    found = client.info("replication")
                assert self.sentinel is not None
                with self.sentinel.client() as client:
                    known = client.sentinel_slaves(SERVICE)
            except (redis.RedisError, ValueError):
                return False
            online = [found[key]["state"] for key in found if key.startswith("slave") and key[5:].isdigit()]
            usable = [one for one in known if not (one["is_sdown"] or one["is_disconnected"])]
            return found["role"] == "master" and online == ["online"] * others == ["online"] * len(usable)

        await eventually(whole, within)


def follow(server: Server, primary: Server) -> None:
    """Let a server that is not running start as a replica of ``primary``, whatever it was before.

    So does whoever asks Sentinel before starting one. Else it starts as a primary, perhaps an empty one,
    and is told otherwise by Sentinel after eight seconds.
    """
    options = list(server.options)
    if "--replicaof" in options:
        at = options.index("--replicaof")
        del options[at : at + 2]
    server.options = (*options, "--replicaof", f"127.0.0.1 {primary.port}")


@contextmanager
def run_single(kind: str, directory: Path, *options: str) -> Iterator[Arrangement]:
    """One server."""
    directory.mkdir(parents=True)
    with run_server(kind, directory, *options) as server:
        yield Arrangement(Kind.SINGLE, server.url, [server])


@asynccontextmanager
async def run_sentinel(
    kind: str, directory: Path, *options: str, replicas: int = 1
) -> AsyncIterator[Arrangement]:
    """A primary, replicas in sync with it and one Sentinel that fails over after a second."""
    names = ["primary", *(f"replica-{number}" for number in range(1, replicas + 1))]
    for name in (*names, "sentinel"):
        (directory / name).mkdir(parents=True)
    sync = ("--repl-diskless-sync-delay", "0", *options)
    with ExitStack() as stack:
        primary = stack.enter_context(run_server(kind, directory / names[0], *sync))
        following = (*sync, "--replicaof", f"127.0.0.1 {primary.port}")
        others = [stack.enter_context(run_server(kind, directory / name, *following)) for name in names[1:]]
        (directory / "sentinel" / "sentinel.conf").write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )
        sentinel = Sentinel(kind, directory / "sentinel", free_port())
        sentinel.start()
        stack.callback(sentinel.kill)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/0"
        made = Arrangement(Kind.SENTINEL, url, [primary, *others], sentinel)
        await made.in_sync()
        yield made


@asynccontextmanager
async def run_primaries(kind: str, directory: Path, *options: str) -> AsyncIterator[Arrangement]:
    """A Redis Cluster of three primaries with a third of the slots each."""
    clustered = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *options)
    for name in "abc":
        (directory / name).mkdir(parents=True)
    with (
        run_server(kind, directory / "a", *clustered) as a,
        run_server(kind, directory / "b", *clustered) as b,
        run_server(kind, directory / "c", *clustered) as c,
    ):
        servers = [a, b, c]
        for number, server in enumerate(servers):
            with server.client() as client:
                first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if number:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", a.port)

        def formed() -> bool:
            for server in servers:
                with server.client() as client:
                    state = str(client.execute_command("CLUSTER", "INFO"))
                    if "cluster_state:ok" not in state or len(client.execute_command("CLUSTER", "SLOTS")) < 3:
                        return False
            return True

        await eventually(formed, 20)
        yield Arrangement(Kind.CLUSTER, f"redis+cluster://127.0.0.1:{a.port}", servers)


@asynccontextmanager
async def arrange(
    kind: Kind, program: str, directory: Path, options: Sequence[str], *, replicas: int = 1
) -> AsyncIterator[Arrangement]:
    """The arrangement ``kind`` of servers of ``program`` (``redis`` or ``valkey``).

    ``replicas``: how many there are under Sentinel.
    """
    if kind is Kind.SINGLE:
        with run_single(program, directory, *options) as single:
            yield single
    elif kind is Kind.SENTINEL:
        async with run_sentinel(program, directory, *options, replicas=replicas) as watched:
            yield watched
    else:
        async with run_primaries(program, directory, *options) as three:
            yield three
