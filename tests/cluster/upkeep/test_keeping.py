"""Heads, dead entries and idle queues: what ``resync`` and ``compact`` mend, and what they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from cluster.errors import Fenced
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.claims import Claim
from cluster.store.keys import QueueName
from cluster.store.store import Store
from cluster.upkeep.due import DueWork
from cluster.upkeep.keeper import CHUNK, Keeper, KeeperTimes, QueueCount
from cluster.workflows.engine import Engine
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.storage import RunCache
from tests.cluster.nodes import hold, synchronized_clock
from tests.cluster.queues.lab import Lab, queue_name

QUEUE = queue_name()
MANY = 3 * CHUNK


@dataclass
class Kept:
    lab: Lab
    keeper: Keeper
    held: HeldPartition

    @property
    def store(self) -> Store:
        return self.lab.store

    async def claim(self, queue: QueueName = QUEUE) -> Claim:
        claim = await self.lab.claim(queues=[queue])
        assert claim is not None
        return claim


@pytest.fixture
async def kept(store: Store) -> Kept:
    clock = await synchronized_clock(store)
    engine = Engine(store, clock, RunCache(), leases=LeaseTimes(), limits=Limits(), random=Random(1))
    keeper = Keeper(store, clock, DueWork(store, engine), Random(1), KeeperTimes(idle_queue=0))
    return Kept(Lab(store), keeper, await hold(store, 0))


async def test_removed_heads_are_restored_and_told(kept: Kept) -> None:
    for number in range(MANY):
        await kept.lab.enqueue(f"t{number}")
    claim = await kept.claim()
    await kept.lab.requeue(claim)
    before = await kept.lab.audit()
    heads = kept.store.keys.heads(0, QUEUE)
    await kept.store.call("DEL", heads)
    await kept.store.call("ZADD", heads, 9_999_999_999_999, "t1", 1, "ghost")
    assert await kept.keeper.resync(kept.held) == MANY
    # A head without a queue is not seen here; the first claim that meets it takes it away.
    await kept.store.call("ZREM", heads, "ghost")
    assert await kept.lab.audit() == before
    assert await kept.keeper.resync(kept.held) == 0
    assert kept.keeper.counters.heads_restored == MANY


async def test_a_head_with_nothing_behind_it_is_removed(kept: Kept) -> None:
    await kept.lab.enqueue()
    await kept.claim()
    await kept.store.call("ZADD", kept.store.keys.heads(0, QUEUE), 1, "t")
    assert await kept.keeper.resync(kept.held) == 0
    assert kept.keeper.counters.heads_removed == 1
    await kept.lab.audit()


async def test_idle_empty_queues_go_and_others_stay(kept: Kept) -> None:
    leased_queue, returned_queue = queue_name("leased"), queue_name("returned")
    await kept.lab.enqueue(queue=leased_queue)
    await kept.claim(leased_queue)
    await kept.lab.enqueue(queue=returned_queue)
    await kept.lab.requeue(await kept.claim(returned_queue))
    for number in range(MANY):
        task = await kept.lab.enqueue(f"t{number}")
        await kept.lab.drop(task)
    assert await kept.keeper.compact(kept.held) == MANY
    names = {name for name in await kept.lab.keys() if name.startswith(("q:", "b:"))}
    assert names == {
        f"q:{leased_queue.encode()}:t",
        f"q:{returned_queue.encode()}:t",
        f"b:{returned_queue.encode()}:t",
    }
    assert kept.keeper.counters.counts[0] == {
        f"{leased_queue.encode()}:t": QueueCount(0, 1),
        f"{returned_queue.encode()}:t": QueueCount(1, 0),
    }
    await kept.lab.audit()
    task = await kept.lab.enqueue("t0")
    assert (await kept.claim()).task_id == task


async def test_a_queue_that_was_used_lately_stays(kept: Kept) -> None:
    kept.keeper._times = replace(kept.keeper._times, idle_queue=60.0)
    await kept.lab.drop(await kept.lab.enqueue())
    assert await kept.keeper.compact(kept.held) == 0


async def test_a_queue_whose_last_task_is_leased_is_still_kept(kept: Kept) -> None:
    task = await kept.lab.enqueue()
    await kept.lab.requeue(await kept.claim())
    claim = await kept.claim()
    assert await kept.keeper.compact(kept.held) == 0
    await kept.lab.requeue(claim)
    await kept.lab.audit()
    await kept.store.call("DEL", kept.store.keys.heads(0, QUEUE))
    assert await kept.keeper.resync(kept.held) == 1
    assert (await kept.claim()).task_id == task


async def test_dead_pending_entries_go(kept: Kept) -> None:
    tasks = [await kept.lab.enqueue() for _ in range(4)]
    for _ in range(3):
        await kept.claim()
    keys = kept.store.keys
    await kept.store.call("DEL", keys.task(0, tasks[0]))
    await kept.store.call("HSET", keys.task(0, tasks[1]), "qi", "b")
    await kept.keeper.compact(kept.held)
    assert kept.keeper.counters.dead_entries == 2
    assert kept.keeper.counters.counts[0] == {f"{QUEUE.encode()}:t": QueueCount(1, 1)}
    assert (await kept.claim()).task_id == tasks[3]


async def test_who_lost_the_partition_changes_nothing(kept: Kept) -> None:
    await kept.lab.enqueue()
    await kept.store.call("DEL", kept.store.keys.heads(0, QUEUE))
    stale = replace(kept.held, nonce="older")
    for job in (kept.keeper.resync, kept.keeper.compact):
        with pytest.raises(Fenced):
            await job(stale)
    assert f"h:{QUEUE.encode()}" not in await kept.lab.keys()
