"""Admission under a storm: random workers, dying workers, killed nodes, all five kinds of limits.

An observer that belongs to no node looks at all leases in one script, every few milliseconds, and
keeps a list of every hand-out. No limit may be exceeded at any look, and in no minute. When the storm
is over, everything is back to zero.

``HEADRACE_HAMMER_TASKS`` sets how many tasks there are; the long form has 20000.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import orjson
import pytest
import redis
import trio
import trio.lowlevel

from cluster.admission import tickets
from cluster.admission.audit import Audit
from cluster.admission.limit_store import LimitStore
from cluster.admission.limits import LimitBook, LimitName, QueueLimits
from cluster.errors import ConditionFailed, StoreError
from cluster.ids import TaskKind
from cluster.queues.claims import Claim
from cluster.settings import Settings
from cluster.store.keys import encode
from cluster.store.store import Store, open_store
from cluster.store.transaction import Transaction
from tests.bench.figures import say
from tests.cluster.admission.world import ACTIVITY, WORKFLOW, Member, World, lapse, live
from tests.cluster.queues.lab import Lab
from tests.waiting import eventually

TASKS = int(os.environ.get("HEADRACE_HAMMER_TASKS", "1200"))
PARTITIONS = 4
LEASE_MS = 700
POLLERS = 5
"""Per queue and kind."""

OVERRIDES: dict[str, Any] = {
    "n1:a": {"activity_tasks": {"max_active_leases": 4}},
    "n1:b": {"activity_tasks": {"max_active_leases": 6, "max_dispatches_per_minute": 5000}},
    "n1:*": {
        "activity_tasks": {"max_active_leases_per_namespace": 8},
        "workflow_tasks": {"max_active_leases_per_namespace": 5},
    },
    "n2:*": {
        "activity_tasks": {
            "budget_group": "api",
            "max_dispatches_per_minute_per_budget_group": 90,
            "max_dispatches_per_minute_per_namespace": 110,
        },
        "workflow_tasks": {"max_active_leases": 3},
    },
    "n2:d": {"activity_tasks": {"budget_group": ""}},
    "b": {"activity_tasks": {"max_dispatches_per_minute": 40}},
}
QUEUES = [
    ("n1", "a", ACTIVITY, 0.3),
    ("n1", "b", ACTIVITY, 0.3),
    ("n1", "a", WORKFLOW, 0.1),
    ("n1", "b", WORKFLOW, 0.1),
    ("n2", "a", ACTIVITY, 0.05),
    ("n2", "b", ACTIVITY, 0.05),
    ("n2", "c", ACTIVITY, 0.05),
    ("n2", "d", ACTIVITY, 0.03),
    ("n2", "a", WORKFLOW, 0.1),
]
"""Namespace, queue, kind and share of the tasks."""
LEASE_BOUND = [queue for queue in QUEUES if not (queue[0] == "n2" and queue[2] is ACTIVITY)]

# One instant of all leases: "<kind> <namespace> <queue>" and how many have not run out, flat.
LOOK = """
local time, found = redis.call('TIME'), {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i, key in ipairs(KEYS) do
  found[i] = redis.call('ZCOUNT', key, '(' .. string.format('%.0f', now), '+inf')
end
return found
"""


@dataclass
class Observer:
    """Looks from outside; knows the limits as they were meant."""

    url: str
    prefix: str
    book: dict[str, LimitBook]
    looks: int = 0
    peaks: Counter[str] = field(default_factory=Counter)
    handed_out: list[tuple[str, str, TaskKind, int]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    stopped: bool = False

    def limits(self, namespace: str, kind: TaskKind, queue: str) -> QueueLimits:
        return self.book[namespace].of(kind, queue)

    def watch(self, bases: list[str]) -> None:
        """Look until stopped. Runs in a thread of its own, with a connection of its own."""
        places = [(namespace, queue, kind) for namespace, queue, kind, _ in QUEUES]
        keys = [
            f"{base}:lq:{kind.value}:{encode(namespace)}:{encode(queue)}"
            for namespace, queue, kind in places
            for base in bases
        ]
        with redis.Redis.from_url(self.url) as client:
            look = client.register_script(LOOK)
            while not self.stopped:
                flat = look(keys=keys)
                per_queue = {
                    place: sum(flat[i * len(bases) : (i + 1) * len(bases)]) for i, place in enumerate(places)
                }
                self.looks += 1
                self._judge(per_queue)

    def _judge(self, per_queue: dict[tuple[str, str, TaskKind], int]) -> None:
        totals: Counter[tuple[str, TaskKind]] = Counter()
        for (namespace, queue, kind), number in per_queue.items():
            totals[namespace, kind] += number
            self._check(
                f"{namespace}:{queue}:{kind}",
                number,
                self.limits(namespace, kind, queue)[LimitName.QUEUE_LEASES],
            )
        for (namespace, kind), number in totals.items():
            limit = self.limits(namespace, kind, "a")[LimitName.NAMESPACE_LEASES]
            self._check(f"{namespace}:*:{kind}", number, limit)

    def _check(self, name: str, number: int, limit: int | None) -> None:
        self.peaks[name] = max(self.peaks[name], number)
        if limit is not None and number > limit:
            self.broken.append(f"{name}: {number} leases, {limit} allowed")

    def minutes(self) -> dict[str, Counter[int]]:
        """Hand-outs per minute of Redis of each queue, namespace and group that has a limit."""
        found: dict[str, Counter[int]] = {}
        for namespace, queue, kind, at_ms in self.handed_out:
            limits = self.limits(namespace, kind, queue)
            scopes = {
                LimitName.QUEUE_DISPATCHES: f"queue {namespace}:{queue}:{kind}",
                LimitName.NAMESPACE_DISPATCHES: f"namespace {namespace}:{kind}",
                LimitName.GROUP_DISPATCHES: f"group {namespace}:{limits.group}:{kind}",
            }
            for name, scope in scopes.items():
                limit = limits[name]
                if limit is not None:
                    minute = at_ms // 60_000
                    found.setdefault(scope, Counter())[minute] += 1
                    if found[scope][minute] > limit:
                        self.broken.append(f"{scope}: more than {limit} in a minute")
        return found


@dataclass
class Storm:
    url: str
    prefix: str
    settings: Settings
    nursery: trio.Nursery
    store: Store
    observer: Observer
    random: Random
    members: list[Member] = field(default_factory=list)
    finished: Counter[tuple[str, str, TaskKind]] = field(default_factory=Counter)
    wanted: dict[tuple[str, str, TaskKind], int] = field(default_factory=dict)
    over: trio.Event = field(default_factory=trio.Event)
    held: dict[tuple[str, str, TaskKind], int] = field(default_factory=dict)

    async def join(self) -> None:
        self.members.append(
            await self.nursery.start(live, self.url, self.prefix, PARTITIONS, 0.3, self.settings)
        )

    def done(self) -> bool:
        """Everything that only leases hold back is finished; minutes hold back the rest."""
        return all(self.finished[queue[:3]] >= self.wanted[queue[:3]] for queue in LEASE_BOUND)

    async def work(self, namespace: str, queue: str, kind: TaskKind) -> None:
        while not self.over.is_set():
            await trio.lowlevel.checkpoint()
            member = self.random.choice(self.members)
            try:
                claim = await member.poll(1, namespace=namespace, queue=queue, kind=kind)
            except StoreError:
                continue
            if claim is None:
                await trio.sleep(0.01)
                continue
            self.observer.handed_out.append((namespace, queue, kind, claim.leased_at_ms))
            with suppress(ConditionFailed, StoreError):
                if await self._treat(claim):
                    self.finished[namespace, queue, kind] += 1

    async def _treat(self, claim: Claim) -> bool:
        """Work on a task as workers do; True when it was completed."""
        chance = self.random.random()
        if chance < 0.02:
            return False  # this worker dies
        if chance < 0.06:
            await trio.sleep(0.5)
            tx = self._owned(claim)
            tx.extend(claim.task_id, LEASE_MS)
            await self._any_store().commit(tx)
        elif chance < 0.3:
            await trio.sleep(self.random.uniform(0, 0.05))
        tx = self._owned(claim)
        if chance < 0.1:
            tx.requeue(claim.task_id, claim.attempt + 1, 0)
            await self._any_store().commit(tx)
            return False
        tx.drop(claim.task_id)
        await self._any_store().commit(tx)
        return True

    @staticmethod
    def _owned(claim: Claim) -> Transaction:
        tx = Transaction(claim.partition, frees=True)
        tx.expect_task(claim.task_id, "l", claim.attempt, claim.delivery)
        return tx

    def _any_store(self) -> Store:
        return self.random.choice(self.members).store

    async def kill_nodes(self) -> None:
        while not self.over.is_set():
            await trio.sleep(self.random.uniform(0.5, 1.5))
            victim = self.members.pop(self.random.randrange(len(self.members)))
            await self.join()
            await victim.crash()

    async def keep_house(self) -> None:
        audit = Audit(self.store, LimitStore(self.store, self.settings), Random(3))
        for turn in count():
            await trio.sleep(0.1)
            for partition in range(PARTITIONS):
                await lapse(self.random.choice(self.members).store, partition)
            if turn % 5 == 4:
                await audit.audit("n1")
                await audit.audit("n2")


@asynccontextmanager
async def storm(url: str, prefix: str, seed: int) -> AsyncIterator[Storm]:
    settings = Settings(task_queue_admission_overrides=orjson.dumps(OVERRIDES).decode())
    book = {name: LimitBook(name, {}, OVERRIDES, {}) for name in ("n1", "n2")}
    async with (
        open_store(url, prefix=prefix, partitions=PARTITIONS) as store,
        trio.open_nursery() as nursery,
    ):
        bases = [store.keys.base(partition) for partition in range(PARTITIONS)]
        observer = Observer(url, prefix, book)
        raised = Storm(url, prefix, settings, nursery, store, observer, Random(seed))
        for _ in range(3):
            await raised.join()
        nursery.start_soon(trio.to_thread.run_sync, observer.watch, bases)
        try:
            yield raised
        finally:
            observer.stopped = True
            nursery.cancel_scope.cancel()


@pytest.mark.timeout(60 + TASKS // 20)
async def test_no_limit_is_ever_exceeded_and_nothing_leaks(
    valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if TASKS < 5000:
        # A claim comes within 5 s, so this is early but still safe.
        monkeypatch.setattr(tickets, "AUDIT_AFTER_MS", 6_000)
    async with storm(valkey_url, prefix, seed=TASKS) as it:
        world = World(it.members, Lab(it.store), PARTITIONS)
        it.nursery.start_soon(it.keep_house)
        async with trio.open_nursery() as workers:
            for namespace, queue, kind, share in QUEUES:
                number = int(TASKS * share)
                it.wanted[namespace, queue, kind] = number
                await world.add(number, namespace=namespace, queue=queue, kind=kind, lease_ms=LEASE_MS)
                for _ in range(POLLERS):
                    workers.start_soon(it.work, namespace, queue, kind)
            workers.start_soon(it.kill_nodes)
            await eventually(it.done, within=40 + TASKS / 25)
            it.over.set()
        minutes = it.observer.minutes()
        report(it, minutes)
        assert it.observer.broken == []
        assert it.observer.looks > 100
        # Each limit was reached, so the storm tried them all.
        for name in ("n1:a:a", "n1:*:a", "n1:*:w", "n2:a:w"):
            kind = TaskKind(name[-1])
            namespace, queue, _ = name.split(":")
            limits = it.observer.limits(namespace, kind, "a" if queue == "*" else queue)
            limit = limits[LimitName.NAMESPACE_LEASES if queue == "*" else LimitName.QUEUE_LEASES]
            assert it.observer.peaks[name] == limit, name
        assert max(minutes["group n2:api:a"].values()) == 90
        assert max(minutes["queue n2:b:a"].values()) <= 40
        for namespace in ("n1", "n2"):
            for kind in (ACTIVITY, WORKFLOW):
                await eventually(lambda ns=namespace, k=kind: _gone(world, ns, k), within=20)  # type: ignore[misc]


def report(it: Storm, minutes: dict[str, Counter[int]]) -> None:
    """What was seen, beside what was allowed; shown with ``pytest -s``."""
    seen = it.observer
    say("hand-outs, looks from outside", f"{len(seen.handed_out):,}, {seen.looks:,}")
    for name, peak in sorted(seen.peaks.items()):
        namespace, queue, kind = name.split(":")
        limits = seen.limits(namespace, TaskKind(kind), "a" if queue == "*" else queue)
        limit = limits[LimitName.NAMESPACE_LEASES if queue == "*" else LimitName.QUEUE_LEASES]
        if limit is not None:
            say(f"leases {name}", f"{peak} at most, {limit} allowed")
    for scope, counts in sorted(minutes.items()):
        say(f"dispatches {scope}", f"{max(counts.values())} in the fullest of {len(counts)} minutes")


async def _gone(world: World, namespace: str, kind: TaskKind) -> bool:
    if await world.tickets(namespace, kind):
        return False
    return not any([await world.leases(namespace, kind, queue) for queue in "abcd"])


async def test_a_lease_limit_is_kept_busy(valkey_url: str, prefix: str) -> None:
    """With work there leases are hardly ever idle: a freed ticket finds the next task at once.

    A node that only looked again once a second would keep a third of them busy.
    """
    limit, hold, tasks = 6, 0.3, 120
    overrides = {"*": {"activity_tasks": {"max_active_leases": limit}}}
    settings = Settings(task_queue_admission_overrides=orjson.dumps(overrides).decode())
    async with (
        open_store(valkey_url, prefix=prefix, partitions=PARTITIONS) as store,
        trio.open_nursery() as nursery,
    ):
        members = [await nursery.start(live, valkey_url, prefix, PARTITIONS, 5.0, settings) for _ in range(3)]
        world = World(members, Lab(store), PARTITIONS)
        await world.add(tasks)
        left = tasks
        everything = trio.Event()

        async def work(member: Member) -> None:
            nonlocal left
            while left > 0:
                claim = await member.poll(1)
                if claim is not None:
                    await trio.sleep(hold)
                    await world.finish(claim, member)
                    left -= 1
            everything.set()

        began = trio.current_time()
        for member in members:
            for _ in range(limit):
                nursery.start_soon(work, member)
        await everything.wait()
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    assert took < tasks / limit * hold / 0.6


@pytest.mark.timeout(120)
async def test_a_parked_poll_gets_its_task_when_the_minute_turns(valkey_url: str, prefix: str) -> None:
    """O12, on the clock of Redis: nothing more in this minute, and the first at once in the next."""
    overrides = {"*": {"activity_tasks": {"max_dispatches_per_minute": 2}}}
    settings = Settings(task_queue_admission_overrides=orjson.dumps(overrides).decode())
    async with (
        open_store(valkey_url, prefix=prefix, partitions=PARTITIONS) as store,
        trio.open_nursery() as nursery,
    ):
        members = [await nursery.start(live, valkey_url, prefix, PARTITIONS, 5.0, settings) for _ in range(2)]
        world = World(members, Lab(store), PARTITIONS)
        await world.add(8)
        seconds, _ = await store.call("TIME")
        if int(seconds) % 60 > 57:
            await trio.sleep(3)
        claims: list[Claim] = []

        async def park(member: Member) -> None:
            claim = await member.poll(90)
            assert claim is not None
            claims.append(claim)

        async with trio.open_nursery() as polls:
            for number in range(4):
                polls.start_soon(park, members[number % 2])
        minutes = Counter(claim.leased_at_ms // 60_000 for claim in claims)
        assert sorted(minutes.values()) == [2, 2]
        assert max(minutes) == min(minutes) + 1
        turned = sorted(claim.leased_at_ms for claim in claims)[2:]
        assert all(at_ms % 60_000 < 1_000 for at_ms in turned)
        nursery.cancel_scope.cancel()
