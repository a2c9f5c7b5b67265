"""Nodes whose clocks are ten minutes apart: only the clock of Redis decides."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.cluster_processes import make_cluster
from tests.servers import run_server
from tests.waiting import eventually
from tests.wire import Wire, open_wire

LIMIT = 5
AHEAD = timedelta(minutes=10)
OVERRIDES = {"*": {"workflow_tasks": {"max_dispatches_per_minute": LIMIT}}}
LIBRARIES = tuple(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
LEASE = timedelta(seconds=60)


async def _clock_of(url: str) -> datetime:
    """What a node's own clock says, to the second."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return parsedate_to_datetime((await client.get(f"{url}/api/health")).headers["date"])


def _leased_at(task: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(task["lease_expires_at"]) - LEASE


@pytest.mark.timeout(240)
async def test_a_minute_gives_no_more_than_its_limit_whatever_the_nodes_clocks_say(tmp_path: Path) -> None:
    environ = {"DW_TASK_QUEUE_ADMISSION_OVERRIDES": json.dumps(OVERRIDES)}
    taken: list[dict[str, Any]] = []
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(2, server.url, tmp_path, environ) as cluster,
    ):
        now, ahead = cluster.nodes
        ahead.environ = {
            **ahead.environ,
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME": f"+{int(AHEAD.total_seconds())}s",
        }
        await cluster.start()
        assert await _clock_of(ahead.url) - await _clock_of(now.url) > AHEAD - timedelta(seconds=30)
        async with open_wire(now.url) as here, open_wire(ahead.url) as there:
            await here.register("w", "q", workflows=["t"])
            for number in range(4 * LIMIT):
                await here.start("t", "q", f"w{number}")
            with server.client() as redis:
                await eventually(lambda: redis.time()[0] % 60 <= 45, within=30)

            async def take(wire: Wire) -> None:
                """Ask on until two minutes gave what they may; what comes beside it counts too."""
                while len(taken) < 2 * LIMIT:
                    task = await wire.poll("workflow", "w", "q", seconds=2)
                    if task is not None:
                        taken.append(task)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, here)
                nursery.start_soon(take, there)
    minutes = Counter(_leased_at(task).astimezone(UTC).strftime("%H:%M") for task in taken)
    assert list(minutes.values()) == [LIMIT, LIMIT]
