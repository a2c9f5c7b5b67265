"""W7: a queue nobody works at: how fast it grows, what a task in it weighs, how a node starts over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import trio

from tests.bench.fan_out import WIDTH, queue_steps
from tests.bench.figures import Goal, cell, say
from tests.bench.peers.catalogue import BY_LISTENER, named
from tests.bench.report import NothingMeasured, Section
from tests.bench.session import Session
from tests.bench.systems import System, running
from tests.cluster_processes import NodeProcess

PAYLOAD = "x" * 100
FLOWS_PART = 50
"""One in so many tasks is sent as a Flow of its own, by a request, before the Steps."""
PORTION = 20_000
"""Steps that are queued before the clock is looked at."""
FILL_PART = 0.8
"""The part of the time limit after which nothing more is queued, so that starts are measured."""
MOST_BYTES, MOST_START = 1024.0, 2.0


@dataclass
class Grown:
    """What was queued, at which rate (1/s), and what one of them weighs in the memory of Redis."""

    tasks: int
    rate: float
    each: float


async def measure(session: Session) -> Section:
    """One long queue; the starts of a node over it are repeated."""
    section = Section("W7", "a long queue")
    flows = max(1, session.queued // FLOWS_PART)
    empty: list[float] = []
    full: list[float] = []
    grown: list[Grown] = []
    peer = replace(named("flows"), environ=BY_LISTENER)
    async with running(peer, session.place("long")) as system:
        assert system.cluster is not None
        (node,) = system.cluster.nodes
        with session.measuring(section):
            end = trio.current_time() + session.seconds * FILL_PART
            await start(node, session.runs, empty)
            grown.append(await grow(system, partial(send, system, flows)))
            grown.append(await grow(system, partial(fill, node.url, session.queued, end)))
            await start(node, session.runs, full)
    if len(grown) == 2:
        report(section, session.queued, grown[0], grown[1], empty, full)
        return section
    raise NothingMeasured("; ".join(section.notes))


def report(
    section: Section, asked: int, flows: Grown, steps: Grown, empty: list[float], full: list[float]
) -> None:
    """The table and the goals of what was found."""
    cut = f" (of {asked:,}; there was no time for more)" if steps.tasks < asked else ""
    section.notes.append(
        f"{steps.tasks:,} Steps{cut} of flows that begin {WIDTH} each, with a payload of {len(PAYLOAD)} "
        f"bytes, after {flows.tasks:,} Flows of one Step, each started over the worker listener. Memory is "
        "what Redis says it uses, indexes and histories included. A start ends when the node says that it is "
        f"ready; imports are part of it; {len(empty)} starts, and {len(full)}."
    )
    section.table(
        ("figure", "Flows of one Step", "Steps"),
        [
            ["enqueued a second", f"{flows.rate:,.0f}", f"{steps.rate:,.0f}"],
            ["Redis memory each, bytes", f"{flows.each:,.0f}", f"{steps.each:,.0f}"],
            ["start of a node, empty store, s", cell(empty, 2), ""],
            ["start of a node, full store, s", "", cell(full, 2)],
        ],
    )
    own = steps.each - len(PAYLOAD)
    text = "start of a node under 2 s"
    section.goals = [
        Goal("a queued Step at most 1 KiB beside its payload", own <= MOST_BYTES, f"{own:,.0f} bytes"),
        Goal(text, median(full) < MOST_START, f"{median(full):.2f} s") if full else Goal(text, None, "-"),
    ]


async def send(system: System, flows: int) -> int:
    """Start so many flows, each by a request."""
    await system.send(flows)
    return flows


async def fill(url: str, steps: int, end: float) -> int:
    """Queue ``steps`` Steps, or as many as can be until ``end``; returns how many."""
    queued = 0
    while queued < steps and trio.current_time() < end:
        portion = max(WIDTH, min(PORTION, steps - queued) // WIDTH * WIDTH)
        await queue_steps(url, "filled", portion, PAYLOAD)
        queued += portion
    return queued


async def grow(system: System, more: Callable[[], Awaitable[int]]) -> Grown:
    """Queue what ``more`` queues and weigh it."""
    before = system.redis.info("memory")["used_memory"]
    began = trio.current_time()
    tasks = await more()
    rate = tasks / (trio.current_time() - began)
    each = (system.redis.info("memory")["used_memory"] - before) / tasks
    say("long queue", f"{tasks:,} at {rate:,.0f} a second, {each:,.0f} bytes each")
    return Grown(tasks, rate, each)


async def start(node: NodeProcess, runs: int, found: list[float]) -> None:
    """Add the seconds from the start of a node's process until it is ready; it is stopped in order before."""
    for _ in range(runs):
        await node.stop()
        began = trio.current_time()
        node.start()
        await node.ready()
        found.append(trio.current_time() - began)
