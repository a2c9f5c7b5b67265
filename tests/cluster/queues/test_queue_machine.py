"""Random lives of a queue against a plain model: nothing lost, nothing twice, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cluster.clock import Clock
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.claims import Claim
from cluster.store.keys import Keys
from cluster.upkeep.due import DueWork
from cluster.upkeep.keeper import Keeper, KeeperTimes
from cluster.workflows.engine import Engine
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.storage import RunCache
from tests.cluster.loop_thread import LoopThread, run_loop
from tests.cluster.nodes import hold
from tests.cluster.queues.lab import Lab, queue_name

TYPES = ("a", "b", "c")
MARKERS = ("", "b1")
PARTITIONS = (0, 1)


@dataclass(frozen=True)
class Task:
    """What the model knows of a task; ``claim`` while it is leased."""

    type_name: str
    marker: str
    partition: int
    ready_ms: int
    attempt: int = 1
    delivery: int = 0
    claim: Claim | None = None


class QueueMachine(RuleBasedStateMachine):
    """Each rule does one thing to the store and to the model, then both are compared."""

    def __init__(self, loop: LoopThread) -> None:
        super().__init__()
        self.loop = loop
        self.store = loop.store
        self.store.keys = Keys(f"t{uuid4().hex[:12]}", len(PARTITIONS))
        self.lab = Lab(self.store, random=Random(3))
        self.tasks: dict[str, Task] = {}
        self.handed_out: set[tuple[str, int, int]] = set()
        self.damaged: set[tuple[int, str]] = set()
        clock, random = Clock(), Random(4)
        engine = Engine(self.store, clock, RunCache(), leases=LeaseTimes(), limits=Limits(), random=random)
        times = KeeperTimes(idle_queue=0.0)
        self.keeper = Keeper(self.store, clock, DueWork(self.store, engine), random, times)
        self.held: list[HeldPartition] = []

    @initialize()
    def hold_partitions(self) -> None:
        self.held = [self.loop.call(hold, self.store, partition) for partition in PARTITIONS]

    # -- the model --------------------------------------------------------------------------

    def ready(self) -> dict[str, Task]:
        return {task_id: task for task_id, task in self.tasks.items() if task.claim is None}

    def leased(self) -> dict[str, Task]:
        return {task_id: task for task_id, task in self.tasks.items() if task.claim is not None}

    def queue_of(self, task: Task) -> tuple[int, str]:
        return task.partition, f"{queue_name(marker=task.marker).encode()}:{task.type_name}"

    def pick(self, data: st.DataObject, tasks: dict[str, Task]) -> tuple[str, Task]:
        task_id = data.draw(st.sampled_from(sorted(tasks)))
        return task_id, tasks[task_id]

    # -- rules ------------------------------------------------------------------------------

    @rule(
        type_name=st.sampled_from(TYPES),
        marker=st.sampled_from(MARKERS),
        partition=st.sampled_from(PARTITIONS),
    )
    def enqueue(self, type_name: str, marker: str, partition: int) -> None:
        self.loop.call(self._enqueue, type_name, marker, partition)

    async def _enqueue(self, type_name: str, marker: str, partition: int) -> None:
        task_id = await self.lab.enqueue(type_name, partition=partition, queue=queue_name(marker=marker))
        ready_ms = int((await self.lab.record(task_id, partition))["at"])
        self.tasks[task_id] = Task(type_name, marker, partition, ready_ms)

    @rule(
        types=st.sets(st.sampled_from(TYPES)),
        markers=st.sampled_from([("",), ("", "b1")]),
        partitions=st.permutations(PARTITIONS),
    )
    def claim(self, types: set[str], markers: tuple[str, ...], partitions: list[int]) -> None:
        self.loop.call(self._claim, types, markers, partitions)

    async def _claim(self, types: set[str], markers: tuple[str, ...], partitions: list[int]) -> None:
        fitting = {
            task_id: task
            for task_id, task in self.ready().items()
            if (not types or task.type_name in types) and task.marker in markers
        }
        where: dict[str, Any] = {
            "partitions": partitions,
            "queues": [queue_name(marker=marker) for marker in markers],
        }
        for _ in range(10):
            claim = await self.lab.claim(*types, **where)
            if claim is not None or not await self.lab.heads_left(*types, **where):
                break
        assert (claim is None) == (not fitting)
        if claim is None:
            return
        task = fitting[claim.task_id]
        if not self.damaged:
            assert task.ready_ms == min(other.ready_ms for other in fitting.values())
        hand_out = (claim.task_id, claim.attempt, claim.delivery)
        assert hand_out[1:] == (task.attempt, task.delivery)
        assert hand_out not in self.handed_out
        self.handed_out.add(hand_out)
        self.tasks[claim.task_id] = replace(task, claim=claim)

    @precondition(lambda self: bool(self.leased()))
    @rule(data=st.data(), lapsed=st.booleans())
    def come_back(self, data: st.DataObject, lapsed: bool) -> None:
        task_id, task = self.pick(data, self.leased())
        assert task.claim is not None
        attempt, delivery = (task.attempt + 1, 0) if lapsed else (task.attempt, task.delivery + 1)
        self.loop.call(self.lab.requeue, task.claim, attempt if lapsed else None)
        self.tasks[task_id] = replace(task, attempt=attempt, delivery=delivery, claim=None)

    @precondition(lambda self: bool(self.tasks))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        task_id, task = self.pick(data, self.tasks)
        self.loop.call(self.lab.drop, task_id, task.partition)
        del self.tasks[task_id]

    @precondition(lambda self: bool(self.leased()))
    @rule(data=st.data(), lease_ms=st.integers(0, 100_000))
    def extend(self, data: st.DataObject, lease_ms: int) -> None:
        task_id, task = self.pick(data, self.leased())
        self.loop.call(self.lab.extend, task_id, lease_ms, task.partition)

    @rule()
    def compact(self) -> None:
        for held in self.held:
            self.loop.call(self.keeper.compact, held)
        counted = {
            (held.partition, queue): count.undelivered
            for held in self.held
            for queue, count in self.keeper.counters.counts[held.partition].items()
            if (held.partition, queue) not in self.damaged and count.undelivered
        }
        expected: dict[tuple[int, str], int] = {}
        for task in self.ready().values():
            if self.queue_of(task) not in self.damaged:
                expected[self.queue_of(task)] = expected.get(self.queue_of(task), 0) + 1
        assert counted == expected

    @rule(partition=st.sampled_from(PARTITIONS), marker=st.sampled_from(MARKERS))
    def lose_heads(self, partition: int, marker: str) -> None:
        queue = queue_name(marker=marker)
        self.loop.call(self.store.call, "DEL", self.store.keys.heads(partition, queue))
        lost = {
            task.type_name
            for task in self.ready().values()
            if (task.partition, task.marker) == (partition, marker)
        }
        restored = self.loop.call(self.keeper.resync, self.held[partition])
        assert restored == len(lost) or self.damaged

    @rule()
    def resync(self) -> None:
        for held in self.held:
            assert self.loop.call(self.keeper.resync, held) == 0 or self.damaged

    @precondition(lambda self: bool(self.tasks))
    @rule(data=st.data(), what=st.sampled_from(["group", "cursor"]))
    def damage(self, data: st.DataObject, what: str) -> None:
        _, task = self.pick(data, self.tasks)
        partition, queue = self.queue_of(task)
        stream = self.store.keys.stream(partition, queue_name(marker=task.marker), task.type_name)
        if not self.loop.call(self.store.call, "EXISTS", stream):
            return
        if what == "group":
            self.loop.call(self.store.call, "XGROUP", "DESTROY", stream, "g")
        else:
            self.loop.call(self.store.call, "HDEL", self.store.keys.cursors(partition), queue)
        self.damaged.add((partition, queue))

    # -- comparison -------------------------------------------------------------------------

    @invariant()
    def agrees_with_the_model(self) -> None:
        for partition in PARTITIONS:
            damaged = {queue for place, queue in self.damaged if place == partition}
            records = self.loop.call(self.lab.audit, partition, damaged)
            shown = {
                task_id: (record["s"], int(record["n"]), int(record["d"]), int(record["at"]))
                for task_id, record in records.items()
            }
            assert shown == {
                task_id: ("l" if task.claim else "r", task.attempt, task.delivery, task.ready_ms)
                for task_id, task in self.tasks.items()
                if task.partition == partition
            }

    def teardown(self) -> None:
        """Everything can be handed out and done, and then nothing is left."""
        self.loop.call(self._drain)

    async def _drain(self) -> None:
        waiting = set(self.ready())
        queues = [queue_name(marker=marker) for marker in MARKERS]
        assert set(await self.lab.drain(partitions=PARTITIONS, queues=queues)) == waiting
        for task_id, task in self.tasks.items():
            await self.lab.drop(task_id, task.partition)
        for held in self.held:
            await self.keeper.compact(held)
            left = await self.lab.keys(held.partition)
            # The first claim that finds work tells the partition its server.
            assert {name for name in left if not name.startswith(("run:", "rate:"))} - {"gen"} == {"lease"}


SETTINGS = hypothesis.settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


@pytest.mark.timeout(600)
def test_random_lives_of_queues(redis_url: str) -> None:
    with run_loop(redis_url) as loop:

        class Machine(QueueMachine):
            def __init__(self) -> None:
                super().__init__(loop)

        run_state_machine_as_test(Machine, settings=SETTINGS)
