"""W6: what parked polls and open streams without work cost a node and its Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import trio

from tests.bench.figures import Goal, cell, say
from tests.bench.measuring import resident_bytes
from tests.bench.peers.catalogue import named
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.stream_load import slot_workers
from tests.bench.systems import System, running
from tests.idle import parked_polls, total

POLLS, QUEUES, STREAMS = 5_000, 100, 2_000
SECONDS = 5.0
"""Of a window; all windows together are longer than the 20 s between two pings of a stream."""
SETTLE_SECONDS = 3.0
MOST_CPU, MOST_COMMANDS = 0.02, 50.0
HEAD = (
    "idle",
    "KiB each",
    "node, % of a core",
    "Redis, % of a core",
    "commands/s",
    "with those in scripts",
)


@asynccontextmanager
async def streams(each: int, system: System) -> AsyncIterator[None]:
    """Streams that share connections, ``each`` to one; none of them gets a task."""
    assert system.cluster is not None
    async with slot_workers(system.cluster.url, "none", STREAMS // each, each, 0, lambda _flow: None):
        yield


@asynccontextmanager
async def polls(system: System) -> AsyncIterator[None]:
    """Long polls for both kinds of tasks."""
    assert system.cluster is not None
    async with parked_polls(system.cluster.nodes, POLLS, QUEUES):
        yield


@dataclass
class Idle:
    """Something that waits, and what it was seen to cost."""

    title: str
    count: int
    opened: Callable[[System], AbstractAsyncContextManager[None]]
    most_kib: float | None = None
    """The goal for each, in KiB of the node's memory."""
    kib: float = 0.0
    windows: list[tuple[float, float, float, float]] = field(default_factory=list)

    def row(self) -> list[str]:
        cpu, store, sent, inside = (list(column) for column in zip(*self.windows, strict=True))
        percents = [cell([value * 100 for value in values], 1) for values in (cpu, store)]
        return [f"{self.count:,} {self.title}", f"{self.kib:.1f}", *percents, cell(sent, 1), cell(inside)]

    def goals(self) -> list[Goal]:
        cpu, sent = (median(window[place] for window in self.windows) for place in (0, 2))
        reached = [
            Goal(f"{self.title}: under 2 % of a core", cpu < MOST_CPU, f"{cpu:.1%}"),
            Goal(f"{self.title}: under 50 commands/s sent to Redis", sent < MOST_COMMANDS, f"{sent:.1f}/s"),
        ]
        if self.most_kib is not None:
            text = f"{self.title}: under {self.most_kib:g} KiB each"
            reached.append(Goal(text, self.kib < self.most_kib, f"{self.kib:.1f} KiB"))
        return reached


async def measure(session: Session) -> Section:
    """One kind after the other, each on a node of its own; several windows of one opening."""
    section = Section("W6", "parked polls and idle streams")
    kinds = [
        Idle("polls", POLLS, polls),
        Idle("streams, 16 to a connection", STREAMS, partial(streams, 16), 10.0),
        Idle("streams, each alone", STREAMS, partial(streams, 1), 60.0),
    ]
    with session.measuring(section):
        for kind in kinds:
            async with running(named("flows"), session.place("idle")) as system:
                assert system.cluster is not None
                pid = system.cluster.nodes[0].child.process.pid
                before = resident_bytes(pid)
                async with kind.opened(system):
                    await trio.sleep(SETTLE_SECONDS)
                    kind.kib = (resident_bytes(pid) - before) / kind.count / 1024
                    for _ in session.numbers():
                        kind.windows.append(await window(system))
            say(f"{kind.count:,} {kind.title}", " | ".join(kind.row()[1:]))
    seen = [kind for kind in kinds if kind.windows]
    section.notes.append(
        f"One node, {QUEUES} queues under the polls, {session.runs} windows of {SECONDS:g} s, in which "
        "streams are pinged. Memory is the growth of the node's resident memory. Commands are those the node "
        "sends; each script is one, what it does inside is the last column."
    )
    section.table(HEAD, [kind.row() for kind in seen])
    section.goals = [goal for kind in seen for goal in kind.goals()]
    return section


async def window(system: System) -> tuple[float, float, float, float]:
    """Node and Redis as parts of a core, commands sent and commands run a second."""
    assert system.cluster is not None
    nodes = system.cluster.nodes
    sent, before, began = await total(nodes, SENT), system.used(), trio.current_time()
    await trio.sleep(SECONDS)
    used, seconds = system.used() - before, trio.current_time() - began
    commands = await total(nodes, SENT) - sent
    return used.server / seconds, used.store / seconds, commands / seconds, used.commands / seconds


SENT = "headrace_store_commands_total"
