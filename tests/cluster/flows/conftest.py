"""Fixtures for tests of flows."""

from __future__ import annotations

import pytest

from cluster.store.store import Store
from tests.cluster.flows.lab import Lab


@pytest.fixture
def lab(store: Store) -> Lab:
    return Lab(store)
