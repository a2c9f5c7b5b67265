"""W8: what a task costs when one, two or four nodes share the work."""

from __future__ import annotations

from contextlib import AsyncExitStack
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
            system = await stack.enter_async_context(running(named("steps-lean"), place, count))
            assert system.cluster is not None
            system.more["BENCH_URLS"] = ",".join(node.url for node in system.cluster.nodes)
            systems[count] = system
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
    rows = []
    for count, runs in found.items():
        rate, server, store = (list(column) for column in zip(*runs, strict=True))
        rows.append([str(count), cell(rate), cell(server), cell(store)])
    sums = {count: [server + store for _, server, store in runs] for count, runs in found.items()}
    growth = ratio(sums[NODES[-1]], sums[NODES[0]])
    section.notes.append(
        f"Chains of Steps, {session.tasks:,} a run, 64 slots in all with the lean client. All nodes share "
        "the cores of this machine, so the rate says nothing about more machines; CPU does."
    )
    section.table(("nodes", "steps/s", "CPU of all nodes, us a step", "CPU of Redis, us a step"), rows)
    text = f"{growth:.2f} x ({median(sums[NODES[0]]):.0f} to {median(sums[NODES[-1]]):.0f} us)"
    section.goals = [Goal("CPU at 4 nodes within 15 % of 1 node", growth <= MOST_GROWTH, text)]
    return section
