"""What the routes need from the node they run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cluster.namespaces import NamespaceStore
from cluster.queues.model import PollRequest, PollResult
from cluster.settings.schema import Settings
from cluster.workers import WorkerStore
from cluster.workflows.records import Lease, Payload, Run, RunInfo, RunStatus


class ClockPort(Protocol):
    """Estimated Redis time."""

    def now_ms(self) -> int: ...


class StorePort(Protocol):
    """The part of the store that readiness looks at."""

    @property
    def keys(self) -> Any: ...

    async def call(self, *command: str | bytes | int | float, idempotent: bool = False) -> Any: ...

    def statistics(self) -> Any: ...


class StartedView(Protocol):
    """Outcome of a start."""

    @property
    def info(self) -> RunInfo: ...
    @property
    def status(self) -> RunStatus: ...
    @property
    def outcome(self) -> str: ...


class RunView(Protocol):
    """One run as the engine shows it."""

    @property
    def run(self) -> Run: ...
    @property
    def run_count(self) -> int: ...
    @property
    def is_current(self) -> bool: ...
    @property
    def task(self) -> Lease | None: ...
    @property
    def archived(self) -> bool: ...


class RunPage(Protocol):
    """A page of runs, newest first."""

    @property
    def runs(self) -> Sequence[RunView]: ...
    @property
    def next_page_token(self) -> str | None: ...


class HistoryPage(Protocol):
    """A page of history; events are JSON objects in worker form."""

    @property
    def events(self) -> Sequence[bytes]: ...
    @property
    def next_page_token(self) -> str | None: ...


class EnginePort(Protocol):
    """Runs and their tasks. Every method may raise Refused and StoreError."""

    async def start(self, request: Any) -> StartedView: ...

    async def describe(self, namespace: str, workflow_id: str, run_id: str | None = None) -> RunView: ...

    async def list_runs(
        self,
        namespace: str,
        *,
        workflow_type: str | None,
        bucket: str | None,
        query: str | None,
        page_size: int,
        token: str | None,
    ) -> RunPage: ...

    async def history(
        self, namespace: str, workflow_id: str, run_id: str, *, page_size: int, token: str | None
    ) -> HistoryPage: ...

    async def complete_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int, commands: list[dict[str, Any]]
    ) -> dict[str, Any]: ...

    async def fail_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int, failure: dict[str, Any]
    ) -> dict[str, Any]: ...

    async def heartbeat_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int
    ) -> dict[str, Any]: ...

    async def workflow_task_history(
        self, namespace: str, task_id: str, owner: str, attempt: int, *, page_size: int, token: str
    ) -> dict[str, Any]: ...

    async def complete_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, result: Payload | None
    ) -> dict[str, Any]: ...

    async def fail_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, failure: dict[str, Any]
    ) -> dict[str, Any]: ...

    async def heartbeat_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, progress: dict[str, Any]
    ) -> dict[str, Any]: ...


class PollsPort(Protocol):
    """Long polls."""

    @property
    def parked(self) -> int: ...

    async def poll(self, request: PollRequest) -> PollResult: ...


class MembershipPort(Protocol):
    """This node's place in the cluster."""


class NodePort(Protocol):
    """The node: what its pieces are called."""

    @property
    def settings(self) -> Settings: ...
    @property
    def store(self) -> StorePort: ...
    @property
    def clock(self) -> ClockPort: ...
    @property
    def namespaces(self) -> NamespaceStore: ...
    @property
    def workers(self) -> WorkerStore: ...
    @property
    def engine(self) -> EnginePort: ...
    @property
    def polls(self) -> PollsPort: ...


Parameters = Mapping[str, str]
