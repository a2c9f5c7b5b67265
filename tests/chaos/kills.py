"""Nodes are killed one after the other, every few seconds, while work is offered at a steady rate.

``python -m tests.chaos.kills [--kills 100] [--every 2] [--tasks 50000] [--rate 250] [--keep DIR]`` prints
what became of the work and how soon it went on after each kill, and ends with 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import trio

from cluster.store.keys import Keys
from tests.chaos.arrangements import Kind
from tests.chaos.campaign import PREFIX, close_site, note_remains
from tests.chaos.checker import Broken, check
from tests.chaos.programs import run_program
from tests.chaos.record import (
    Answered,
    Cap,
    FaultBegan,
    FaultEnded,
    HandedOut,
    Line,
    Outcome,
    Recorder,
    read_lines,
)
from tests.chaos.recorded_worker import ACTIVITY
from tests.chaos.recovery import SECOND, Spread, back_after, longest_silence, spread
from tests.chaos.site import CAP, TENANTS, Layout, Site, open_site
from tests.chaos.steady import Steady
from tests.waiting import eventually

CALM_SECONDS: Final = 3.0
"""Before the first kill and after the last one."""
SETTLE_SECONDS: Final = 90.0
"""For work that was under way: what a dead node had handed out comes back after ten seconds."""
NODE_KILLED: Final = "node killed"
_ALIVE: Final = Keys(PREFIX).sessions("alive")
_PRESENCE: Final = f"{PREFIX}:{{p*}}:ses:*"


@dataclass(frozen=True, slots=True)
class Toll:
    """What a run showed. ``back``, ``silence`` and the ``pause`` from kill to kill in seconds."""

    offered: int
    rate: float
    hand_outs: int
    refused: Counter[str]
    """Answers, by the reason they were refused for."""
    kills: int
    back: Spread
    silence: Spread
    pause: Spread
    slow: Sequence[tuple[int, float]]
    """The kills after which it took longest, with the seconds."""
    quiet: Sequence[tuple[str, float]]
    """Each tenant's tasks of one kind, with how long (s) none was handed out: a queue that stands still hides
    among others that go on. The longest first."""
    broken: Sequence[Broken]
    complaints: Sequence[str]

    def __str__(self) -> str:
        slow = ", ".join(f"{seconds:.1f} s after kill {number}" for number, seconds in self.slow)
        quiet = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.quiet)
        return (
            f"{self.offered} tasks offered at {self.rate:.0f}/s, {self.hand_outs} hand-outs, "
            f"{self.refused.total()} answers refused {dict(self.refused)}, {self.kills} kills\n"
            f"from kill to kill (s): {self.pause}\n"
            f"back at 90 % (s): {self.back}\nsilence (s): {self.silence}\nslowest: {slow}\n"
            f"longest without a hand-out, by kind (s): {quiet}"
        )


async def run_kills(
    directory: Path,
    layout: Layout,
    *,
    kills: int,
    every: float,
    tasks: int,
    rate: float,
    within: float = float("inf"),
    seed: int = 1,
) -> Toll:
    """Offer at least ``tasks`` tasks, ``rate`` a second, while ``kills`` nodes are killed.

    After ``within`` seconds no more are killed.
    """
    async with open_site(directory, layout, seed) as site:
        await site.start()
        with Recorder(directory / "clients.events", "clients") as recorder:
            recorder.note(Cap(cap=f"{TENANTS[0]}:{ACTIVITY}", most=CAP))
            steady = Steady(site.cluster.url, recorder, seed, rate, tasks)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(steady.run)
                await trio.sleep(CALM_SECONDS)
                with trio.move_on_after(within):
                    await _kill_in_turn(site, recorder, kills, every)
                await trio.sleep(CALM_SECONDS)
                steady.stopping.set()
            await site.whole()
            await steady.look_back(SETTLE_SECONDS)
            await eventually(partial(_buried, site), SETTLE_SECONDS)
            complaints = await close_site(site)
            await note_remains(site, recorder)
        lines = read_lines(site.records())
    return judge(lines, steady.offered, rate, complaints)


def _buried(site: Site) -> bool:
    """Whether the sessions of nodes that were killed are over, and what those said of their workers."""
    alive: set[bytes] = set()
    spoken: set[bytes] = set()
    for server in site.store.primaries():
        with server.client() as client:
            alive |= {bytes(session) for session in client.zrange(_ALIVE, 0, -1)}
            spoken |= {key.rpartition(b":")[2] for key in client.scan_iter(_PRESENCE, count=1000)}
    return len(alive) == len(site.cluster.nodes) and spoken <= alive


async def _kill_in_turn(site: Site, recorder: Recorder, kills: int, every: float) -> None:
    """One ``every`` so many seconds, but never before the last one serves again: two are always there."""
    nodes = site.cluster.nodes
    due = trio.current_time()
    for number in range(1, kills + 1):
        node = nodes[number % len(nodes)]
        recorder.note(FaultBegan(number=number, fault=NODE_KILLED, target=node.name))
        node.kill()
        node.start()
        recorder.note(FaultEnded(number=number))
        due += every
        await trio.sleep_until(due)
        await node.ready()
        due = max(due, trio.current_time() - every)


def judge(lines: Sequence[Line], offered: int, rate: float, complaints: Sequence[str]) -> Toll:
    """What the lines of a run say."""
    handed = [line.at for line in lines if isinstance(line, HandedOut)]
    killed = [line.at for line in lines if isinstance(line, FaultBegan)]
    back = [back_after(handed, moment, rate) for moment in killed]
    ends = [*killed[1:], killed[-1] + int(CALM_SECONDS * SECOND)] if killed else []
    silence = [longest_silence(handed, *pair) for pair in zip(killed, ends, strict=True)]
    refused = Counter(
        line.reason for line in lines if isinstance(line, Answered) and line.outcome is Outcome.REFUSED
    )
    slow = sorted(enumerate(back, 1), key=lambda pair: -pair[1])[:3]
    return Toll(
        offered=offered,
        rate=rate,
        hand_outs=len(handed),
        refused=refused,
        kills=len(killed),
        back=spread(back),
        silence=spread(silence),
        pause=spread([(b - a) / SECOND for a, b in pairwise(killed)]),
        slow=slow,
        quiet=_quiet(lines, killed[0], ends[-1]) if killed else (),
        broken=check(lines),
        complaints=complaints,
    )


def _quiet(lines: Sequence[Line], begin: int, end: int) -> list[tuple[str, float]]:
    """How long no task of a tenant and kind was handed out between two moments (ns), the longest first."""
    times: defaultdict[str, list[int]] = defaultdict(list)
    for line in lines:
        if isinstance(line, HandedOut):
            kind = "steps" if not line.lasts else "activities" if line.renumbered else "workflow tasks"
            times[f"{line.tenant} {kind}"].append(line.at)
    found = [(name, longest_silence(sorted(handed), begin, end)) for name, handed in times.items()]
    return sorted(found, key=lambda one: -one[1])


async def _main(options: argparse.Namespace, directory: Path) -> Sequence[object]:
    layout = Layout(Kind.SINGLE, nodes=options.nodes, slots=options.slots, tampered=False, sdk=False)
    toll = await run_kills(
        directory,
        layout,
        kills=options.kills,
        every=options.every,
        tasks=options.tasks,
        rate=options.rate,
        within=options.minutes * 60,
        seed=options.seed,
    )
    print(toll)
    return [*toll.broken, *toll.complaints]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=float, default=2.0, help="seconds from one kill to the next")
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--rate", type=float, default=250.0, help="tasks a second")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no kills after that")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--slots", type=int, default=32, help="of each worker of the stream plane")
    parser.add_argument("--seed", type=int, default=1)
    return run_program(parser, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
