"""What a thousand workers without work cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.bench.figures import say
from tests.bench.measuring import cpu_seconds
from tests.cluster_processes import make_cluster
from tests.idle import parked_polls, total
from tests.servers import run_server

pytestmark = [pytest.mark.bench, pytest.mark.timeout(120)]

POLLS = 1_000
SECONDS = 10.0
MOST_CPU = 0.03
MOST_COMMANDS = 50.0


@pytest.mark.parametrize("queues", [20, 100])
async def test_a_thousand_parked_polls(queues: int, tmp_path: Path) -> None:
    """Polls for both kinds of tasks on every queue, on both nodes."""
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(2, server.url, tmp_path) as cluster,
        server.client() as client,
    ):
        await cluster.start()
        assert server.process is not None
        redis_pid, pids = server.process.pid, [node.child.process.pid for node in cluster.nodes]

        async def used() -> list[float]:
            inside = client.info("stats")["total_commands_processed"]
            sent = await total(cluster.nodes, "headrace_store_commands_total")
            return [sum(map(cpu_seconds, pids)), cpu_seconds(redis_pid), sent, inside]

        async with parked_polls(cluster.nodes, POLLS, queues):
            await trio.sleep(2)  # for what joining and subscribing leave behind
            before = await used()
            await trio.sleep(SECONDS)
            after = await used()
        nodes, store, sent, inside = ((b - a) / SECONDS for a, b in zip(before, after, strict=True))
        say(f"idle: 1,000 polls, 2 nodes, {queues} queues", f"{nodes:.1%} of a core in both nodes together")
        say("  store", f"{sent:.1f} commands/s, {inside:.0f}/s with those in scripts, {store:.1%} of a core")
        assert sent < MOST_COMMANDS
        assert nodes < MOST_CPU
