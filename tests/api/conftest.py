"""A real node, its pipeline in this process, and a second node of the same cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from cluster.settings import Settings
from nodes.node import Node, open_node
from tests.api.edge import Recorder, Serving, open_for_workers, open_main
from tests.unit.api.fakes import Client, FakeNode

OpenNode = Callable[..., AbstractAsyncContextManager[Node]]


@pytest.fixture
def another_node(redis_url: str, prefix: str) -> OpenNode:
    """Opens nodes of the test's own cluster."""

    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Node]:
        wanted = Settings(
            **{
                "redis_url": redis_url,
                "key_prefix": prefix,
                "auth_driver": "none",
                "worker_poll_timeout": 0,
                **settings,
            }
        )
        async with open_node(wanted) as node:
            await node.membership.wait_joined()
            yield node

    return make


@pytest.fixture
async def node(another_node: OpenNode) -> AsyncIterator[Node]:
    async with another_node() as opened:
        yield opened


@pytest.fixture
def client(node: Node) -> Client:
    """Requests to the node without a network between."""
    return client_of(node)


@pytest.fixture
def recorder() -> Recorder:
    """Answers in place of a node, and keeps what it was asked."""
    return Recorder()


@pytest.fixture(params=[open_main, open_for_workers], ids=["main", "workers"])
def serving(request: pytest.FixtureRequest, recorder: Recorder) -> Serving:
    """Either port: what holds for one holds for the other."""
    return partial(request.param, recorder)


@pytest.fixture
def main(recorder: Recorder) -> Serving:
    """The port that serves everything, also over HTTP/2."""
    return partial(open_main, recorder)


def client_of(node: Node) -> Client:
    """A client of a real node; it needs no more of it than the fake one has."""
    return Client(cast(FakeNode, node))
