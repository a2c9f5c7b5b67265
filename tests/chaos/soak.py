"""A cluster works for a long time, and what it uses does not grow.

``python -m tests.chaos.soak [--minutes 20] [--tasks 0] [--queued 1000] [--keep DIR]`` works until the time is
over and so many tasks were done, prints what was used in the beginning and in the end, and ends with 1 when
it grew or when something was left behind. ``HEADRACE_SOAK_MINUTES`` is another way to say how long.

Flows of the stream plane, never more than ``queued`` at a time, and workflows of the other plane, by workers
that come and go. What has ended is removed as retention does it, with a cutoff of now: else the store would
grow by what it is asked to keep.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import trio

from cluster.flows.retention import FlowRetention
from cluster.store.store import Store, open_store
from cluster.workflows.retention import Retention
from tests.bench.raw import connect
from tests.bench.stream_load import STEP_TYPE, slot_workers
from tests.chaos.growth import Sampler, judge, table
from tests.chaos.programs import run_program
from tests.chaos.remains import LASTING, compact, families
from tests.cluster_processes import Cluster, make_cluster
from tests.servers import Server, run_server
from tests.waiting import eventually
from tests.wire import schedule

PREFIX: Final = "hr1"
FLOW: Final = "soaking"
NAMESPACE: Final = "default"
LONGEST: Final = 100
"""Steps of a flow; its length is drawn from its id."""
STARTERS: Final = 8
REQUESTS: Final = 100
"""Of one connection; a node closes one after a thousand."""
SLOTS: Final = 16
STAY_SECONDS: Final = 10.0
"""How long a worker stays before another one comes in its place."""
WORKFLOWS: Final = 4
"""Workflows at a time, each with a worker of its own."""
TASKS_OF_WORKFLOW: Final = 3
CLEAN_SECONDS: Final = 0.5
LAST_SECONDS: Final = 120.0
"""For the flows that are open at the end."""
WARM: Final = 0.2
"""The share of the samples that is left out of account in the beginning."""
LEAST_SAMPLES: Final = 20
"""With fewer, nothing is said about growth."""
OF_EXECUTIONS: Final = {"wf", "run", "hist", "runs", "closed", "cmd", "fl", "flows", "fclosed", "steps"}
"""Families of keys that retention removes with their executions."""
_GO_ON: Final[dict[str, Any]] = {"decision": {"next": [{"step_type": STEP_TYPE}]}}
_END: Final[dict[str, Any]] = {"decision": {"complete": None}}


@dataclass
class Soak:
    """Keeps a cluster busy until told to stop; ``done`` counts tasks, ``open`` the flows under way."""

    cluster: Cluster
    store: Store
    queued: int
    done: int = 0
    stopping: bool = False
    open: set[str] = field(default_factory=set)
    _room: trio.Event = field(default_factory=trio.Event)
    _numbers: count[int] = field(default_factory=count)

    async def run(self) -> None:
        """Work until :attr:`stopping`, finish what is open, remove all of it."""
        async with trio.open_nursery() as cleaning:
            cleaning.start_soon(self._clean_forever)
            async with trio.open_nursery() as working:
                for node in self.cluster.nodes:
                    working.start_soon(self._workers, node.url)
                async with trio.open_nursery() as nursery:
                    for place in range(STARTERS):
                        nursery.start_soon(self._start_flows, self._url(place))
                    for place in range(WORKFLOWS):
                        nursery.start_soon(self._workflows, self._url(place), f"soaked-{place}")
                await eventually(self._all_ended, LAST_SECONDS)
                working.cancel_scope.cancel()
            cleaning.cancel_scope.cancel()
        while await self._clean():
            pass

    async def _all_ended(self) -> bool:
        """Whether every flow is over, and its record gone."""
        keys = self.store.keys
        left = 0
        for partition in range(keys.partitions):
            left += await self.store.call("ZCARD", keys.flows(partition, NAMESPACE), idempotent=True)
        return not self.open and not left

    def _url(self, place: int) -> str:
        return self.cluster.nodes[place % len(self.cluster.nodes)].url

    # -- flows --------------------------------------------------------------------------------

    async def _start_flows(self, url: str) -> None:
        while not self.stopping:
            if len(self.open) >= self.queued:
                await self._room.wait()
                continue
            async with connect(url) as connection:
                for _ in range(REQUESTS):
                    if self.stopping or len(self.open) >= self.queued:
                        break
                    flow_id = f"f{next(self._numbers)}"
                    self.open.add(flow_id)
                    body = {"flow_type": FLOW, "flow_id": flow_id, "start_step": STEP_TYPE}
                    await connection.post("/flows", body)

    async def _workers(self, url: str) -> None:
        """One worker after the other; each that leaves has taken no task with it."""
        while True:
            async with slot_workers(url, FLOW, 1, SLOTS, 0, lambda _: None, self._decide):
                await trio.sleep(STAY_SECONDS)

    def _decide(self, task: dict[str, Any]) -> dict[str, Any]:
        self.done += 1
        number = int(task["step_execution_id"].rpartition("-")[2])
        if number <= zlib.crc32(task["flow_id"].encode()) % LONGEST:
            return _GO_ON
        self.open.discard(task["flow_id"])  # more than once, if its worker leaves before it is told so
        self._room.set()
        self._room = trio.Event()
        return _END

    # -- workflows ----------------------------------------------------------------------------

    async def _workflows(self, url: str, queue: str) -> None:
        """One after the other, each by a worker that registers anew, over a connection of its own."""
        while not self.stopping:
            async with connect(url) as connection:
                await connection.register(queue, queue)
                await connection.start(f"w{next(self._numbers)}", queue)
                task = await connection.poll("workflow", queue, queue)
                assert task is not None
                await connection.complete_workflow(task, schedule("x", queue))
                activity = await connection.poll("activity", queue, queue)
                assert activity is not None
                await connection.complete_activity(activity)
                task = await connection.poll("workflow", queue, queue)
                assert task is not None
                await connection.complete_workflow(task, {"type": "complete_workflow"})
            self.done += TASKS_OF_WORKFLOW

    # -- retention ----------------------------------------------------------------------------

    async def _clean_forever(self) -> None:
        while True:
            await trio.sleep(CLEAN_SECONDS)
            while await self._clean():
                pass

    async def _clean(self) -> int:
        """Remove what has ended, as if its time were over; returns how much that was."""
        cutoffs = {NAMESPACE: 1 << 52}
        removed = 0
        for partition in range(self.store.keys.partitions):
            removed += await FlowRetention(self.store).keep(partition, cutoffs)
            removed += await Retention(self.store).keep(partition, cutoffs)
        return removed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did, what it used, and what was wrong about that."""

    tasks: int
    seconds: float
    used: str
    broken: Sequence[str]


async def run_soak(directory: Path, *, seconds: float, tasks: int, queued: int, nodes: int = 2) -> Outcome:
    """Work for so many seconds, and until so many tasks are done."""
    with (
        run_server("valkey", directory) as server,
        make_cluster(nodes, server.url, directory) as cluster,
    ):
        await cluster.start()
        async with open_store(server.url) as store, trio.open_nursery() as nursery:
            soak = Soak(cluster, store, queued)
            sampler = Sampler(server, cluster.nodes, lambda: soak.done)
            began = trio.current_time()
            nursery.start_soon(sampler.run, max(0.25, min(5.0, seconds / 100)))
            nursery.start_soon(_stop, soak, began + seconds, tasks)
            await soak.run()
            lasted = trio.current_time() - began
            nursery.cancel_scope.cancel()
        broken = await _farewell(cluster)
        await compact(server.url, PREFIX, within=60)
        broken += _left(server)
    samples = [sample for sample in sampler.samples if sample.at < lasted]
    samples = samples[int(len(samples) * WARM) :]
    if len(samples) >= LEAST_SAMPLES:
        broken += judge(samples)
    return Outcome(soak.done, lasted, table(samples), broken)


async def _stop(soak: Soak, until: float, tasks: int) -> None:
    await trio.sleep_until(until)
    await eventually(lambda: soak.done >= tasks, float("inf"))
    soak.stopping = True


async def _farewell(cluster: Cluster) -> list[str]:
    """Stop the nodes; what they complained about."""
    broken = []
    for node in cluster.nodes:
        if (code := await node.stop(60)) or "Traceback" in node.log:
            broken.append(f"{node.name} ended with {code}: {node.log[-1000:]}")
    return broken


def _left(server: Server) -> list[str]:
    """What should not be in the store any more."""
    with server.client() as client:
        found: Counter[str] = families(client, PREFIX)
    wrong = {name: number for name, number in found.items() if name in OF_EXECUTIONS or name not in LASTING}
    return [f"{number} keys of family {name!r} are left" for name, number in sorted(wrong.items())]


async def _main(options: argparse.Namespace, directory: Path) -> Sequence[object]:
    outcome = await run_soak(
        directory, seconds=options.minutes * 60, tasks=options.tasks, queued=options.queued
    )
    print(f"{outcome.tasks:,} tasks in {outcome.seconds:.0f} s, at most {options.queued} flows open")
    print(outcome.used)
    return outcome.broken


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    minutes = float(os.environ.get("HEADRACE_SOAK_MINUTES", "20"))
    parser.add_argument("--minutes", type=float, default=minutes, help="how long to work at least")
    parser.add_argument("--tasks", type=int, default=0, help="how many tasks to do at least")
    parser.add_argument("--queued", type=int, default=1000, help="most flows at a time")
    return run_program(parser, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
