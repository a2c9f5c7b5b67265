"""W6: what parked polls and open streams without work cost a node and its Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
SECONDS = 3.0
SETTLE_SECONDS = 3.0
MOST_CPU, MOST_COMMANDS = 0.02, 50.0


@asynccontextmanager
async def streams(system: System) -> AsyncIterator[None]:
    """Streams of one slot each, none of which gets a task."""
    assert system.cluster is not None
    async with slot_workers(system.cluster.url, "none", STREAMS, 1, 0, lambda _flow: None):
        yield


@asynccontextmanager
async def polls(system: System) -> AsyncIterator[None]:
    """Long polls for both kinds of tasks."""
    assert system.cluster is not None
    async with parked_polls(system.cluster.nodes, POLLS, QUEUES):
        yield


async def measure(session: Session) -> Section:
    """Both, one after the other, each on a node of its own; several windows of one opening."""
    section = Section("W6", "parked polls and idle streams")
    rows = []
    for title, count, opened in (("polls", POLLS, polls), ("streams", STREAMS, streams)):
        async with running(named("flows"), session.place("idle")) as system:
            assert system.cluster is not None
            pid = system.cluster.nodes[0].child.process.pid
            before = resident_bytes(pid)
            async with opened(system):
                await trio.sleep(SETTLE_SECONDS)
                each = (resident_bytes(pid) - before) / count / 1024
                windows = [await window(system) for _ in range(session.runs)]
        cpu, store, sent, inside = (list(column) for column in zip(*windows, strict=True))
        say(f"{count:,} {title}", f"{each:.1f} KiB each, {median(cpu):.2%} of a core, {median(sent):.0f}/s")
        rows.append(
            [
                f"{count:,} {title}",
                f"{each:.1f}",
                cell([value * 100 for value in cpu], 1),
                cell([value * 100 for value in store], 1),
                cell(sent, 1),
                cell(inside),
            ]
        )
        section.goals += [
            Goal(f"{title}: under 2 % of a core", median(cpu) < MOST_CPU, f"{median(cpu):.1%}"),
            Goal(
                f"{title}: under 50 commands/s sent to Redis",
                median(sent) < MOST_COMMANDS,
                f"{median(sent):.1f}/s",
            ),
        ]
    section.notes.append(
        f"One node, {QUEUES} queues under the polls, {session.runs} windows of {SECONDS:g} s. Memory is "
        "the growth of the node's resident memory. Commands are those the node sends; each script is one, "
        "what it does inside is the last column."
    )
    head = (
        "idle",
        "KiB each",
        "node, % of a core",
        "Redis, % of a core",
        "commands/s",
        "with those in scripts",
    )
    section.table(head, rows)
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
