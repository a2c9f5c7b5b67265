"""Nodes stand still for 1 to 30 seconds, up to two of three at a time, while work is offered steadily.

``python -m tests.chaos.pauses [--pauses 100] [--longest 30] [--rate 40] [--keep DIR]`` prints how soon others
kept the partitions of a node that stood still, and ends with 1 when anything was accepted from a node whose
time was over: a lease, a script of housekeeping, a hand-out, or what breaks a promise of the checker.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio

from cluster.store.keys import QueueName
from cluster.store.store import Store, open_store
from tests.chaos.arrangements import Kind
from tests.chaos.campaign import close_site, note_remains
from tests.chaos.checker import check
from tests.chaos.leases import LeaseWatch, claim_refused, housekeeping_refused
from tests.chaos.programs import run_program
from tests.chaos.record import FaultBegan, FaultEnded, Recorder, now, read_lines
from tests.chaos.recorded_worker import QUEUE
from tests.chaos.recovery import SECOND, spread
from tests.chaos.site import TENANTS, Layout, Site, open_site
from tests.chaos.steady import Steady
from tests.cluster_processes import NodeProcess

AT_ONCE: Final = 2
"""The third node goes on, so that there is somebody to take over."""
APART_SECONDS: Final = 4.5
"""Between two beginnings: what one node gives up is taken before the next one stops."""
SHORTEST: Final = 1.0
LEASE_SECONDS: Final = 3.0
"""A pause that is shorter costs no lease."""
SETTLE_SECONDS: Final = 60.0
NODE_PAUSED: Final = "node stands still"


@dataclass
class Pauses:
    """Stops and continues nodes, and looks what becomes of what they kept."""

    site: Site
    store: Store
    recorder: Recorder
    random: Random
    longest: float
    hand_overs: list[float] = field(default_factory=list)
    """Seconds from a node's last moment to another keeper, one of each partition."""
    probes: int = 0
    begun: int = 0
    accepted: list[str] = field(default_factory=list)
    """What was taken from somebody whose time was over."""

    def __post_init__(self) -> None:
        self.watch = LeaseWatch(self.site.store.servers[0], self.store.keys)
        self._still: set[str] = set()
        self._places = trio.CapacityLimiter(AT_ONCE)

    async def run(self, number: int) -> None:
        """Let it happen so many times."""
        async with trio.open_nursery() as watching:
            watching.start_soon(self.watch.run)
            async with trio.open_nursery() as nursery:
                while self.begun < number:
                    await self._places.acquire_on_behalf_of(self.begun)
                    nursery.start_soon(self._pause, self.begun, self._choose())
                    self.begun += 1
                    await trio.sleep(APART_SECONDS)
            watching.cancel_scope.cancel()
        self.accepted += [f"a lease came back: {change}" for change in self.watch.returned]

    def _choose(self) -> NodeProcess:
        return self.random.choice([node for node in self.site.cluster.nodes if node.name not in self._still])

    async def _pause(self, number: int, node: NodeProcess) -> None:
        seconds = self.random.uniform(SHORTEST, self.longest)
        self._still.add(node.name)
        self.recorder.note(FaultBegan(number=number, fault=NODE_PAUSED, target=node.name))
        kept, seen, began = self.watch.of(node.name), len(self.watch.changes), now()
        node.signal(signal.SIGSTOP)
        await trio.sleep(seconds)
        changes = [one for one in self.watch.changes[seen:] if one.old.node == node.name and one.new.owner]
        self.hand_overs += [(one.at - began) / SECOND for one in changes]
        still = [partition for partition in kept if self.watch.held[partition].node == node.name]
        if seconds > LEASE_SECONDS + 2 and still:
            self.accepted.append(f"{node.name} stood still for {seconds:.0f} s and kept {still}")
        for change in changes:
            self.probes += 1
            if not await housekeeping_refused(self.store, change):
                self.accepted.append(f"housekeeping of {change.old} in partition {change.partition}")
        for session in await self._buried({change.old.owner for change in changes}):
            self.probes += 1
            queues = [QueueName("w", tenant, QUEUE) for tenant in TENANTS]
            if not await claim_refused(self.store, session, queues):
                self.accepted.append(f"a claim of {session}")
        node.signal(signal.SIGCONT)
        await node.ready()
        self.recorder.note(FaultEnded(number=number))
        self._still.discard(node.name)
        self._places.release_on_behalf_of(number)

    async def _buried(self, sessions: set[str]) -> list[str]:
        key = self.store.keys.sessions("dead")
        dead = {name.decode() for name in await self.store.call("ZRANGE", key, 0, -1, idempotent=True)}
        return sorted(sessions & dead)


async def run_pauses(
    directory: Path, *, pauses: int, longest: float, rate: float, seed: int = 1
) -> tuple[Pauses, list[object]]:
    """Offer work at ``rate`` tasks a second meanwhile; returns what was broken too."""
    async with open_site(directory, Layout(Kind.SINGLE, slots=16, tampered=False, sdk=False), seed) as site:
        await site.start()
        with Recorder(directory / "clients.events", "clients") as recorder:
            steady = Steady(site.cluster.url, recorder, seed, rate, 0)
            async with open_store(site.store.url) as store, trio.open_nursery() as nursery:
                nursery.start_soon(steady.run)
                fates = Pauses(site, store, recorder, Random(seed), longest)
                await fates.run(pauses)
                steady.stopping.set()
            await site.whole()
            await steady.look_back(SETTLE_SECONDS)
            complaints = await close_site(site)
            await note_remains(site, recorder)
        return fates, [*check(read_lines(site.records())), *complaints, *fates.accepted]


async def _main(options: argparse.Namespace, directory: Path) -> Sequence[object]:
    fates, broken = await run_pauses(
        directory, pauses=options.pauses, longest=options.longest, rate=options.rate, seed=options.seed
    )
    print(f"{fates.begun} pauses; {fates.probes} writes tried in the name of nodes whose time was over")
    print(f"until others kept a partition (s): {spread(fates.hand_overs)}")
    return broken


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pauses", type=int, default=100)
    parser.add_argument("--longest", type=float, default=30.0, help="seconds; the shortest takes one")
    parser.add_argument("--rate", type=float, default=40.0, help="tasks a second")
    parser.add_argument("--seed", type=int, default=1)
    return run_program(parser, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
