"""W3: tasks of a thousand small queues beside one huge one: how much longer do they wait?"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import trio

from tests.bench.fan_out import queue_steps
from tests.bench.figures import Goal, cell, percentile, ratio, say
from tests.bench.peers.catalogue import named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import System, running

QUEUES, EACH, RATE = 1_000, 2, 400
HOT = 20_000
MOST = 2.0
COLD_ENVIRON = {"BENCH_TYPES": str(QUEUES)}


async def cold_p99(cold: System) -> float:
    """p99 in ms of tasks sent to the cold queues in turns; their worker is there already."""
    cold.forget()
    with cold.worker():
        await cold.send(QUEUES // 10, RATE)
        await cold.until(QUEUES // 10)
        await cold.send(QUEUES * EACH, RATE)
        await cold.until(QUEUES // 10 + QUEUES * EACH)
    return percentile(cold.latencies()[QUEUES // 10 :], 0.99) * 1000


async def measure(session: Session) -> Section:
    """Unloaded and loaded in turns, on one node."""
    section = Section("W3", "a thousand small queues beside a huge one")
    free: list[float] = []
    loaded: list[float] = []
    hot_peer = named("steps-lean")
    async with running(replace(hot_peer, environ=COLD_ENVIRON), session.place("cold")) as cold:
        assert cold.cluster is not None
        hot = cold.beside("hot", replace(hot_peer, environ={}))
        for _ in session.numbers():
            free.append(await cold_p99(cold))
            hot.forget()
            await queue_steps(cold.cluster.url, "work", HOT)
            with hot.worker():
                await hot.until(100)
                loaded.append(await cold_p99(cold))
                left = HOT - hot.ran()
                await hot.until(HOT)
            say(
                "cold p99",
                f"{free[-1]:.2f} ms alone, {loaded[-1]:.2f} ms loaded, {left:,} hot ones were left",
            )
            await trio.sleep(1)
    times = ratio(loaded, free)
    section.notes.append(
        f"{QUEUES:,} queues (flow types) get {EACH} tasks each at {RATE} a second, for one worker of 64 "
        f"slots; the huge one holds {HOT:,} Steps, which another drains at the same time as fast as it can."
    )
    section.table(
        ("", "p99 ms of the small ones"),
        [["alone", cell(free, 2)], ["beside the huge one", cell(loaded, 2)]],
    )
    section.goals = [
        Goal(f"p99 at most {MOST:g} x unloaded", times <= MOST, f"{times:.2f} x ({median(loaded):.1f} ms)")
    ]
    return section
