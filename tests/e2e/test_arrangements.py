"""Both planes over Sentinel and over a Redis Cluster of three primaries, as users run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Client, Decision, Flow, StepContext, Worker, complete, goto, step
from tests.chaos.arrangements import Kind, arrange
from tests.cluster_processes import make_cluster, worker_ready
from tests.sdk_client import execute


class Chain(Flow, name="chain"):
    """Counts to three, a step each."""

    @step
    async def count(self, ctx: StepContext, number: int) -> Decision:
        return complete(number) if number == 3 else goto(Chain.count, number + 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Kind.SENTINEL, Kind.CLUSTER])
async def test_both_planes_work(kind: Kind, tmp_path: Path) -> None:
    async with arrange(kind, "redis", tmp_path / "redis", ()) as store:
        with make_cluster(2, store.url, tmp_path) as cluster:
            await cluster.start()
            first, second = (node.url for node in cluster.nodes)
            await worker_ready(cluster.start_worker("q", url=first))
            assert await execute(second, "greet", "q", "you") == "hello you"
            assert await execute(first, "parallel", "q", 5) == [[0, 1, 2, 3, 4], 10]
            assert await execute(second, "timer", "q", 1) == "rang"
            async with Worker([first, second], [Chain]) as worker, Client(second) as client:
                await worker.wait_pull_registered()
                handles = [await client.start(Chain, 0) for _ in range(20)]
                assert [await handle.result(timeout_seconds=30) for handle in handles] == [3] * 20
