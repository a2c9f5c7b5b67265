"""What the routes need from the node they run in."""

from __future__ import annotations

from typing import Protocol

from cluster.admission.gate import Gate
from cluster.admission.limit_store import LimitStore
from cluster.census import CensusTaker
from cluster.clock import Clock
from cluster.cohorts import Cohorts
from cluster.contracts import Contracts
from cluster.fleet import Fleet
from cluster.flows.engine import FlowEngine, RpcBroker
from cluster.membership.membership import Membership
from cluster.namespaces import NamespaceStore
from cluster.queries.broker import QueryBroker
from cluster.queries.polls import QueryPolls
from cluster.queues.barrier import Barrier
from cluster.queues.polls import Polls
from cluster.queues.served import Served
from cluster.schedules.schedules import Schedules
from cluster.search_attributes import SearchAttributes
from cluster.settings.schema import Settings
from cluster.store.store import Store
from cluster.upkeep.due import DueWork
from cluster.upkeep.passes import Passes
from cluster.worker_sessions import WorkerSessions
from cluster.workers import WorkerStore
from cluster.workflows.engine import Engine
from cluster.workflows.history_waits import HistoryWaits
from cluster.workflows.retention import Retention
from nodes.tracing import Spans


class NodePort(Protocol):
    """The node: what its pieces are called."""

    @property
    def settings(self) -> Settings: ...
    @property
    def spans(self) -> Spans: ...
    @property
    def store(self) -> Store: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def membership(self) -> Membership: ...
    @property
    def namespaces(self) -> NamespaceStore: ...
    @property
    def workers(self) -> WorkerStore: ...
    @property
    def sessions(self) -> WorkerSessions: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def cohorts(self) -> Cohorts: ...
    @property
    def queries(self) -> QueryBroker: ...
    @property
    def validations(self) -> QueryBroker: ...
    @property
    def validation_polls(self) -> QueryPolls: ...
    @property
    def query_polls(self) -> QueryPolls: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def history_waits(self) -> HistoryWaits: ...
    @property
    def barrier(self) -> Barrier: ...
    @property
    def due(self) -> DueWork: ...
    @property
    def passes(self) -> Passes: ...
    @property
    def census(self) -> CensusTaker: ...
    @property
    def contracts(self) -> Contracts: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def flows(self) -> FlowEngine: ...
    @property
    def rpc(self) -> RpcBroker | None: ...
    @property
    def served(self) -> Served: ...
    @property
    def limits(self) -> LimitStore: ...
    @property
    def gate(self) -> Gate: ...
    @property
    def polls(self) -> Polls: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def search_attributes(self) -> SearchAttributes: ...

    @property
    def stopping(self) -> bool:
        """True once the node has begun to leave; it still answers what comes."""
