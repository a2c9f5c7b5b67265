from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.settings import Settings
from tests.unit.api.fakes import Client, FakeNode

OpenClient = Callable[..., Awaitable[Client]]


@pytest.fixture
def open_client() -> OpenClient:
    """Makes clients of nodes with the given settings; ``auth_driver`` is none unless given."""

    async def make(**settings: Any) -> Client:
        node = FakeNode(Settings(**{"auth_driver": "none", "worker_poll_timeout": 0, **settings}))
        await node.namespaces.watch()
        await node.workers.watch()
        await node.cohorts.watch()
        await node.namespaces.bootstrap(node.settings.default_namespace)
        return Client(node)

    return make


@pytest.fixture
async def client(open_client: OpenClient) -> Client:
    return await open_client()
