"""A node with thousands of parked polls, leases and running steps is told to stop.

``python -m tests.chaos.drain [--polls 5000] [--leases 500] [--steps 100] [--keep DIR]`` prints how soon the
polls were answered and the partitions kept by others, and ends with 1 when anything was lost: a poll
without an answer, a lease that could not be answered elsewhere, a step that ran for nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from cluster.store.keys import Keys
from tests.bench.raw import Connection, connect
from tests.chaos.leases import LeaseWatch
from tests.chaos.programs import run_program
from tests.chaos.record import now
from tests.chaos.recovery import SECOND, spread
from tests.cluster_processes import Cluster, NodeProcess, make_cluster
from tests.idle import total
from tests.servers import run_server
from tests.stream_client import Frame, StreamClient
from tests.stream_client import connect as connect_stream
from tests.waiting import eventually
from tests.wire import open_wire, schedule

PREFIX: Final = "hr1"
AT_ONCE: Final = 500
"""Polls that are sent together: a node reads each within its time."""
HANDS: Final = 16
"""Connections that fetch leases, and that answer them."""
QUEUES: Final = 20
POLL_SECONDS: Final = 60
FLOW: Final = "draining"
GONE_SECONDS: Final = 60.0


@dataclass
class Farewell:
    """What became of everything. Times in seconds from the signal on."""

    answered: list[float] = field(default_factory=list)
    elsewhere: list[float] = field(default_factory=list)
    """When another node kept each partition."""
    gone: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"polls answered (s): {spread(self.answered)}\n"
            f"partitions elsewhere (s): {spread(self.elsewhere)}\nthe process ended after {self.gone:.1f} s"
        )


@asynccontextmanager
async def _hands(node: NodeProcess, number: int) -> AsyncIterator[list[Connection]]:
    """So many connections to a node."""
    async with trio.open_nursery() as nursery:
        opened: list[Connection] = []
        done = trio.Event()

        async def hold(task_status: trio.TaskStatus[None]) -> None:
            async with connect(node.url) as connection:
                opened.append(connection)
                task_status.started()
                await done.wait()

        for _ in range(number):
            await nursery.start(hold)
        yield opened
        done.set()


async def _share(hands: Sequence[Connection], jobs: Sequence[Any], job: Any) -> None:
    """Run ``job(connection, one)`` for each of ``jobs``, as many at once as there are connections."""
    left = iter(jobs)

    async def work(connection: Connection) -> None:
        for one in left:
            await job(connection, one)

    async with trio.open_nursery() as nursery:
        for connection in hands:
            nursery.start_soon(work, connection)


async def _lease(node: NodeProcess, number: int) -> list[dict[str, Any]]:
    """So many activities, leased through a node."""
    tasks: list[dict[str, Any]] = []

    async def fetch(connection: Connection, one: int) -> None:
        await connection.start(f"w{one}", "leased")
        decision = await connection.poll("workflow", "holder", "leased")
        assert decision is not None
        await connection.complete_workflow(decision, schedule("x", "leased"))
        task = await connection.poll("activity", "holder", "leased")
        assert task is not None
        tasks.append(task)

    async with _hands(node, HANDS) as hands:
        await hands[0].register("holder", "leased")
        await _share(hands, range(number), fetch)
    return tasks


async def _answer(node: NodeProcess, tasks: Sequence[dict[str, Any]]) -> None:
    """Answer leases through another node, and bring their workflows to their end."""

    async def answer(connection: Connection, task: dict[str, Any]) -> None:
        await connection.complete_activity(task)

    async def finish(connection: Connection, _: int) -> None:
        task = await connection.poll("workflow", "holder", "leased")
        assert task is not None, "a workflow did not get its result"
        await connection.complete_workflow(task, {"type": "complete_workflow"})

    async with _hands(node, HANDS) as hands:
        await _share(hands, tasks, answer)
        await _share(hands, range(len(tasks)), finish)


async def _run_steps(node: NodeProcess, stream: StreamClient, number: int) -> list[Frame]:
    """So many flows whose only steps run on a stream of the node."""
    await stream.hello("runner", FLOW, task_limit=number)
    await stream.open(*range(1, number + 1))
    async with open_wire(node.url) as wire:
        for one in range(number):
            body = {"flow_type": FLOW, "flow_id": f"f{one}", "start_step": "s"}
            await wire.post("/flows", body)
    return [await stream.next("task", within=30) for _ in range(number)]


@dataclass
class Drain:
    """``cluster`` has started; its first node leaves."""

    cluster: Cluster
    watch: LeaseWatch
    polls: int
    leases: int
    steps: int
    farewell: Farewell = field(default_factory=Farewell)
    _told: int = 0

    async def run(self) -> Farewell:
        leaving, staying = self.cluster.nodes[0], self.cluster.nodes[1]
        tasks = await _lease(leaving, self.leases)
        async with connect_stream(leaving.url) as stream:
            frames = await _run_steps(leaving, stream, self.steps)
            async with trio.open_nursery() as nursery:
                await self._park(leaving, nursery)
                kept, seen = self.watch.of(leaving.name), len(self.watch.changes)
                self._told = now()
                leaving.signal(signal.SIGTERM)
                await eventually(lambda: not self._still_kept(kept, leaving), GONE_SECONDS)
            changes = {
                one.partition: (one.at - self._told) / SECOND
                for one in self.watch.changes[seen:]
                if one.new.owner and one.new.node != leaving.name
            }
            self.farewell.elsewhere = [changes[partition] for partition in kept]
            for frame in frames:
                confirmed = await stream.complete(frame, {"decision": {"complete": None}}, GONE_SECONDS)
                if not confirmed["accepted"]:
                    self.farewell.wrong.append(f"a step ran for nothing: {confirmed}")
            with trio.fail_after(GONE_SECONDS):
                code = await leaving.child.wait()
        self.farewell.gone = (now() - self._told) / SECOND
        if code:
            self.farewell.wrong.append(f"the node ended with {code}: {leaving.log[-1000:]}")
        if len(self.farewell.answered) != self.polls:
            self.farewell.wrong.append(f"{len(self.farewell.answered)} of {self.polls} polls were answered")
        await _answer(staying, tasks)
        await self._look_back(staying)
        return self.farewell

    async def _park(self, node: NodeProcess, nursery: trio.Nursery) -> None:
        async with connect(node.url) as first:
            for number in range(QUEUES):
                await first.register(f"w{number}", f"q{number}")
        for begin in range(0, self.polls, AT_ONCE):
            wanted = min(begin + AT_ONCE, self.polls)
            for number in range(begin, wanted):
                nursery.start_soon(self._poll, node, number)

            async def parked(wanted: int = wanted) -> bool:
                return await total([node], "headrace_polls_parked") == wanted

            await eventually(parked, 60)

    async def _poll(self, node: NodeProcess, number: int) -> None:
        queue = number % QUEUES
        async with connect(node.url) as connection:
            kind = ("workflow", "activity")[number // QUEUES % 2]
            task = await connection.poll(kind, f"w{queue}", f"q{queue}", POLL_SECONDS)
        self.farewell.answered.append((now() - self._told) / SECOND)
        if task is not None:
            self.farewell.wrong.append(f"a poll of an empty queue was answered {task}")

    def _still_kept(self, kept: Sequence[int], leaving: NodeProcess) -> bool:
        return any(self.watch.held[partition].node in ("", leaving.name) for partition in kept)

    async def _look_back(self, node: NodeProcess) -> None:
        """Everything that was begun has completed."""
        expected = {f"/flows/f{one}" for one in range(self.steps)}
        expected |= {f"/workflows/w{one}" for one in range(self.leases)}
        async with open_wire(node.url) as wire:
            for path in sorted(expected):
                status = (await wire.get(path))["status"]
                if status != "completed":
                    self.farewell.wrong.append(f"{path} is {status}")


async def run_drain(directory: Path, *, polls: int, leases: int, steps: int) -> Farewell:
    """Let the first of three nodes leave."""
    with (
        run_server("valkey", directory) as server,
        make_cluster(3, server.url, directory) as cluster,
    ):
        await cluster.start()
        watch = LeaseWatch(server, Keys(PREFIX))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await eventually(lambda: len(watch.of(cluster.nodes[0].name)) > 0, 20)
            farewell = await Drain(cluster, watch, polls, leases, steps).run()
            nursery.cancel_scope.cancel()
    return farewell


async def _main(options: argparse.Namespace, directory: Path) -> Sequence[object]:
    farewell = await run_drain(directory, polls=options.polls, leases=options.leases, steps=options.steps)
    print(farewell)
    return farewell.wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--polls", type=int, default=5000, help="parked at the node")
    parser.add_argument("--leases", type=int, default=500, help="of activities, fetched through the node")
    parser.add_argument("--steps", type=int, default=100, help="running on a stream of the node")
    return run_program(parser, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
