"""W2: how long a task waits on an idle queue until its handler begins, at a fixed rate of sending."""

from __future__ import annotations

from contextlib import AsyncExitStack
from statistics import median

import trio

from tests.bench.charts import Bar, bar_chart
from tests.bench.figures import Goal, cell, percentile, say
from tests.bench.peers.environments import NotInstalled
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import Stalled, System, running

RATES = (100, 1000)
SECONDS = 4
NOT_PACED = ("steps", "steps-lean", "activities")
"""Chains send themselves, and the lean client of activities does not read when they were due."""
MOST_P50, MOST_P99 = 1.0, 3.0
Found = dict[tuple[str, int], list[tuple[float, float]]]


async def pace(system: System, rate: int) -> tuple[float, float]:
    """p50 and p99 in ms of one run at ``rate`` tasks a second, a worker being there already."""
    system.forget()
    with system.worker():
        await system.send(20, 100)
        await system.until(20)
        await trio.sleep(0.5)  # what the first tasks left behind is over
        await system.send(rate * SECONDS, rate)
        await system.until(20 + rate * SECONDS)
    late = [value * 1000 for value in system.latencies()[20:]]
    found = percentile(late, 0.5), percentile(late, 0.99)
    say(f"{system.peer.title} at {rate}/s", f"p50 {found[0]:.2f} ms, p99 {found[1]:.2f} ms")
    return found


async def measure(session: Session) -> Section:
    """Every peer that takes tasks from outside, in turns, at each rate."""
    section = Section("W2", "hand-out on an idle queue")
    found: Found = {}
    async with AsyncExitStack() as stack:
        systems = []
        for peer in session.peers:
            if peer.name in NOT_PACED:
                continue
            try:
                systems.append(await stack.enter_async_context(running(peer, session.place(peer.name))))
            except NotInstalled as error:
                section.notes.append(f"Not measured: {error}.")
        for _ in session.numbers():
            for rate in RATES:
                for system in systems:
                    try:
                        found.setdefault((system.peer.name, rate), []).append(await pace(system, rate))
                    except Stalled as error:
                        say("stalled", str(error))
    section.notes.append(
        f"Open loop: {SECONDS} s at a fixed rate, measured from the moment a task was due to be sent to the "
        f"first line of its handler, the client's own cost included; {session.runs} runs in "
        "turns. With Headrace it is the start of a Flow over HTTP to its first Step."
    )
    rows, bars = [], []
    for (name, rate), runs in sorted(found.items(), key=lambda item: (item[0][1], min(item[1]))):
        peer = next(peer for peer in session.peers if peer.name == name)
        p50, p99 = zip(*runs, strict=True)
        rows.append([f"{peer.title}, {rate:,}/s", cell(p50, 2), cell(p99, 2)])
        bars.append(Bar(f"{peer.name}, {rate:,}/s", median(p99), min(p99), max(p99), peer.headrace))
        if name == "flows":
            for figure, values, most in (("p50", p50, MOST_P50), ("p99", p99, MOST_P99)):
                got = median(values)
                section.goals.append(
                    Goal(f"{figure} under {most:g} ms at {rate:,}/s", got < most, f"{got:.2f} ms")
                )
    section.table(("system, rate", "p50 ms", "p99 ms"), rows)
    if bars:
        section.chart(
            "bench-hand-out", "p99 of hand-out", bar_chart("Hand-out, p99", "milliseconds", bars, 1)
        )
    return section
