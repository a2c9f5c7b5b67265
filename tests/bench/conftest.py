"""Redis and nodes for measurements: a server of their own, with the durability that is measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.bench.figures import say
from tests.bench.measuring import machine
from tests.cluster_processes import Cluster, make_cluster
from tests.servers import Server, run_server

OPTIONS = {
    "memory": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "fsync": ("--appendonly", "yes", "--appendfsync", "always"),
}


@pytest.fixture(scope="session", autouse=True)
def _machine() -> None:
    print()
    say("machine", machine())


@pytest.fixture(params=sorted(OPTIONS, reverse=True))
def durability(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def server(durability: str, tmp_path: Path) -> Iterator[Server]:
    """Redis as ``durability`` wants it."""
    with run_server("redis", tmp_path, *OPTIONS[durability]) as running:
        with running.client() as client:
            say("store", f"Redis {client.info('server')['redis_version']}, {' '.join(OPTIONS[durability])}")
        yield running


@pytest.fixture
async def one_node(server: Server, durability: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    environ = {"HEADRACE_DURABILITY": durability}
    with make_cluster(1, server.url, tmp_path, environ, listeners=True) as cluster:
        await cluster.start()
        yield cluster


@pytest.fixture
async def two_nodes(server: Server, durability: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    with make_cluster(2, server.url, tmp_path, {"HEADRACE_DURABILITY": durability}) as cluster:
        await cluster.start()
        yield cluster
