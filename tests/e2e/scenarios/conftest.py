"""The cluster of the scenarios, whose nodes may die, and one worker for each mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from tests.cluster_processes import Cluster, make_cluster, worker_ready
from tests.conftest import SharedServers

SHORT_LEASES = {"DW_ACTIVITY_TASK_TIMEOUT": "3", "DW_WORKFLOW_TASK_TIMEOUT": "3"}
SMALL_PAGES = {"DW_HISTORY_PAGE_SIZE_MAX": "2", "DW_HISTORY_PAGE_SIZE_DEFAULT": "2"}


@dataclass(frozen=True)
class Theatre:
    """A cluster, a worker on ``queue``, and where clients go."""

    cluster: Cluster
    queue: str
    here: str
    there: str
    dying: bool

    @property
    def attempts_file(self) -> Path:
        return self.cluster.directory / f"{self.queue}.events"


@pytest.fixture(scope="session")
def mortal_cluster(
    shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three nodes with worker listeners behind HAProxy.

    Parked polls look by themselves once a minute only.
    """
    environ = {"DW_WORKER_POLL_INTERVAL_MS": "60000", "HEADRACE_KEY_PREFIX": f"s{uuid4().hex[:8]}"}
    environ |= SHORT_LEASES | SMALL_PAGES
    url = shared_servers.get("redis").url
    with make_cluster(
        3, url, tmp_path_factory.mktemp("mortals"), environ, balanced=True, listeners=True
    ) as made:
        trio.run(made.start)
        yield made


@pytest.fixture(scope="session")
def theatre(mortal_cluster: Cluster) -> Callable[[str], Theatre]:
    """Gives the theatre of a mode, with its worker at work."""
    opened: dict[str, Theatre] = {}

    def open_theatre(mode: str) -> Theatre:
        if mode not in opened:
            one, two, three = mortal_cluster.nodes
            balanced = mortal_cluster.url
            dying = mode == "killed"
            urls = (balanced, balanced) if dying else (one.url, three.url)
            queue = f"{mode}-{uuid4().hex[:6]}"
            worker = mortal_cluster.start_worker(
                queue,
                url=balanced if dying else two.url,
                module="tests.e2e.scenarios.worker",
                sticky="0" if mode == "plain" else "1000",
            )
            trio.run(worker_ready, worker)
            opened[mode] = Theatre(mortal_cluster, queue, *urls, dying)
        return opened[mode]

    return open_theatre
