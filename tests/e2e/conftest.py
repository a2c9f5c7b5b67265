"""A cluster that the gentle tests share, and names that no other test uses."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
import trio

from tests.cluster_processes import Cluster, make_cluster
from tests.conftest import SharedServers


@pytest.fixture(scope="session")
def cluster(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with worker listeners behind HAProxy, for tests that kill and freeze nothing.

    Parked polls look by themselves once a minute only, so whatever arrives sooner was woken.
    """
    url = shared_servers.get("valkey").url
    directory = tmp_path_factory.mktemp("cluster")
    environ = {"DW_WORKER_POLL_INTERVAL_MS": "60000", "HEADRACE_KEY_PREFIX": f"e{uuid4().hex[:8]}"}
    environ |= {
        "DW_WORKFLOW_TASK_TIMEOUT": "5",
        "DW_HISTORY_PAGE_SIZE_MAX": "2",
        "DW_HISTORY_PAGE_SIZE_DEFAULT": "2",
    }
    with make_cluster(3, url, directory, environ, balanced=True, listeners=True) as made:
        trio.run(made.start)
        yield made


@pytest.fixture
def queue() -> str:
    """A task queue no other test uses."""
    return f"q{uuid4().hex[:10]}"


@pytest.fixture
def worker_id(queue: str) -> str:
    """A worker no other test uses."""
    return f"w-{queue}"
