"""W8: what a task costs when one, two or four nodes share the work."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import median

import trio

from tests.bench.figures import Goal, cell, ratio, say
from tests.bench.peers.catalogue import named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import running
from tests.bench.workloads.drains import WARM_UP

NODES = (1, 2, 4)
MOST_GROWTH = 1.15


async def measure(session: Session) -> Section:
    """Chains of Steps with connections spread over the nodes, in turns."""
    section = Section("W8", "CPU of a task with one, two and four nodes")
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in NODES}
    async with AsyncExitStack() as stack:
        systems = {}
        for count in NODES:
            place = session.place(f"nodes-{count}")
            peer = replace(named("steps-lean"), nodes=count)
            system = await stack.enter_async_context(running(peer, place))
            assert system.cluster is not None
            system.more["BENCH_URLS"] = ",".join(node.url for node in system.cluster.nodes)
            systems[count] = system
        with session.measuring(section):
            for _ in session.numbers():
                for count, system in systems.items():
                    system.forget()
                    await system.send(session.tasks)
                    with system.worker():
                        await system.until(int(session.tasks * WARM_UP))
                        before, first, began = system.used(), system.ran(), trio.current_time()
                        await system.until(session.tasks)
                        seconds, done = trio.current_time() - began, session.tasks - first
                        used = (system.used() - before).per(done)
                    found[count].append((done / seconds, used.server * 1e6, used.store * 1e6))
                    say(f"{count} nodes", f"{done / seconds:,.0f}/s, {used.server * 1e6:.0f} us of all nodes")
    report(section, session, found)
    return section


def report(section: Section, session: Session, found: dict[int, list[tuple[float, float, float]]]) -> None:
    """The table and the goal of what was found, by the number of nodes."""
    rows = []
    for count, runs in found.items():
        if not runs:
            continue
        rate, server, store = (list(column) for column in zip(*runs, strict=True))
        rows.append([str(count), cell(rate), cell(server), cell(store)])
    sums = {count: [server + store for _, server, store in runs] for count, runs in found.items()}
    section.notes.append(
        f"Chains of Steps, {session.tasks:,} a run, 64 slots in all with the lean client. All nodes share "
        "the cores of this machine, so the rate says nothing about more machines; CPU does."
    )
    section.table(("nodes", "steps/s", "CPU of all nodes, us a step", "CPU of Redis, us a step"), rows)
    text = "CPU at 4 nodes within 15 % of 1 node"
    one, most = sums[NODES[0]], sums[NODES[-1]]
    if one and most:
        growth = ratio(most, one)
        measured = f"{growth:.2f} x ({median(one):.0f} to {median(most):.0f} us)"
        section.goals = [Goal(text, growth <= MOST_GROWTH, measured)]
    else:
        section.goals = [Goal(text, None, "-")]
