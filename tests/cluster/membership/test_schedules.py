"""Random lives and deaths of several nodes: never two holders of a partition at once (E4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import groupby
from random import Random

import pytest
import trio

from cluster.clock import Clock
from cluster.errors import ConditionFailed
from cluster.membership import HeldPartition, Membership, NodeInfo, Timing
from cluster.store.store import Store, open_store
from cluster.store.transaction import Transaction
from tests.cluster.membership.links import Link
from tests.cluster.membership.test_membership import until

PARTITIONS = 4
MOST_NODES = 4
STEPS = 30
FAST = Timing().scaled(0.15)


@pytest.fixture
async def store(redis_url: str, prefix: str) -> AsyncIterator[Store]:
    async with open_store(redis_url, prefix=prefix, partitions=PARTITIONS) as opened:
        yield opened


class Life:
    """A node under test."""

    def __init__(self, world: World, name: str) -> None:
        self.link = Link(world.store)
        self.member = Membership(
            self.link.as_store(), Clock(), NodeInfo(name=name), world.housekeep, timing=FAST
        )
        self.scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.member.run(task_status)


class World:
    """Some nodes, each held partition writing its tenure into the partition as often as it can."""

    def __init__(self, store: Store, nursery: trio.Nursery, random: Random) -> None:
        self.store = store
        self.nursery = nursery
        self.random = random
        self.all: list[Life] = []
        self.alive: list[Life] = []
        self.tenures: dict[int, list[HeldPartition]] = defaultdict(list)
        self.refused = 0

    def journal(self, partition: int) -> str:
        return self.store.keys.run(partition, "journal")

    async def housekeep(self, held: HeldPartition) -> None:
        self.tenures[held.partition].append(held)
        try:
            while True:
                certain = [tenure for tenure in self.tenures[held.partition] if tenure.may_act()]
                assert len(certain) <= 1
                # Written whether it may act or not: the store has to refuse what comes too late.
                tx = Transaction(held.partition)
                tx.expect_lease(held.owner, held.nonce)
                tx.append(self.journal(held.partition), [held.nonce.encode()])
                try:
                    await self.store.commit(tx)
                except ConditionFailed:
                    self.refused += 1
                await trio.sleep(0.02 * self.random.random())
        finally:
            self.tenures[held.partition].remove(held)

    async def step(self) -> None:
        moves = [self.start] if len(self.alive) < MOST_NODES else []
        if self.alive:
            moves += [self.leave, self.kill, self.freeze, self.thaw, self.cut]
        await self.random.choice(moves)()
        await trio.sleep(self.random.random() * 2 * FAST.renew_every)

    async def start(self) -> None:
        life = Life(self, f"n{len(self.all)}")
        self.all.append(life)
        await self.nursery.start(life.run)
        self.alive.append(life)

    def some(self) -> Life:
        return self.random.choice(self.alive)

    async def leave(self) -> None:
        life = self.some()
        life.link.thaw()
        life.link.is_cut = False
        await life.member.leave()
        self.alive.remove(life)

    async def kill(self) -> None:
        life = self.some()
        life.scope.cancel()
        self.alive.remove(life)

    async def freeze(self) -> None:
        self.some().link.freeze()

    async def thaw(self) -> None:
        life = self.some()
        life.link.thaw()
        life.link.is_cut = False

    async def cut(self) -> None:
        self.some().link.is_cut = True


@pytest.mark.parametrize("seed", range(2))
async def test_never_two_holders_and_never_none_for_long(store: Store, seed: int) -> None:
    async with trio.open_nursery() as nursery:
        world = World(store, nursery, Random(seed))
        for _ in range(STEPS):
            await world.step()
        await world.start()
        for life in world.alive:
            life.link.thaw()
            life.link.is_cut = False
        await until(
            lambda: all(
                sum(tenure.may_act() for tenure in world.tenures[partition]) == 1
                for partition in range(PARTITIONS)
            )
        )
        failures = sum(life.member.statistics().housekeeping_failures for life in world.all)
        nursery.cancel_scope.cancel()
    assert failures == 0
    for partition in range(PARTITIONS):
        journal = await store.call("LRANGE", world.journal(partition), 0, -1)
        tenures = [nonce for nonce, _ in groupby(journal)]
        assert len(tenures) == len(set(tenures)), "a tenure wrote after another had begun"
        assert len(tenures) > 1
