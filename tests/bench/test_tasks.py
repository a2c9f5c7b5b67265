"""What a task costs: round trips, time, throughput."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from statistics import median

import pytest
import trio

from tests.bench.figures import percentile, repeated, say, spread
from tests.bench.measuring import cpu_seconds
from tests.bench.raw import Connection, connect
from tests.cluster_processes import Cluster
from tests.idle import total
from tests.wire import complete, schedule

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

ROUNDS = 200
IDLE_SECONDS = 3.0
REQUESTS = 7
"""Start, three polls that bring a task, three completions."""
BARE = 1_000
SECONDS = 4.0
PAIRS = 16
"""Pollers of each kind; as many workflows are open at a time as two pairs can hold."""
MOST_ROUND_TRIPS = 2.0

_ids = count()


async def test_round_trips_of_a_task(one_node: Cluster, durability: str) -> None:
    """One worker, one thing at a time, so nothing shares a batch with anything else."""

    async def counted(job: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        names = ("headrace_store_round_trips_total", "headrace_store_commands_total")
        before = [await total(one_node.nodes, name) for name in names]
        began = trio.current_time()
        await job()
        seconds = trio.current_time() - began
        trips, commands = [await total(one_node.nodes, n) - b for n, b in zip(names, before, strict=True)]
        return trips - idle[0] * seconds, commands - idle[1] * seconds

    idle = (0.0, 0.0)

    async def nothing() -> None:
        await trio.sleep(IDLE_SECONDS)

    trips, commands = await counted(nothing)
    idle = (trips / IDLE_SECONDS, commands / IDLE_SECONDS)
    async with connect(one_node.url) as worker:
        await worker.register("w", "q")

        async def start() -> None:
            for number in range(ROUNDS):
                await worker.start(f"rt{number}", "q")

        async def first() -> None:
            for _ in range(ROUNDS):
                task = await worker.poll("workflow", "w", "q")
                assert task is not None
                await worker.complete_workflow(task, schedule("x", "q"))

        async def activities() -> None:
            for _ in range(ROUNDS):
                task = await worker.poll("activity", "w", "q")
                assert task is not None
                await worker.complete_activity(task)

        async def last() -> None:
            for _ in range(ROUNDS):
                task = await worker.poll("workflow", "w", "q")
                assert task is not None
                await worker.complete_workflow(task, complete("out"))

        say("idle node", f"{idle[0]:.1f} round trips/s, {idle[1]:.1f} commands/s")
        for name, job in (
            ("start", start),
            ("workflow task, first", first),
            ("activity task", activities),
            ("workflow task, last", last),
        ):
            trips, commands = (value / ROUNDS for value in await counted(job))
            say(f"{name} [{durability}]", f"{trips:.2f} round trips, {commands:.2f} commands")
            assert trips < MOST_ROUND_TRIPS + 0.1


async def test_workflows_per_second(one_node: Cluster, durability: str) -> None:
    """Closed loop of one-activity workflows on one node: 7 requests each, without the SDK."""
    node = one_node.nodes[0]
    pid = node.child.process.pid
    core: list[float] = []

    async def run() -> float:
        before = cpu_seconds(pid)
        counted, done = await drive(node.url, SECONDS)
        core.append((cpu_seconds(pid) - before) / done)
        return counted / SECONDS

    async with connect(node.url) as connection:
        await connection.register("w", "q")
    rates = await repeated(run)
    async with connect(node.url) as connection:
        bare = await repeated(partial(_bare_request, connection, pid))
    say(f"one-activity workflows [{durability}]", spread(rates, "/s on one node"))
    say("  node CPU of one", spread([value * 1000 for value in core[1:]], "ms", 1))
    say("  in a second of node CPU", spread([1 / value for value in core[1:]], "workflows"))
    say("  node CPU of an empty request", spread([value * 1000 for value in bare], "ms", 2))
    share = REQUESTS * median(bare) / median(core[1:])
    say("  of which HTTP", f"{share:.0%} ({REQUESTS} empty requests against one workflow)")
    assert await total(one_node.nodes, "headrace_store_ambiguous_total") == 0


async def _bare_request(connection: Connection, pid: int) -> float:
    """CPU seconds of a request that is refused before anything is looked up."""
    before = cpu_seconds(pid)
    for _ in range(BARE):
        status, _ = await connection.exchange("/nothing", {})
        assert status == 404
    return (cpu_seconds(pid) - before) / BARE


async def drive(url: str, seconds: float) -> tuple[int, int]:
    """Run workflows for a while, then finish what is open.

    Returns how many were completed in that time, and how many altogether.
    """
    done = 0
    open_now = trio.Semaphore(2 * PAIRS)
    deadline = trio.current_time() + seconds
    counted = 0

    async def start() -> None:
        async with connect(url) as connection:
            while trio.current_time() < deadline:
                await open_now.acquire()
                await connection.start(f"wf{next(_ids)}", "q")

    async def workflows() -> None:
        nonlocal done, counted
        async with connect(url) as connection:
            while True:
                task = await connection.poll("workflow", "w", "q")
                if task is None:
                    continue
                if task["total_history_events"] <= 3:
                    await connection.complete_workflow(task, schedule("x", "q"))
                    continue
                await connection.complete_workflow(task, complete("out"))
                done += 1
                counted += trio.current_time() < deadline
                open_now.release()

    async def activities() -> None:
        async with connect(url) as connection:
            while True:
                task = await connection.poll("activity", "w", "q")
                if task is not None:
                    await connection.complete_activity(task)

    async with trio.open_nursery() as workers:
        for _ in range(PAIRS):
            workers.start_soon(workflows)
            workers.start_soon(activities)
        async with trio.open_nursery() as starters:
            for _ in range(4):
                starters.start_soon(start)
        for _ in range(2 * PAIRS):
            await open_now.acquire()
        workers.cancel_scope.cancel()
    return counted, done


async def test_hand_out_latency(two_nodes: Cluster, durability: str) -> None:
    """From sending a start to one node to the answer of a poll parked on the other."""
    here, there = two_nodes.nodes
    async with connect(here.url) as client, connect(there.url) as worker:
        await worker.register("w", "q")
        latencies: list[float] = []
        for number in range(ROUNDS + 20):
            await _one_hand_out(client, worker, number, latencies)
        measured = [value * 1000 for value in latencies[20:]]
        p50, p99 = percentile(measured, 0.5), percentile(measured, 0.99)
        say(f"start to hand-out [{durability}]", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, other node")


async def _one_hand_out(client: Connection, worker: Connection, number: int, latencies: list[float]) -> None:
    sent = 0.0

    async def poll() -> None:
        task = await worker.poll("workflow", "w", "q")
        assert task is not None
        latencies.append(trio.current_time() - sent)
        await worker.complete_workflow(task, complete())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(0.02)  # so that the poll is parked
        sent = trio.current_time()
        await client.start(f"lat{number}", "q")
