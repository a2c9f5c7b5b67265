"""Nodes that do nothing but fire schedules, and schedules that are due already."""

from __future__ import annotations

from random import Random
from typing import Any

import trio

from cluster.clock import Clock
from cluster.namespaces import NamespaceStore
from cluster.schedules.names import FIRE_TIMER, FREED_TIMER, partition_of_schedule
from cluster.schedules.records import Action, Definition, Interval, Overlap, ScheduleEvent, Spec
from cluster.schedules.schedules import Schedules
from cluster.store.store import Store
from cluster.upkeep.due import DueWork
from cluster.workflows.engine import Engine
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.storage import RunCache
from tests.cluster.nodes import synchronized_clock

NAMESPACE = "default"
HOUR_MS = 3_600_000


class EarlierClock(Clock):
    """Shows a time that lies some hours back."""

    def __init__(self, clock: Clock, hours: int) -> None:
        super().__init__()
        self._real = clock
        self._behind_us = hours * HOUR_MS * 1000

    def now_us(self) -> int:
        return self._real.now_us() - self._behind_us


class FiringNode:
    """One node's schedules and due work."""

    def __init__(self, store: Store, clock: Clock) -> None:
        runs, leases, random = RunCache(), LeaseTimes(), Random()
        self.store = store
        self.clock = clock
        self.engine = Engine(store, clock, runs, leases=leases, limits=Limits(), random=random)
        namespaces = NamespaceStore(store, clock.now_ms, 30)
        self.schedules = Schedules(store, clock, namespaces, runs, leases=leases, random=random)
        owners = {FIRE_TIMER: self.schedules.fire, FREED_TIMER: self.schedules.freed}
        self.due = DueWork(store, self.engine, owners)

    async def do_everything_due(self) -> None:
        """Work off what is due in all partitions."""

        async def work_off(partition: int) -> None:
            while True:
                report = await self.due.run(partition)
                if not report.done and not report.failed:
                    return

        async with trio.open_nursery() as nursery:
            for partition in range(self.store.keys.partitions):
                nursery.start_soon(work_off, partition)


async def firing_nodes(store: Store, count: int = 2) -> list[FiringNode]:
    clock = await synchronized_clock(store)
    return [FiringNode(store, clock) for _ in range(count)]


async def create_due(node: FiringNode, schedule_id: str = "s", **fields: Any) -> None:
    """A schedule of a day's interval whose first occurrence was due within the last day."""
    earlier = EarlierClock(node.clock, 24)
    before = FiringNode(node.store, earlier)
    overlap = fields.pop("overlap_policy", Overlap.ALLOW_ALL)
    definition = Definition(
        namespace=NAMESPACE,
        schedule_id=schedule_id,
        spec=Spec(intervals=(Interval(every="P1D"),)),
        action=fields.pop("action", Action(workflow_type="report")),
        overlap_policy=overlap,
        created_at_ms=earlier.now_ms(),
        updated_at_ms=earlier.now_ms(),
        **fields,
    )
    await before.schedules.create(definition, paused=False, context={})


async def fire_events(node: FiringNode, schedule_id: str = "s") -> list[ScheduleEvent]:
    events, _ = await node.schedules.history(NAMESPACE, schedule_id, after=0, limit=500)
    return [event for event in events if event.event_type == "ScheduleTriggered"]


async def runs_of(store: Store, partition: int) -> list[str]:
    found = await store.call("ZRANGE", store.keys.runs(partition, NAMESPACE), 0, -1)
    return [run.decode() for run in found]


async def timers_of(store: Store, partition: int) -> list[str]:
    found = await store.call("ZRANGE", store.keys.timers(partition), 0, -1)
    return [timer.decode() for timer in found]


def home(store: Store, schedule_id: str = "s") -> int:
    return partition_of_schedule(NAMESPACE, schedule_id, store.keys.partitions)
