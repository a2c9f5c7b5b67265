"""A long queue while all nodes are killed one after the other, several times round (temporalio/temporal#459).

``HEADRACE_ROLLING_STEPS=10000 pytest tests/chaos/test_rolling_kills.py`` queues as many as the report.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from headrace import (
    Decision,
    Flow,
    StepContext,
    Worker,
    complete,
    step,
)
from tests.bench.raw import connect
from tests.cluster_processes import Cluster, make_cluster
from tests.idle import total
from tests.servers import run_server
from tests.waiting import LONG_PATIENCE, eventually
from tests.wire import open_wire

STEPS: Final = int(os.environ.get("HEADRACE_ROLLING_STEPS", "600"))
ROUNDS: Final = 2
STARTERS: Final = 8
SLOTS: Final = 16
OPTIONS: Final = {"execute": {"retry": {"initial_interval_seconds": 0.05, "maximum_attempts": 60}}}


class Queued(Flow, name="queued"):
    """Each run is one step. Attempts are counted; half of the steps wait until the kills are over."""

    begun: Counter[tuple[str, int]]
    ended: set[str]
    over: trio.Event

    @step
    async def work(self, ctx: StepContext, _: None) -> Decision:
        self.begun[ctx.flow_id, ctx.attempt] += 1
        if len(self.ended) >= STEPS // 2:
            await self.over.wait()
        self.ended.add(ctx.flow_id)
        return complete(ctx.attempt)


async def _queue(cluster: Cluster, numbers: Iterator[int]) -> None:
    async with connect(cluster.nodes[0].url) as connection:
        for number in numbers:
            body = {"flow_type": "queued", "flow_id": f"f{number}", "start_step": "work"}
            await connection.post("/flows", {**body, "step_options": OPTIONS})


async def _kill_in_turn(cluster: Cluster, over: trio.Event) -> None:
    for _ in range(ROUNDS):
        for node in cluster.nodes:
            await node.restart()
    over.set()


@pytest.mark.timeout(600)
async def test_nothing_queued_is_lost_doubled_or_stuck_while_every_node_is_killed(tmp_path: Path) -> None:
    flow = Queued()
    flow.begun, flow.ended, flow.over = Counter(), set(), trio.Event()
    with run_server("valkey", tmp_path) as server, make_cluster(3, server.url, tmp_path) as cluster:
        await cluster.start()
        numbers = iter(range(STEPS))
        async with trio.open_nursery() as nursery:
            for _ in range(STARTERS):
                nursery.start_soon(_queue, cluster, numbers)
        urls = [node.url for node in cluster.nodes]
        async with (
            Worker(urls, [flow], max_concurrent_tasks=SLOTS, reserved_rpc_slots=0) as worker,
            trio.open_nursery() as nursery,
        ):
            await worker.wait_pull_registered()
            nursery.start_soon(_kill_in_turn, cluster, flow.over)
            async with open_wire(cluster.url) as wire:
                await flow.over.wait()

                async def nothing_waits() -> bool:
                    sums = (await wire.get("/scaling"))["total"]
                    return (sums["backlog"], sums["slots_in_use"]) == (0, 0)

                await eventually(nothing_waits, LONG_PATIENCE + STEPS / 50)
                for number in range(STEPS):
                    assert (await wire.get(f"/flows/f{number}"))["status"] == "completed"
        assert {flow_id for flow_id, _ in flow.begun} == {f"f{number}" for number in range(STEPS)}
        assert set(flow.begun.values()) == {1}, "one attempt was handed out twice"
        assert await total(cluster.nodes, "headrace_matching_heads_restored_refs_total") == 0
