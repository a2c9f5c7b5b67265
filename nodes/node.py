"""One node: its pieces, in the order in which they start and stop.

A node holds nothing that matters. It starts from the settings and Redis alone, may be killed at
any moment, and leaves in good order on SIGTERM: not ready any more, parked polls answered,
partitions handed over, open requests finished.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random, SystemRandom
from typing import Final

import structlog
import trio

from cluster.admission.audit import Audit
from cluster.admission.gate import Gate
from cluster.admission.limit_store import LimitStore
from cluster.bootstrap import ClusterRecord, bootstrap
from cluster.census import CensusTaker
from cluster.clock import Clock
from cluster.cohorts import Cohorts
from cluster.contracts import Contracts
from cluster.errors import StartupError
from cluster.fleet import Fleet
from cluster.flows.engine import FlowEngine, RpcBroker
from cluster.flows.planning import TIMERS as FLOW_TIMERS
from cluster.flows.planning import Placement
from cluster.flows.retention import FlowRetention
from cluster.membership.membership import Membership
from cluster.membership.sessions import NodeInfo, NodeLoad
from cluster.namespaces import NamespaceStore
from cluster.queries.broker import QueryBroker
from cluster.queries.polls import QueryPolls
from cluster.queues.barrier import Barrier
from cluster.queues.matcher import Matcher
from cluster.queues.polls import Polls
from cluster.queues.rpc_broker import NodeRpcBroker
from cluster.queues.served import Served
from cluster.queues.session_gate import SessionGate
from cluster.queues.sticky import TIMERS as STICKY_TIMERS
from cluster.queues.sticky import StickyTimers
from cluster.record_watch import watch_record
from cluster.schedules.names import FIRE_TIMER, FREED_TIMER
from cluster.schedules.schedules import Schedules
from cluster.search_attributes import SearchAttributes
from cluster.settings.origins import DEFAULT
from cluster.settings.schema import Settings
from cluster.store.checks import check_server, watch_server
from cluster.store.store import Store, open_store
from cluster.upkeep.due import DueWork
from cluster.upkeep.expiry import Expiry
from cluster.upkeep.keeper import Keeper, KeeperTimes
from cluster.upkeep.passes import Passes
from cluster.version import VERSION
from cluster.worker_sessions import WorkerSessions
from cluster.workers import WorkerStore
from cluster.workflows.engine import Engine
from cluster.workflows.history_waits import HistoryWaits
from cluster.workflows.limits import configured_limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.retention import Retention
from cluster.workflows.storage import RunCache
from nodes.streams.hub import StreamHub
from nodes.tracing import Spans

log = structlog.get_logger(__name__)

VALIDATION_SECONDS: Final = 30.0
"""How long the caller of an update waits for a worker's approval."""
LEAVE_SECONDS: Final = 10.0
LEVEL: Final = 1
"""What this build can write (G2)."""


@dataclass(slots=True)
class Node:
    """The pieces the routes use. ``stopping`` turns true when the node begins to leave."""

    settings: Settings
    cluster: ClusterRecord
    store: Store
    clock: Clock
    membership: Membership
    namespaces: NamespaceStore
    workers: WorkerStore
    fleet: Fleet
    contracts: Contracts
    cohorts: Cohorts
    queries: QueryBroker
    query_polls: QueryPolls
    validations: QueryBroker
    validation_polls: QueryPolls
    retention: Retention
    history_waits: HistoryWaits
    passes: Passes
    census: CensusTaker
    engine: Engine
    flows: FlowEngine
    streams: StreamHub
    served: Served
    rpc: RpcBroker | None
    limits: LimitStore
    gate: Gate
    matcher: Matcher
    sessions: WorkerSessions
    polls: Polls
    keeper: Keeper
    barrier: Barrier
    due: DueWork
    schedules: Schedules
    search_attributes: SearchAttributes
    spans: Spans
    stopping: bool = False


async def check_store(settings: Settings) -> None:
    """Start-up checks, tried again as ``bootstrap_retries`` says. Raises StartupError."""
    for tries_left in range(settings.bootstrap_retries, -1, -1):
        try:
            for warning in await check_server(settings.redis_url, settings.durability):
                log.warning("store_setting_doubted", warning=warning)
            return
        except StartupError as error:
            if not tries_left:
                raise
            log.warning("store_not_checked", error=str(error), tries_left=tries_left)
            await trio.sleep(settings.bootstrap_delay_seconds)


@asynccontextmanager
async def open_node(settings: Settings, address: str = "", spans: Spans | None = None) -> AsyncIterator[Node]:
    """A running node without its HTTP server; what it does is recorded in ``spans``. Raises StartupError.

    On leaving the block the node gives back its partitions and its session. ClusterGone ends it when
    the store loses the cluster.
    """
    random, spans = SystemRandom(), spans or Spans()
    # Nothing depends on the order in which equals are asked; the system's source takes a call of the kernel.
    order = Random(random.getrandbits(128))
    async with open_store(
        settings.redis_url, prefix=settings.key_prefix, durability=settings.durability
    ) as store:
        record = await bootstrap(store, _wanted_partitions(settings))
        store.keys = replace(store.keys, partitions=record.partitions)
        clock = Clock()
        runs = RunCache()
        leases = LeaseTimes(settings.workflow_task_timeout * 1000, settings.activity_task_timeout * 1000)
        engine = Engine(store, clock, runs, leases=leases, limits=configured_limits(settings), random=random)
        namespaces = NamespaceStore(store, clock.now_ms, settings.history_retention_days)
        schedules = Schedules(store, clock, namespaces, runs, leases=leases, random=random)
        placement = Placement(
            sticky_ms=int(settings.matching.sticky_wait * 1000),
            sync_ms=int(settings.matching.sync_match_wait * 1000),
            behind=lambda queue, type_part: streams.matcher.behind(queue, type_part),
            reserve=lambda queue, step_type: streams.matcher.reserve(queue, step_type),
        )
        flows = FlowEngine(store, clock, random, placement=placement)
        due = DueWork(
            store,
            engine,
            {
                FIRE_TIMER: schedules.fire,
                FREED_TIMER: schedules.freed,
                FLOW_TIMERS: flows.timer_due,
                STICKY_TIMERS: StickyTimers(store).due,
            },
        )
        times = KeeperTimes(resync=settings.matching.heads_resync_interval or float("inf"))
        admission = LimitStore(store, settings)
        gate = Gate(store, admission)
        audit = Audit(store, admission, random)
        retention = Retention(store)
        expiry = Expiry(retention, namespaces, clock.now_ms, random)
        flow_expiry = Expiry(FlowRetention(store), namespaces, clock.now_ms, random)
        keeper = Keeper(
            store,
            clock,
            due,
            random,
            times,
            chores=(
                audit.housekeep,
                expiry.housekeep,
                flow_expiry.housekeep,
                lambda held: streams.housekeep(held),
            ),
        )
        info = NodeInfo(
            name=settings.node_name,
            build=VERSION,
            level=LEVEL,
            address=address,
            started_at=clock.now_ms(),
        )
        membership = Membership(store, clock, info, keeper.housekeep, load=lambda: _load(node))
        barrier = Barrier(
            store,
            session=lambda: membership.incarnation,
            live=lambda: [session.incarnation for session in membership.live],
        )
        streams = StreamHub(
            store,
            clock,
            gate,
            membership,
            flows,
            settings.matching,
            nodes=lambda: [session.incarnation for session in membership.live],
            barrier=barrier,
            max_message_bytes=settings.max_payload_bytes,
            random=order,
            spans=spans,
        )
        rpc = NodeRpcBroker(
            store,
            streams.matcher,
            session=lambda: membership.incarnation,
            nodes=lambda: [session.incarnation for session in membership.live],
            dispatch_seconds=settings.matching.dispatch_wait,
            sticky_seconds=settings.matching.sticky_wait,
            random=order,
        )
        membership.on_buried(streams.orphanage.on_buried)
        membership.on_fenced(streams.fenced)
        membership.on_fenced(rpc.renewed)
        matcher = Matcher(
            store,
            gate=gate,
            session=lambda: membership.incarnation,
            may_act=membership.may_act,
            recover=due.run,
            on_peek=keeper.on_peek,
            random=order,
            unknown=barrier.ring,
            peek_seconds=settings.worker_poll_interval_ms / 1000,
        )
        barrier.add(matcher.recent.all)
        barrier.add(streams.handed_out)
        barrier.on_said(membership.rewrite_burials)
        barrier.on_said(streams.reasserted)
        fleet = Fleet(store, clock.now_ms, settings.worker_stale_after_seconds * 1000)
        sessions = WorkerSessions(store)
        workers = WorkerStore(store, clock.now_ms)
        node = Node(
            settings=settings,
            cluster=record,
            store=store,
            clock=clock,
            membership=membership,
            namespaces=namespaces,
            workers=workers,
            fleet=fleet,
            contracts=Contracts(fleet),
            cohorts=Cohorts(store),
            queries=QueryBroker(
                store,
                timeout=settings.query_task_timeout,
                ttl_seconds=settings.query_task_ttl_seconds,
                max_pending=settings.query_task_max_pending_per_queue,
            ),
            query_polls=QueryPolls(
                store, lease_ms=settings.query_task_lease_timeout * 1000, may_act=membership.may_act
            ),
            validations=QueryBroker(
                store,
                timeout=VALIDATION_SECONDS,
                ttl_seconds=settings.query_task_ttl_seconds,
                max_pending=settings.query_task_max_pending_per_queue,
            ),
            validation_polls=QueryPolls(
                store, lease_ms=settings.query_task_lease_timeout * 1000, may_act=membership.may_act
            ),
            retention=retention,
            history_waits=HistoryWaits(store),
            passes=Passes(store, engine, due),
            census=CensusTaker(store),
            engine=engine,
            flows=flows,
            streams=streams,
            served=streams.served,
            rpc=rpc,
            limits=admission,
            gate=gate,
            matcher=matcher,
            sessions=sessions,
            polls=Polls(
                store,
                matcher,
                runs,
                gate,
                SessionGate(store, sessions, engine.fail_activity),
                session=lambda: membership.incarnation,
                registration=workers.token,
            ),
            keeper=keeper,
            barrier=barrier,
            due=due,
            schedules=schedules,
            search_attributes=SearchAttributes(store, settings.max_search_attributes),
            spans=spans,
        )
        await node.namespaces.watch()
        await node.workers.watch()
        await node.sessions.watch()
        await node.polls.watch()
        await engine.watch_updates()
        await node.limits.watch()
        await node.queries.watch()
        await node.validations.watch()
        await node.cohorts.watch()
        node.history_waits.watch()
        await node.namespaces.bootstrap(settings.default_namespace)
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            await nursery.start(gate.run)
            await nursery.start(matcher.run)
            await nursery.start(node.query_polls.run)
            await nursery.start(node.validation_polls.run)
            nursery.start_soon(node.cohorts.run)
            nursery.start_soon(watch_record, store, record)
            await nursery.start(membership.run)
            await nursery.start(barrier.run)
            await nursery.start(streams.run)
            await nursery.start(rpc.run)
            if settings.durability != "memory":
                report = partial(_report_durability, store)
                nursery.start_soon(watch_server, settings.redis_url, settings.durability, report)
            try:
                yield node
            finally:
                longest = LEAVE_SECONDS + settings.matching.drain_wait
                with trio.CancelScope(shield=True), trio.move_on_after(longest):
                    await leave(node)
                nursery.cancel_scope.cancel()


def _load(node: Node) -> NodeLoad:
    """What the other nodes may show of this one."""
    streams = node.streams.statistics()
    return NodeLoad(
        draining=node.stopping,
        parked_polls=node.polls.parked + node.query_polls.parked + node.validation_polls.parked,
        streams=streams.streams,
        stream_workers=streams.workers,
        running_steps=streams.running,
    )


async def leave(node: Node) -> None:
    """Drain, then give back the node's partitions and its session."""
    await drain(node)
    await node.membership.leave()


async def drain(node: Node) -> None:
    """Not ready any more; answer what is parked at once; let stream workers finish here (R78).

    Others keep the partitions meanwhile: steps that run here may take a while.
    """
    node.stopping = True
    node.membership.yield_partitions()
    node.polls.close()
    node.flows.close()
    node.query_polls.close()
    node.history_waits.close()
    node.validation_polls.close()
    await node.streams.leave(node.settings.matching.drain_wait)


def _wanted_partitions(settings: Settings) -> int | None:
    return settings.partitions if settings.origin("partitions") is not DEFAULT else None


def _report_durability(store: Store, problem: str | None) -> None:
    """``fsync`` and ``replica:N`` are promises only while Redis keeps its own settings (A2)."""
    store.doubt(problem)
    if problem is None:
        log.info("durability_kept")
    else:
        log.error("durability_lost", problem=problem)
