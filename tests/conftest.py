"""Fixtures for every test: real servers, one of each kind per test process, and open stores.

Tests share the servers, so each uses a key prefix of its own and never flushes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from cluster.store.store import Store, open_store
from tests.servers import KINDS, Server, run_server

# A busy machine is no reason to fail: how long an example takes says nothing about what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


class SharedServers:
    """Servers that start when first asked for and end with the test process."""

    def __init__(self, stack: ExitStack, directories: pytest.TempPathFactory) -> None:
        self._stack = stack
        self._directories = directories
        self._running: dict[str, Server] = {}

    def get(self, kind: str) -> Server:
        if kind not in self._running:
            directory = self._directories.mktemp(kind)
            self._running[kind] = self._stack.enter_context(run_server(kind, directory))
        return self._running[kind]


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    with ExitStack() as stack:
        yield SharedServers(stack, tmp_path_factory)


@pytest.fixture(scope="session", params=KINDS)
def redis_url(request: pytest.FixtureRequest, shared_servers: SharedServers) -> str:
    """URL of a shared server; the test runs once per kind."""
    return shared_servers.get(request.param).url


@pytest.fixture(scope="session")
def valkey_url(shared_servers: SharedServers) -> str:
    """URL of the shared Valkey, for what does not depend on the kind of server."""
    return shared_servers.get("valkey").url


@pytest.fixture
def prefix() -> str:
    """A key prefix no other test uses."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
async def store(redis_url: str, prefix: str) -> AsyncIterator[Store]:
    """An open store on each kind of server."""
    async with open_store(redis_url, prefix=prefix) as opened:
        yield opened


@pytest.fixture
async def valkey_store(valkey_url: str, prefix: str) -> AsyncIterator[Store]:
    """An open store on Valkey only."""
    async with open_store(valkey_url, prefix=prefix) as opened:
        yield opened
