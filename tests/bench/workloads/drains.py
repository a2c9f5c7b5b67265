"""W1: how fast a worker gets through tasks that wait, and what that costs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median

import trio

from tests.bench.charts import Bar, bar_chart
from tests.bench.figures import Goal, cell, ratio, say, spread
from tests.bench.measuring import Usage
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import Stalled, System, all_running, leave_out

WARM_UP = 0.1
"""The part of the tasks that is over before the measuring begins: the start of the worker is not measured."""
STEPS = ("steps", "steps-lean")
GOALS = (("dramatiq", 3.0), ("taskiq", 3.0), ("celery", 6.0), ("bullmq", 0.5))
HEAD = (
    "system",
    "tasks a run",
    "tasks/s",
    "CPU s per 1,000 tasks: server, Redis, worker",
    "Redis reads, commands, bytes a task",
    "enqueued/s",
)


@dataclass
class Drained:
    """The runs of one system."""

    tasks: int = 0
    """Of each run."""
    rates: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    used: list[Usage] = field(default_factory=list)
    """What one task used, in each run."""

    def row(self, title: str) -> list[str]:
        def middle(name: str) -> float:
            return median([float(getattr(one, name)) for one in self.used])

        cpu = ", ".join(f"{middle(name) * 1000:.2f}" for name in ("server", "store", "worker"))
        counts = f"{middle('reads'):.2f}, {middle('commands'):.1f}, {middle('bytes'):,.0f}"
        return [title, f"{self.tasks:,}", cell(self.rates), cpu, counts, cell(self.sent)]


async def drain(system: System, drained: Drained) -> None:
    """Enqueue, then let a worker begin; measured is from the end of the warm-up to the last task."""
    tasks = drained.tasks
    system.forget()
    sending = await system.send(tasks)
    with system.worker() as worker:
        await system.until(int(tasks * WARM_UP))
        before, first, began = system.used(worker), system.ran(), trio.current_time()
        await system.until(tasks)
        seconds = trio.current_time() - began
        drained.used.append((system.used(worker) - before).per(tasks - first))
    drained.sent.append(tasks / sending)
    drained.rates.append((tasks - first) / seconds)
    say(system.peer.title, f"{drained.rates[-1]:,.0f} tasks/s")


async def measure(session: Session) -> Section:
    """All chosen peers, in turns, so that each round sees the same machine."""
    section = Section("W1", "drain of durable no-op tasks")
    found: dict[str, Drained] = {}
    async with AsyncExitStack() as stack:
        systems = await all_running(stack, session.peers, session, section)
        for system in systems:
            found[system.peer.name] = Drained(int(session.tasks * system.peer.share))
        with session.measuring(section):
            for _ in session.numbers():
                for system in list(systems):
                    try:
                        await drain(system, found[system.peer.name])
                    except (Stalled, OSError) as error:
                        leave_out(section, system.peer, error)
                        systems.remove(system)
                        del found[system.peer.name]
    report(section, session, {name: drained for name, drained in found.items() if drained.rates})
    return section


def report(section: Section, session: Session, found: dict[str, Drained]) -> None:
    """The table, the chart and the goals of what was found."""
    titles = {peer.name: peer.title for peer in session.peers}
    for name, drained in found.items():
        say(f"W1 {titles[name]}", spread(drained.rates, "tasks/s"))
    section.notes.append(
        f"The first tenth of a run's tasks is unmeasured, {session.runs} runs of each in turns. Systems that "
        "take long get fewer tasks. Steps in chains are not enqueued before: each is enqueued by the result "
        "of the one before it."
    )
    section.table(HEAD, [drained.row(titles[name]) for name, drained in found.items()])
    ours = {peer.name for peer in session.peers if peer.headrace}
    bars = [
        Bar(titles[name], median(d.rates), min(d.rates), max(d.rates), name in ours)
        for name, d in found.items()
    ]
    if bars:
        section.chart(
            "bench-drain",
            "Tasks a second, drained",
            bar_chart("Drain of no-op tasks", "tasks a second", bars),
        )
    section.goals = goals(found)


def goals(found: dict[str, Drained]) -> list[Goal]:
    """Our Steps against each peer, run by run."""
    reached = []
    for ours in STEPS:
        for peer, least in GOALS:
            label = "Steps" if ours == "steps" else "Steps, lean client,"
            text = f"{label} at least {least:g} x {peer}"
            if ours in found and peer in found:
                times = ratio(found[ours].rates, found[peer].rates)
                reached.append(Goal(text, times >= least, f"{times:.2f} x"))
            else:
                reached.append(Goal(text, None, "-"))
    return reached
