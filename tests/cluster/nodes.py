"""The part of a node that hands out work, many to a store, without HTTP and membership."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import trio

from cluster.admission.gate import Gate
from cluster.admission.limit_store import LimitStore
from cluster.clock import Clock
from cluster.ids import TaskKind
from cluster.membership.fence import Fence, boottime
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.claims import PeekReply
from cluster.queues.matcher import Matcher
from cluster.queues.model import PollRequest
from cluster.queues.polls import Polls
from cluster.queues.session_gate import SessionGate
from cluster.queues.sticky import TIMERS, StickyTimers
from cluster.settings import Settings
from cluster.store.store import Store
from cluster.upkeep.due import DueWork
from cluster.worker_sessions import WorkerSessions
from cluster.workflows.engine import Engine
from cluster.workflows.limits import configured_limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.storage import RunCache

NEVER = 86_400.0


@dataclass
class PartialNode:
    name: str
    store: Store
    clock: Clock
    engine: Engine
    due: DueWork
    matcher: Matcher
    polls: Polls
    limits: LimitStore
    gate: Gate
    sessions: WorkerSessions


async def synchronized_clock(store: Store) -> Clock:
    """A clock that has seen the time of this Redis."""
    clock = Clock()
    for _ in range(3):
        sent = clock.local()
        seconds, micros = await store.call("TIME")
        clock.observe(int(seconds) * 1000 + int(micros) / 1000, sent, clock.local())
    return clock


async def no_registration(_namespace: str, _worker_id: str) -> str | None:
    """What workers are that never registered."""
    return None


@asynccontextmanager
async def open_nodes(
    store: Store,
    count: int = 2,
    *,
    peek_seconds: float = NEVER,
    leases: LeaseTimes | None = None,
    on_peek: Callable[[PeekReply], None] = lambda reply: None,
    may_act: Callable[[], bool] = lambda: True,
    settings: Settings | None = None,
    registration: Callable[[str, str], Awaitable[str | None]] = no_registration,
) -> AsyncIterator[list[PartialNode]]:
    """Nodes that share a store; their peeks are off unless ``peek_seconds`` says otherwise."""
    clock = await synchronized_clock(store)
    nodes: list[PartialNode] = []
    async with trio.open_nursery() as nursery:
        for number in range(count):
            random, runs, name = Random(number), RunCache(), f"node{number}~1"
            limits = configured_limits(settings or Settings())
            engine = Engine(store, clock, runs, leases=leases or LeaseTimes(), limits=limits, random=Random())
            due = DueWork(store, engine, {TIMERS: StickyTimers(store).due})
            book = LimitStore(store, settings or Settings())
            gate = Gate(store, book)
            matcher = Matcher(
                store,
                gate=gate,
                session=lambda name=name: name,  # type: ignore[misc]
                may_act=may_act,
                recover=due.run,
                on_peek=on_peek,
                random=random,
                peek_seconds=peek_seconds,
            )
            sessions = WorkerSessions(store)
            doors = SessionGate(store, sessions, engine.fail_activity)
            polls = Polls(
                store,
                matcher,
                runs,
                gate,
                doors,
                session=lambda name=name: name,  # type: ignore[misc]
                registration=registration,
            )
            await sessions.watch()
            await polls.watch()
            await book.watch()
            await nursery.start(gate.run)
            await nursery.start(matcher.run)
            nodes.append(PartialNode(name, store, clock, engine, due, matcher, polls, book, gate, sessions))
        yield nodes
        for node in nodes:
            node.polls.close()
        nursery.cancel_scope.cancel()


async def hold(store: Store, partition: int) -> HeldPartition:
    """A partition held for a minute by nobody in particular."""
    held = HeldPartition(partition, "owner", "nonce", 1, Fence(60.0), Fence(60.0))
    for fence in (held.session, held.lease):
        fence.renewed(boottime())
    until_ms = (await synchronized_clock(store)).now_ms() + 60_000
    lease = store.keys.lease(partition)
    await store.call("HSET", lease, "owner", held.owner, "nonce", held.nonce, "until", until_ms)
    return held


def poll_request(worker_id: str = "w", **fields: Any) -> PollRequest:
    """A poll for activities of the queue ``q`` unless ``fields`` say otherwise."""
    wanted = {"kind": TaskKind.ACTIVITY, "namespace": "ns", "queue": "q", "timeout": 10.0}
    return PollRequest(worker_id=worker_id, **{**wanted, **fields})
