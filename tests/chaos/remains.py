"""What a cluster leaves behind in its store once all work is done."""

from __future__ import annotations

from collections import Counter
from random import Random

import redis
import trio

from cluster.clock import Clock
from cluster.membership.housekeeping import HeldPartition
from cluster.membership.membership import Membership
from cluster.membership.sessions import NodeInfo
from cluster.store.keys import Keys
from cluster.store.store import Store, open_store
from cluster.upkeep.due import DueWork
from cluster.upkeep.keeper import Keeper, KeeperTimes

LASTING = {"wf", "run", "hist", "runs", "closed", "lease", "touch", "dead", "cluster", "ns"}
LASTING |= {"gen", "cmd", "fl", "flows", "fclosed", "steps", "adm", "terms", "counted"}
LASTING |= {"alive", "info", "suspect", "reg", "beat", "vital", "fleet", "served"}
"""Families of keys that stay: retained executions, cluster record, namespaces, limits, nodes, workers."""


async def compact(url: str, prefix: str, within: float = 20.0) -> None:
    """Take all partitions and compact each once, whatever its queues' age; nodes must be gone."""
    async with open_store(url, prefix=prefix) as store:
        await _compact(store, within)


async def _compact(store: Store, within: float) -> None:
    clock = Clock()
    left = set(range(store.keys.partitions))
    done = trio.Event()

    async def housekeep(held: HeldPartition) -> None:
        await keeper.compact(held)
        left.discard(held.partition)
        if not left:
            done.set()
        await trio.sleep_forever()

    engine: DueWork = DueWork(store, None)  # type: ignore[arg-type]
    keeper = Keeper(store, clock, engine, Random(1), KeeperTimes(idle_queue=0))
    membership = Membership(store, clock, NodeInfo(name="compacter"), housekeep)
    with trio.fail_after(within):
        async with trio.open_nursery() as nursery:
            await nursery.start(membership.run)
            await done.wait()
            await membership.leave()
            nursery.cancel_scope.cancel()


def families(client: redis.Redis, prefix: str) -> Counter[str]:
    """How many keys there are of each family, without those that expire by themselves."""
    keys = Keys(prefix)
    return Counter(
        keys.parse(key.decode())[1]
        for key in client.scan_iter(match=f"{prefix}:*", count=1000)
        if client.ttl(key) == -1
    )


def check_remains(client: redis.Redis, prefix: str, executions: int) -> None:
    """Nothing temporary is left; of each execution exactly its record and history."""
    found = families(client, prefix)
    assert set(found) <= LASTING, found
    assert (found["wf"], found["run"], found["hist"]) == (executions,) * 3, found
