"""W3: tasks of a thousand small queues beside one huge one: how much longer do they wait?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from tests.bench.fan_out import WIDTH, queue_steps
from tests.bench.figures import Goal, cell, percentile, ratio, say
from tests.bench.peers.catalogue import BY_LISTENER, named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import System, running

QUEUES, EACH, RATE = 1_000, 20, 500
FIRST_FACTOR = 6
"""The huge queue has at first so many times the tasks of a run."""
MOST = 2.0


@dataclass
class Hot:
    """The huge queue. One that is empty before the small ones are done is no load: such a run does not
    count, and the queue is twice as long for the next.
    """

    factor: int = FIRST_FACTOR
    length: int = 0
    """Steps in it when the run began."""
    left: int = 0
    """Steps in it now."""

    def missing(self, tasks: int) -> int:
        """Steps to add before a run with so many tasks in the small queues."""
        least = self.factor * tasks // WIDTH * WIDTH + WIDTH
        return least if self.left < least else 0

    def lasted(self, ran: int) -> bool:
        """Take in how many Steps ran; whether there were enough of them."""
        self.left = max(0, self.length - ran)
        if not self.left:
            self.factor *= 2
        return self.left > 0


async def cold_p99(cold: System, tasks: int) -> float:
    """p99 in ms of tasks sent to the cold queues in turns; their worker is there already."""
    cold.forget()
    with cold.worker():
        await cold.send(QUEUES // 10, RATE)
        await cold.until(QUEUES // 10)
        await cold.send(tasks, RATE)
        await cold.until(QUEUES // 10 + tasks)
    return percentile(cold.latencies()[QUEUES // 10 :], 0.99) * 1000


async def loaded_p99(cold: System, hot: System, tasks: int, queue: Hot) -> float:
    """The same while a worker drains the huge queue, which is there until the end."""
    while True:
        missing = queue.missing(tasks)
        if missing:
            assert hot.cluster is not None
            await queue_steps(hot.cluster.url, "work", missing)
        queue.length = queue.left + missing
        hot.forget()
        with hot.worker():
            await hot.until(100)
            found = await cold_p99(cold, tasks)
            ran = hot.ran()
        if queue.lasted(ran):
            return found
        say("huge queue", f"{queue.length:,} Steps did not last; again with more")


async def measure(session: Session) -> Section:
    """Unloaded and loaded in turns, each on a node of its own."""
    section = Section("W3", "a thousand small queues beside a huge one")
    free: list[float] = []
    loaded: list[float] = []
    rest: list[int] = []
    queue = Hot()
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
                loaded.append(await loaded_p99(beside, hot, tasks, queue))
                rest.append(queue.left)
                more = f"{loaded[-1]:.2f} ms loaded, {queue.left:,} hot ones were left"
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
    text = f"p99 at most {MOST:g} x unloaded"
    if not loaded:
        section.goals = [Goal(text, None, "-")]
        return section
    times = ratio(loaded, free)
    section.goals = [Goal(text, times <= MOST, f"{times:.2f} x ({median(loaded):.1f} ms)")]
    return section
