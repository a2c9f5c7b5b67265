"""W8: what a task costs when one, two or four nodes share the work."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import median

import trio

from tests.bench.figures import Goal, cell, ratio, say
from tests.bench.peers.catalogue import named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import System, running
from tests.bench.workloads.drains import WARM_UP

CONNECTIONS, SLOTS = 8, 8
MOST_GROWTH = 1.15


@dataclass(frozen=True)
class Share:
    """So many nodes with ``connections`` of SLOTS slots in all."""

    nodes: int
    connections: int = CONNECTIONS

    @property
    def environ(self) -> dict[str, str]:
        """Variables of the programs that make the load: a chain for each slot."""
        chains = self.connections * SLOTS
        return {"BENCH_CONNECTIONS": str(self.connections), "BENCH_CHAINS": str(chains)}


ONE = Share(1)
SAME_LOAD = Share(4)
"""What one node had is spread over four, so each sees a quarter: smaller batches, and all its own rounds."""
MORE_LOAD = Share(4, 4 * CONNECTIONS)
"""Each node has as many slots as the one had, which is what more nodes are for."""
SHARES = (ONE, Share(2), SAME_LOAD, MORE_LOAD)


async def measure(session: Session) -> Section:
    """Chains of Steps with connections spread over the nodes, in turns."""
    section = Section("W8", "CPU of a task with one, two and four nodes")
    found: dict[Share, list[tuple[float, float, float]]] = {share: [] for share in SHARES}
    async with AsyncExitStack() as stack:
        systems: dict[int, System] = {}
        for count in sorted({share.nodes for share in SHARES}):
            place = session.place(f"nodes-{count}")
            peer = replace(named("steps-lean"), nodes=count)
            system = await stack.enter_async_context(running(peer, place))
            assert system.cluster is not None
            system.more["BENCH_URLS"] = ",".join(node.url for node in system.cluster.nodes)
            systems[count] = system
        with session.measuring(section):
            for _ in session.numbers():
                for share in SHARES:
                    system = systems[share.nodes]
                    system.more |= share.environ
                    system.forget()
                    await system.send(session.tasks)
                    with system.worker():
                        await system.until(int(session.tasks * WARM_UP))
                        before, first, began = system.used(), system.ran(), trio.current_time()
                        await system.until(session.tasks)
                        seconds, done = trio.current_time() - began, session.tasks - first
                        used = (system.used() - before).per(done)
                    found[share].append((done / seconds, used.server * 1e6, used.store * 1e6))
                    name = f"{share.nodes} nodes, {share.connections * SLOTS} slots"
                    say(name, f"{done / seconds:,.0f}/s, {used.server * 1e6:.0f} us of all nodes")
    report(section, session, found)
    return section


def report(section: Section, session: Session, found: dict[Share, list[tuple[float, float, float]]]) -> None:
    """The table and the goals of what was found."""
    rows = []
    for share, runs in found.items():
        if not runs:
            continue
        rate, server, store = (list(column) for column in zip(*runs, strict=True))
        rows.append([str(share.nodes), str(share.connections * SLOTS), cell(rate), cell(server), cell(store)])
    section.notes.append(
        f"Chains of Steps, {session.tasks:,} a run, with the lean client, {SLOTS} slots a connection. All "
        "nodes share the cores of this machine, so the rate says nothing about more machines; CPU does. With "
        "the same 64 slots each of four nodes has a quarter of the load: its batches are smaller, and what a "
        "node does every second by itself falls on fewer steps. With 256 each has the load of the one."
    )
    section.table(
        ("nodes", "slots in all", "steps/s", "CPU of all nodes, us a step", "CPU of Redis, us a step"), rows
    )
    section.goals = [
        _goal("CPU at 4 nodes within 15 % of 1 node", found[ONE], found[SAME_LOAD]),
        _goal("the same with 4 times the load", found[ONE], found[MORE_LOAD]),
    ]


def _goal(text: str, one: list[tuple[float, float, float]], most: list[tuple[float, float, float]]) -> Goal:
    """Whether nodes and Redis together use about as much a step as with one node."""
    if not one or not most:
        return Goal(text, None, "-")
    alone, spread = ([server + store for _, server, store in runs] for runs in (one, most))
    growth = ratio(spread, alone)
    measured = f"{growth:.2f} x ({median(alone):.0f} to {median(spread):.0f} us)"
    return Goal(text, growth <= MOST_GROWTH, measured)
