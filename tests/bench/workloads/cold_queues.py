"""W3: tasks of a thousand small queues beside one huge one: how much longer do they wait?"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from tests.bench.fan_out import WIDTH, queue_steps
from tests.bench.figures import Goal, cell, percentile, ratio, say
from tests.bench.peers.catalogue import BY_LISTENER, named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import System, running

QUEUES, EACH, RATE = 1_000, 20, 500
HOT_FACTOR = 6
"""The huge queue has at least so many times the tasks of a run when it begins, enough for the whole of it."""
MOST = 2.0


async def cold_p99(cold: System, tasks: int) -> float:
    """p99 in ms of tasks sent to the cold queues in turns; their worker is there already."""
    cold.forget()
    with cold.worker():
        await cold.send(QUEUES // 10, RATE)
        await cold.until(QUEUES // 10)
        await cold.send(tasks, RATE)
        await cold.until(QUEUES // 10 + tasks)
    return percentile(cold.latencies()[QUEUES // 10 :], 0.99) * 1000


async def loaded_p99(cold: System, hot: System, tasks: int, left: int) -> tuple[float, int]:
    """The same while a worker drains the huge queue of ``left`` Steps; and how many are left of it then."""
    least = HOT_FACTOR * tasks // WIDTH * WIDTH + WIDTH
    if left < least:
        assert hot.cluster is not None
        await queue_steps(hot.cluster.url, "work", least)
        left += least
    hot.forget()
    with hot.worker():
        await hot.until(100)
        found = await cold_p99(cold, tasks)
        return found, left - hot.ran()


async def measure(session: Session) -> Section:
    """Unloaded and loaded in turns, each on a node of its own."""
    section = Section("W3", "a thousand small queues beside a huge one")
    free: list[float] = []
    loaded: list[float] = []
    rest: list[int] = []
    tasks = min(QUEUES * EACH, session.tasks)
    lean = named("steps-lean")
    peer = replace(lean, environ={**BY_LISTENER, "BENCH_TYPES": str(QUEUES)})
    async with (
        running(peer, session.place("alone")) as alone,
        running(peer, session.place("beside")) as beside,
    ):
        hot = beside.beside("hot", replace(lean, environ={}))
        with session.measuring(section):
            for _ in session.numbers():
                free.append(await cold_p99(alone, tasks))
                found, left = await loaded_p99(beside, hot, tasks, rest[-1] if rest else 0)
                loaded.append(found)
                rest.append(left)
                more = f"{loaded[-1]:.2f} ms loaded, {left:,} hot ones were left"
                say("cold p99", f"{free[-1]:.2f} ms alone, {more}")
    section.notes.append(
        f"{QUEUES:,} queues (flow types) get {tasks:,} tasks in turns at {RATE} a second, each a Flow "
        f"started over the worker listener, for one worker of 64 slots; {session.runs} runs. The huge one is "
        "a queue of Steps which another worker drains at the same time as fast as it can; of it were left at "
        f"the end of the runs: {', '.join(f'{left:,}' for left in rest)}."
    )
    section.table(
        ("", "p99 ms of the small ones"),
        [["alone", cell(free, 2)], ["beside the huge one", cell(loaded, 2)]] if loaded else [],
    )
    times = ratio(loaded, free)
    section.goals = [
        Goal(f"p99 at most {MOST:g} x unloaded", times <= MOST, f"{times:.2f} x ({median(loaded):.1f} ms)")
    ]
    return section
