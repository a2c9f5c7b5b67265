"""W7: a queue nobody works at: how fast it grows, what a task in it weighs, how a node starts over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median

import trio

from tests.bench.fan_out import WIDTH, queue_steps
from tests.bench.figures import Goal, cell, say
from tests.bench.peers.catalogue import named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import System, running

PAYLOAD = "x" * 100
FLOWS_PART = 20
"""One in so many tasks is sent as a Flow of its own, over HTTP, before the Steps."""
MOST_BYTES, MOST_START = 1024.0, 2.0


async def measure(session: Session) -> Section:
    """One long queue; the starts of a node over it are repeated."""
    section = Section("W7", "a long queue")
    steps = session.queued // WIDTH * WIDTH
    flows = max(1, steps // FLOWS_PART)
    async with running(named("flows"), session.place("long")) as system:
        assert system.cluster is not None
        (node,) = system.cluster.nodes
        empty = await starts(system, session.runs)
        flow_rate, flow_bytes = await grow(system, flows, partial(system.send, flows))
        filling = partial(queue_steps, node.url, "filled", steps, PAYLOAD)
        step_rate, step_bytes = await grow(system, steps, filling)
        full = await starts(system, session.runs)
    own = step_bytes - len(PAYLOAD)
    section.notes.append(
        f"{steps:,} Steps of flows that begin {WIDTH} each, with a payload of {len(PAYLOAD)} bytes, after "
        f"{flows:,} Flows of one Step, each started by a request. Memory is what Redis says it uses, indexes "
        "and histories included. A start ends when the node says that it is ready; imports are part of it."
    )
    section.table(
        ("figure", "Flows of one Step", "Steps"),
        [
            ["enqueued a second", f"{flow_rate:,.0f}", f"{step_rate:,.0f}"],
            ["Redis memory each, bytes", f"{flow_bytes:,.0f}", f"{step_bytes:,.0f}"],
            ["start of a node, empty store, s", cell(empty, 2), ""],
            ["start of a node, full store, s", "", cell(full, 2)],
        ],
    )
    section.goals = [
        Goal("a queued Step at most 1 KiB beside its payload", own <= MOST_BYTES, f"{own:,.0f} bytes"),
        Goal("start of a node under 2 s", median(full) < MOST_START, f"{median(full):.2f} s"),
    ]
    return section


async def grow(system: System, tasks: int, fill: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Tasks a second and bytes of Redis memory each."""
    before = system.redis.info("memory")["used_memory"]
    began = trio.current_time()
    await fill()
    rate = tasks / (trio.current_time() - began)
    each = (system.redis.info("memory")["used_memory"] - before) / tasks
    say("long queue", f"{rate:,.0f} enqueued a second, {each:,.0f} bytes each")
    return rate, each


async def starts(system: System, runs: int) -> list[float]:
    """Seconds from the start of a node's process until it is ready; it was stopped in order before."""
    assert system.cluster is not None
    (node,) = system.cluster.nodes
    found = []
    for _ in range(runs):
        await node.stop()
        began = trio.current_time()
        node.start()
        await node.ready()
        found.append(trio.current_time() - began)
    return found
