"""Several matchers over one Redis, each with a store and a gate of its own, and work made by hand."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import orjson
import trio

from cluster.admission.gate import Gate
from cluster.admission.limit_store import LimitStore
from cluster.admission.tickets import Discharge
from cluster.errors import ConditionFailed
from cluster.ids import TaskKind
from cluster.queues.claims import Claim
from cluster.queues.matcher import Matcher
from cluster.queues.waiters import QueueId, Waiter
from cluster.settings import Settings
from cluster.store.keys import QueueName, encode
from cluster.store.store import Store, open_store
from cluster.store.transaction import Transaction
from tests.cluster.queues.lab import Lab
from tests.store_time import store_ms

ACTIVITY, WORKFLOW = TaskKind.ACTIVITY, TaskKind.WORKFLOW


@dataclass
class Member:
    """One node: what it hands out with, and the store it is alone with."""

    store: Store
    matcher: Matcher
    limits: LimitStore
    gate: Gate
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    tokens: count[int] = field(default_factory=count)

    async def poll(
        self,
        seconds: float = 0,
        *,
        namespace: str = "ns",
        queue: str = "q",
        kind: TaskKind = ACTIVITY,
        types: frozenset[str] = frozenset(),
    ) -> Claim | None:
        waiter = Waiter(
            queue=QueueId(kind, namespace, queue),
            owner="w",
            token=f"{id(self)}-{next(self.tokens)}",
            types=types,
            markers=("",),
            page_size=1,
        )
        return await self.matcher.wait(waiter, seconds)

    async def crash(self) -> None:
        """End as a killed process does: nothing that waits is given back."""
        self.gate._nursery = None
        self.gate._pending = _Lost()
        self.scope.cancel()


class _Lost(dict[str, list[Discharge]]):
    """Forgets what is put into it, as the memory of a killed process does."""

    def setdefault(self, key: str, default: list[Discharge] | None = None) -> list[Discharge]:
        return []


@dataclass
class World:
    members: list[Member]
    lab: Lab
    partitions: int

    @property
    def store(self) -> Store:
        return self.lab.store

    async def add(
        self,
        number: int = 1,
        *,
        namespace: str = "ns",
        queue: str = "q",
        kind: TaskKind = ACTIVITY,
        **more: Any,
    ) -> list[str]:
        """``number`` ready tasks, spread over the partitions."""
        name = QueueName(kind, namespace, queue)
        return [
            await self.lab.enqueue(
                more.get("type_name", "t"),
                partition=index % self.partitions,
                queue=name,
                **{key: value for key, value in more.items() if key != "type_name"},
            )
            for index in range(number)
        ]

    async def finish(self, claim: Claim, member: Member | None = None) -> None:
        """The task of a claim is done; the node that hears of it gives the ticket back."""
        tx = Transaction(claim.partition, frees=True)
        tx.expect_task(claim.task_id, "l", claim.attempt, claim.delivery)
        tx.drop(claim.task_id)
        await (member or self.members[0]).store.commit(tx)

    async def tickets(
        self, namespace: str = "ns", kind: TaskKind = ACTIVITY, queue: str | None = None
    ) -> int:
        base = self.store.keys.admission(namespace)
        key = f"{base}:t:{kind.value}" if queue is None else f"{base}:q:{kind.value}:{encode(queue)}"
        number: int = await self.store.call("ZCARD", key)
        return number

    async def leases(self, namespace: str = "ns", kind: TaskKind = ACTIVITY, queue: str = "q") -> int:
        total = 0
        for partition in range(self.partitions):
            base = self.store.keys.base(partition)
            key = f"{base}:lq:{kind.value}:{encode(namespace)}:{encode(queue)}"
            total += await self.store.call("ZCARD", key)
        return total

    async def dispatched(self, field_name: str, namespace: str = "ns", kind: TaskKind = ACTIVITY) -> int:
        """What is counted in all minutes that are remembered."""
        base = self.store.keys.admission(namespace)
        keys = await self.store.call("KEYS", f"{base}:m:{kind.value}:*".replace("[", r"\["))
        found = [await self.store.call("HGET", key, field_name) for key in keys]
        return sum(int(value or 0) for value in found)


@asynccontextmanager
async def open_world(
    url: str,
    prefix: str,
    *,
    members: int = 1,
    partitions: int = 4,
    peek_seconds: float = 0.5,
    **settings: Any,
) -> AsyncIterator[World]:
    """``settings`` are those of :class:`Settings`; ``overrides`` is the override tree."""
    overrides = settings.pop("overrides", None)
    if overrides is not None:
        settings["task_queue_admission_overrides"] = orjson.dumps(overrides).decode()
    told = Settings(**settings)
    async with open_store(url, prefix=prefix, partitions=partitions) as store, trio.open_nursery() as nursery:
        found: list[Member] = []
        for _ in range(members):
            found.append(await nursery.start(live, url, prefix, partitions, peek_seconds, told))
        yield World(found, Lab(store), partitions)
        nursery.cancel_scope.cancel()


async def lapse(store: Store, partition: int) -> None:
    """End the leases that have run out: their tasks become ready again."""
    base = store.keys.base(partition)
    now = await store_ms(store)
    for task_id in await store.call("ZRANGEBYSCORE", f"{base}:leases", "-inf", now):
        attempt = await store.call("HGET", store.keys.task(partition, task_id.decode()), "n")
        if attempt is None:
            continue
        tx = Transaction(partition, frees=True)
        tx.expect_task(task_id.decode(), "l", int(attempt), None)
        tx.expect_lapsed(task_id.decode())
        tx.requeue(task_id.decode(), int(attempt) + 1, 0)
        with suppress(ConditionFailed):
            await store.commit(tx)


async def live(
    url: str,
    prefix: str,
    partitions: int,
    peek_seconds: float,
    settings: Settings,
    task_status: trio.TaskStatus[Member],
) -> None:
    """A member, until it crashes or the world ends."""
    with trio.CancelScope() as scope:
        async with (
            open_store(url, prefix=prefix, partitions=partitions) as store,
            trio.open_nursery() as nursery,
        ):
            limits = LimitStore(store, settings)
            gate = Gate(store, limits)
            name = secrets.token_hex(4)
            matcher = Matcher(
                store,
                gate=gate,
                session=lambda: name,
                may_act=lambda: True,
                recover=lambda partition: lapse(store, partition),
                on_peek=lambda reply: None,
                random=Random(name),
                peek_seconds=peek_seconds,
            )
            await limits.watch()
            await nursery.start(gate.run)
            await nursery.start(matcher.run)
            task_status.started(Member(store, matcher, limits, gate, scope))
            await trio.sleep_forever()
