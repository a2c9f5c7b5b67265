"""W5: what a workflow costs its server, and how many end in a second, beside other workflow engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

from tests.bench.charts import Bar, bar_chart
from tests.bench.figures import Goal, cell, ratio, say
from tests.bench.measuring import Usage, usage
from tests.bench.peers.catalogue import DBOS, RESTATE, TEMPORAL, WORKFLOWS
from tests.bench.peers.engines import SERVERS
from tests.bench.peers.peer import Peer
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.systems import Stalled, System, leave_out, running

SHAPES = ((1, 1), (3, 1), (1, 40), (3, 40))
"""Activities of a workflow, workflows at once."""
ALONE, TOGETHER = 20, 200
"""Workflows of a run, one at a time and side by side."""
MOST_CPU, MOST_MS = 0.5, 10.0
LEAN = "lean-listener"
RATES = (
    (LEAN, TEMPORAL, 3.0),
    (LEAN, RESTATE, 3.0),
    (LEAN, DBOS, 3.0),
    ("lean-main", TEMPORAL, 2.0),
    ("sdk-listener", TEMPORAL, 1.0),
)
"""Whose rate is to be how many times whose, with one activity and 40 at once."""
HEAD = (
    "engine, shape",
    "workflows/s",
    "CPU of server and store, ms each",
    "with worker and client",
)
Shape = tuple[int, int]


@dataclass
class Ended:
    """The runs of one system in one shape."""

    rates: list[float] = field(default_factory=list)
    used: list[Usage] = field(default_factory=list)
    """What one workflow used, in each run; the client counts as a worker."""

    def everything(self) -> list[float]:
        """CPU of one workflow, ms, with worker and client."""
        return [used.cpu * 1000 for used in self.used]

    def server(self) -> list[float]:
        """CPU of server and store for one workflow, ms."""
        return [(used.server + used.store) * 1000 for used in self.used]


@dataclass
class Engine:
    """A workflow engine whose server is a process beside a worker."""

    system: System
    servers: list[int]
    worker: int

    async def run(self, shape: Shape, ended: Ended) -> None:
        activities, at_once = shape
        count = ALONE if at_once == 1 else TOGETHER
        await self.system.drive(activities, at_once, min(count, 20))
        before = self._used()
        seconds, client = await self.system.drive(activities, at_once, count)
        ended.used.append((self._used() - before + Usage(worker=client)).per(count))
        ended.rates.append(count / seconds)
        title = f"{self.system.peer.title}, {activities} activities, {at_once} at once"
        say(title, f"{ended.rates[-1]:,.1f}/s, {ended.server()[-1]:.2f} ms of server and store CPU")

    def _used(self) -> Usage:
        store = None if self.system.cluster is None else self.system.redis
        return usage(store, self.servers, [self.worker])


@asynccontextmanager
async def engine(peer: Peer, session: Session) -> AsyncIterator[Engine]:
    """``peer`` with its server and a worker. Raises NotInstalled."""
    async with running(peer, session.place(peer.name)) as system:
        if system.cluster is not None:
            with system.worker() as worker:
                yield Engine(system, [node.child.process.pid for node in system.cluster.nodes], worker)
            return
        async with SERVERS[peer.name](system.home, system.directory) as server:
            system.more |= server.environ
            with system.worker() as worker:
                await server.settled()
                yield Engine(system, [server.process], worker)


async def tried(one: Engine, shape: Shape, ended: Ended, section: Section) -> bool:
    """Run once, and once more when the client fails, as some do now and then; False when that fails too."""
    try:
        await one.run(shape, ended)
    except Stalled as error:
        say(f"{one.system.peer.title} again", str(error))
        try:
            await one.run(shape, ended)
        except Stalled as error:
            leave_out(section, one.system.peer, error)
            return False
    return True


async def measure(session: Session) -> Section:
    """Every engine in turns, in every shape."""
    section = Section("W5", "workflows of one and of three activities")
    found: dict[tuple[str, Shape], Ended] = {}
    async with AsyncExitStack() as stack:
        engines: list[Engine] = []
        for peer in WORKFLOWS:
            if peer.installed and session.only and peer.name not in session.only:
                continue
            try:
                engines.append(await stack.enter_async_context(engine(peer, session)))
            except Exception as error:
                leave_out(section, peer, error)
        with session.measuring(section):
            for _ in session.numbers():
                for shape in SHAPES:
                    for one in list(engines):
                        ended = found.setdefault((one.system.peer.name, shape), Ended())
                        if not await tried(one, shape, ended, section):
                            engines.remove(one)
    report(section, found, session.runs)
    return section


def report(section: Section, found: dict[tuple[str, Shape], Ended], runs: int) -> None:
    section.notes.append(
        f"{ALONE} workflows one at a time, {TOGETHER} with 40 at once, {runs} runs in turns. CPU is that of "
        "the server with its store, and beside it that of server, store, worker and client together, without "
        "HAProxy. Temporal is its development server with the database in a file (SQLite): made for one "
        "machine, as all of this comparison; a production cluster of Temporal is another thing. DBOS is a "
        "library: the engine runs in the client's process, and its server is PostgreSQL with default "
        "settings, so with fsync. Its activities, and those of Restate, are steps within the workflow's "
        "process, not tasks that any worker may take. The public SDK asks for a result every half second, "
        "as it does by default, with 40 at once, and every 50 ms one at a time, which limits both."
    )
    titles = {peer.name: peer.title for peer in WORKFLOWS}
    rows, bars = [], []
    for shape in SHAPES:
        for name, title in titles.items():
            ended = found.get((name, shape))
            if ended is None or not ended.rates:
                continue
            label = f"{title}; {shape[0]} activit{'y' if shape[0] == 1 else 'ies'}, {shape[1]} at once"
            rows.append([label, cell(ended.rates, 1), cell(ended.server(), 2), cell(ended.everything(), 2)])
            if shape == (1, 40):
                cpu = ended.server()
                bars.append(Bar(title, median(cpu), min(cpu), max(cpu), name not in SERVERS))
    section.table(HEAD, rows)
    if bars:
        svg = bar_chart("Server CPU of a one-activity workflow", "ms, 40 at once", bars, 1)
        section.chart("bench-workflows", "CPU of a workflow", svg)
    section.goals = goals(found)


def goals(found: dict[tuple[str, Shape], Ended]) -> list[Goal]:
    """Ours against others, run by run, with one activity."""
    reached = []
    for name in ("sdk-listener", LEAN):
        ours, theirs = (found.get((peer, (1, 40)), Ended()) for peer in (name, TEMPORAL.name))
        part = ratio(ours.server(), theirs.server()) if ours.rates and theirs.rates else None
        text = f"{name}: CPU at most half of Temporal's"
        reached.append(goal(text, part, "x", part is not None and part <= MOST_CPU))
    for name, peer, least in RATES:
        ours, theirs = (found.get((system, (1, 40)), Ended()) for system in (name, peer.name))
        times = ratio(ours.rates, theirs.rates) if ours.rates and theirs.rates else None
        text = f"{name}: at least {least:g} x the rate of {peer.name}"
        reached.append(goal(text, times, "x", times is not None and times >= least))
    alone = found.get((LEAN, (1, 1)), Ended()).rates
    each = 1000 / median(alone) if alone else None
    text = f"{LEAN}: under {MOST_MS:g} ms each, one at a time"
    reached.append(goal(text, each, "ms", each is not None and each < MOST_MS))
    return reached


def goal(text: str, measured: float | None, unit: str, reached: bool) -> Goal:
    return Goal(text, None, "-") if measured is None else Goal(text, reached, f"{measured:.2f} {unit}")
