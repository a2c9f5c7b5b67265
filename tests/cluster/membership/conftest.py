"""A store per test under its own prefix."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from cluster.store.store import Store, open_store
from tests.cluster.membership.links import Link


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    async with open_store(redis_url, prefix=f"t{secrets.token_hex(4)}") as opened:
        yield opened


@pytest.fixture
def link(store: Store) -> Link:
    return Link(store)
