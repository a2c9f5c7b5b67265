"""The world the examples of ``dw`` are run in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest
import trio

from nodes.cli.processes import Child
from tests.cluster_processes import environment, make_cluster, worker_ready
from tests.conftest import SharedServers
from tests.e2e.dw.world import World


@pytest.fixture(scope="session")
def world(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    environ = {"HEADRACE_KEY_PREFIX": f"d{uuid4().hex[:8]}", "DW_QUERY_TASK_TIMEOUT": "20"}
    with make_cluster(1, shared_servers.get("valkey").url, directory, environ) as cluster:
        trio.run(cluster.start)
        for name in ("orders", "parcels"):
            worker = Child.start(
                name,
                "tests.dw_workers",
                [cluster.url, name, str(os.getpid())],
                environ=environment(),
                log=directory / f"{name}.log",
                pipe=True,
            )
            cluster.workers.append(worker)
            trio.run(worker_ready, worker)
        world = World(cluster.url, {**environment(), "DW_CONFIG_HOME": str(directory / "config")})
        # Examples that list find one, whichever of them is the first.
        world.open_order("order-1000-first")
        world.open_parcel("parcel-first")
        yield world
