"""What a step costs: CPU and round trips of chains of steps, their rate, hand-out latency."""

from __future__ import annotations

import pytest
import trio

from tests.bench.chains import WARM_UP, Chains, hand_outs
from tests.bench.figures import RUNS, percentile, say, spread
from tests.bench.measuring import cpu_seconds
from tests.bench.stream_load import SlotConnection, slot_workers
from tests.cluster_processes import Cluster
from tests.idle import total
from tests.servers import Server

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

STEPS = 1_000
"""Of a chain: so many that its start, a request over HTTP, weighs little."""
SECONDS = 3.0


async def drain(
    node: Cluster, redis: Server, connections: int, slots: int, flows: int
) -> tuple[float, float, float, float]:
    """Steps a second, us of node and Redis CPU a step, store commands a step."""
    one = node.nodes[0]
    pid = one.child.process.pid
    chains = Chains(one.url)
    await chains.begin(flows)
    async with (
        slot_workers(one.url, chains.flow_type, connections, slots, STEPS, chains.over) as workers,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(chains.replace)
        await trio.sleep(WARM_UP)
        with redis.client() as client:

            def used() -> float:
                info = client.info("cpu")
                return float(info["used_cpu_user"] + info["used_cpu_sys"])

            commands = await total(node.nodes, "headrace_store_commands_total")
            before, cpu, store = _done(workers), cpu_seconds(pid), used()
            began = trio.current_time()
            await trio.sleep(SECONDS)
            done, seconds = _done(workers) - before, trio.current_time() - began
            cpu, store = cpu_seconds(pid) - cpu, used() - store
            commands = await total(node.nodes, "headrace_store_commands_total") - commands
        nursery.cancel_scope.cancel()
    return done / seconds, cpu / done * 1e6, store / done * 1e6, commands / done


def _done(workers: list[SlotConnection]) -> int:
    return sum(worker.done for worker in workers)


SHAPES = {
    "8 connections of 8 slots, 64 flows": (8, 8, 64),
    "8 connections of 8 slots, 256 flows": (8, 8, 256),
    "64 connections of 1 slot, 64 flows": (64, 1, 64),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_chains_of_steps(shape: str, one_node: Cluster, server: Server, durability: str) -> None:
    ours = [await drain(one_node, server, *SHAPES[shape]) for _ in range(RUNS + 1)]
    rates, node, store, commands = zip(*ours[1:], strict=True)
    say(f"{shape} [{durability}]", spread(rates, "steps/s"))
    say("  node, Redis CPU a step", f"{spread(node, 'us')}; {spread(store, 'us')}")
    say("  store commands a step", spread(commands, "", 2))


@pytest.mark.parametrize("rate", [100, 1000])
async def test_hand_out_latency(rate: int, one_node: Cluster, server: Server, durability: str) -> None:
    """From a result to the same flow's next step, on an idle queue.

    A PING of Redis every 20 ms beside it shows how long this machine takes to wake two processes.
    """
    pings: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ping, server.port, pings)
        gaps = await hand_outs(one_node.nodes[0].url, rate, max(SECONDS, 1000 / rate))
        nursery.cancel_scope.cancel()
    text = f"p50 {percentile(gaps, 0.5):.2f} ms, p99 {percentile(gaps, 0.99):.2f} ms of {len(gaps)}"
    say(f"hand-out at {rate} steps/s [{durability}]", text)
    text = f"p50 {percentile(pings, 0.5) * 1000:.2f} ms, p99 {percentile(pings, 0.99) * 1000:.2f} ms"
    say("  a PING of Redis meanwhile", text)


async def _ping(port: int, times: list[float]) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        while True:
            began = trio.current_time()
            await stream.send_all(b"PING\r\n")
            await stream.receive_some(100)
            times.append(trio.current_time() - began)
            await trio.sleep(0.02)
