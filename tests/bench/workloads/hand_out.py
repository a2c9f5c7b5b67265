"""W2: how long a task waits on an idle queue until its handler begins, at a fixed rate of sending."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import median

import trio

from tests.bench.chains import FLOWS, hand_outs
from tests.bench.charts import Bar, bar_chart
from tests.bench.figures import Goal, cell, percentile, say
from tests.bench.peers.catalogue import BY_LISTENER, named
from tests.bench.peers.peer import Peer
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import Stalled, System, all_running, leave_out

RATES = (100, 1000)
SECONDS = 4
WARM_UP = 20
MOST_P50, MOST_P99 = 1.0, 3.0
LISTENER = "flows-listener"
NEXT = "next-step"
"""Of a Flow that goes on: from the result of one Step to the next one, both over one worker's streams."""
NEXT_TITLE = "Headrace: result to next Step"
Found = dict[tuple[str, int], list[tuple[float, float]]]


def ways() -> tuple[Peer, ...]:
    """Flows of one Step as the catalogue has them, started over the main port, and in other ways."""
    flows = named("flows")
    elsewhere = {**BY_LISTENER, "BENCH_URL": "{BENCH_LAST_URL}"}
    return (
        replace(flows, title=f"{flows.title}, main port"),
        replace(flows, name=LISTENER, title=f"{flows.title}, worker listener", environ=BY_LISTENER),
        replace(
            flows,
            name="flows-apart",
            title=f"{flows.title}, worker listener, worker on another node",
            environ=elsewhere,
            nodes=2,
        ),
    )


async def pace(system: System, found: Found) -> None:
    """Every rate in turn, with one worker that is there already; adds p50 and p99 in ms of each."""
    system.forget()
    with system.worker():
        await system.send(WARM_UP, 100)
        await system.until(WARM_UP)
        sent = WARM_UP
        for rate in RATES:
            await trio.sleep(0.5)  # what the tasks before left behind is over
            await system.send(rate * SECONDS, rate)
            await system.until(sent + rate * SECONDS)
            late = [value * 1000 for value in system.latencies()[sent:]]
            sent += rate * SECONDS
            p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
            found.setdefault((system.peer.name, rate), []).append((p50, p99))
            say(f"{system.peer.title} at {rate}/s", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms")


async def next_steps(system: System, found: Found) -> None:
    """Every rate in turn, between the Steps of Flows that run."""
    assert system.cluster is not None
    for rate in RATES:
        gaps = await hand_outs(system.cluster.url, rate, SECONDS)
        p50, p99 = percentile(gaps, 0.5), percentile(gaps, 0.99)
        found.setdefault((NEXT, rate), []).append((p50, p99))
        say(f"{NEXT_TITLE} at {rate}/s", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms")


async def measure(session: Session) -> Section:
    """Every peer that takes tasks from outside, in turns, at each rate."""
    section = Section("W2", "hand-out on an idle queue")
    ours = ways() if any(peer.name == "flows" for peer in session.peers) else ()
    peers = [*ours, *(peer for peer in session.peers if not peer.headrace)]
    found: Found = {}
    async with AsyncExitStack() as stack:
        systems = await all_running(stack, peers, session, section)
        with session.measuring(section):
            for _ in session.numbers():
                for system in list(systems):
                    try:
                        await pace(system, found)
                        if system.peer.name == "flows":
                            await next_steps(system, found)
                    except (Stalled, OSError) as error:
                        leave_out(section, system.peer, error)
                        systems.remove(system)
    report(section, session, peers, found)
    return section


def report(section: Section, session: Session, peers: list[Peer], found: Found) -> None:
    """The table, the chart and the goals of what was found."""
    section.notes.append(
        f"Open loop: {SECONDS} s at a fixed rate, measured from the moment a task was due to be sent to the "
        f"first line of its handler, the client's own cost included; {session.runs} runs in turns. With "
        "Headrace it is the start of a Flow by a request to its first Step: over the main port, over the "
        "worker listener, and over the listener of one node to a worker connected to another. *Result to "
        f"next Step* is what a Flow that runs waits between two Steps: {FLOWS} of them, each thinks for a "
        "random time before it gives a result."
    )
    titles = {peer.name: (peer.title, peer.headrace) for peer in peers} | {NEXT: (NEXT_TITLE, True)}
    rows, bars = [], []
    for (name, rate), runs in sorted(found.items(), key=lambda item: (item[0][1], min(item[1]))):
        title, headrace = titles[name]
        p50, p99 = zip(*runs, strict=True)
        rows.append([f"{title}, {rate:,}/s", cell(p50, 2), cell(p99, 2)])
        bars.append(Bar(f"{name}, {rate:,}/s", median(p99), min(p99), max(p99), headrace))
    section.table(("system, rate", "p50 ms", "p99 ms"), rows)
    if bars:
        section.chart(
            "bench-hand-out", "p99 of hand-out", bar_chart("Hand-out, p99", "milliseconds", bars, 1)
        )
    section.goals = goals(found)


def goals(found: Found) -> list[Goal]:
    """Our own hand-out, inside a Flow and of one that is started over the worker listener, at each rate."""
    reached = []
    for name, manner in ((NEXT, "result to next Step"), (LISTENER, "start, worker listener")):
        for rate in RATES:
            runs = found.get((name, rate))
            for place, figure, most in ((0, "p50", MOST_P50), (1, "p99", MOST_P99)):
                text = f"{figure} under {most:g} ms at {rate:,}/s, {manner}"
                if runs is None:
                    reached.append(Goal(text, None, "-"))
                else:
                    got = median(run[place] for run in runs)
                    reached.append(Goal(text, got < most, f"{got:.2f} ms"))
    return reached
