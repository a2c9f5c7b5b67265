"""W4: how long tasks rest after the process that held them was killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import trio

from tests.bench.figures import cell, say
from tests.bench.peers.catalogue import named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import System, running

TASKS = 32


async def measure(session: Session) -> Section:
    """A worker, then the node it is connected to, in turns."""
    section = Section("W4", "recovery after SIGKILL")
    found: dict[str, list[float]] = {"worker": [], "node": []}
    lean = named("steps-lean")
    async with running(replace(lean, environ={}, nodes=2), session.place("recovery")) as system:
        assert system.cluster is not None
        first, second = system.cluster.nodes
        holder = system.beside("holder", replace(lean, worker=(*lean.worker[:-1], "hold"), environ={}))
        system.more["BENCH_URL"] = second.url
        with session.measuring(section):
            for _ in session.numbers():
                for victim in found:
                    system.forget()
                    holder.forget()
                    seconds = await recovered(
                        system, holder, None if victim == "worker" else first.child.process.pid
                    )
                    found[victim].append(seconds)
                    ran = f"{seconds * 1000:,.0f} ms until {TASKS} tasks ran elsewhere"
                    say(f"SIGKILL of a {victim}", ran)
                    if victim == "node":
                        await first.restart()
    section.notes.append(
        f"Two nodes, {session.runs} runs. One worker, connected to the first, holds {TASKS} Steps and never "
        "answers; another waits at the second node. Measured is from the signal until the other worker runs "
        "the last of them. A lost worker is a failed attempt, and the default retry policy waits a second "
        "before the next. A lost node is first given its session of 7 s and 3 s of patience, so that a pause "
        "is no death."
    )
    rows = [
        [f"a {victim}", cell([value * 1000 for value in values])]
        for victim, values in found.items()
        if values
    ]
    section.table(("killed", "ms until all tasks ran again"), rows)
    return section


async def recovered(system: System, holder: System, node: int | None) -> float:
    """Kill the worker of ``holder``, or the node with this process id; seconds until the other ran all."""
    with holder.worker() as worker:
        await trio.sleep(2)  # its slots are open
        await holder.send(TASKS)
        await holder.until(TASKS)
        with system.worker():
            await trio.sleep(2)
            began = trio.current_time()
            os.kill(worker if node is None else node, signal.SIGKILL)
            await system.until(TASKS)
            return trio.current_time() - began
