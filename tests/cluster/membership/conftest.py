"""Membership's own fixtures."""

from __future__ import annotations

import pytest

from cluster.store.store import Store
from tests.cluster.membership.links import Link


@pytest.fixture
def link(store: Store) -> Link:
    return Link(store)
