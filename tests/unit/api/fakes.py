"""A node without Redis: enough of each part to test the pipeline and the routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import orjson

from cluster.cohorts import Cohorts
from cluster.contracts import Contracts
from cluster.errors import StoreError
from cluster.fleet import Fleet
from cluster.namespaces import NamespaceStore
from cluster.queues.barrier import BarrierStatistics, Reasserted
from cluster.queues.model import PollRequest, PollResult, PollStatus
from cluster.settings import Settings
from cluster.store.keys import Keys
from cluster.store.store import Store
from cluster.upkeep.passes import Candidates
from cluster.workers import WorkerStore
from cluster.workflows.limits import Limits
from nodes.api.messages import Request, Response
from nodes.api.metrics import Metrics
from nodes.api.pipeline import Pipeline
from nodes.api.ports import NodePort
from nodes.api.versions import CONTROL_HEADER, WORKER_HEADER
from nodes.tracing import Spans

NOW_MS = 1_800_000_000_000
CONTROL = {CONTROL_HEADER.decode(): "2"}
WORKER = {WORKER_HEADER.decode(): "1.20"}


class MemoryStore:
    """The Redis commands and scripts that namespaces, workers and readiness use."""

    def __init__(self) -> None:
        self.keys = Keys("test", 4)
        self.hashes: dict[str, dict[str, bytes]] = {self.keys.cluster(): {"schema": b"1"}}
        self.strings: dict[str, bytes] = {}
        self.commands: list[str] = []
        self.published: list[str] = []
        self.failure: StoreError | None = None
        self._handlers: list[Callable[[str, bytes], None]] = []
        self._reconnects: list[Callable[[], None]] = []

    async def call(self, *command: Any, idempotent: bool = False) -> Any:
        name, key, *rest = command
        self._count(name)
        table = self.hashes.get(key, {})
        match name:
            case "HGET":
                return table.get(rest[0])
            case "HGETALL":
                return [part for pair in table.items() for part in pair]
            case "HSETNX":
                if rest[0] in table:
                    return 0
                self.hashes.setdefault(key, {})[rest[0]] = bytes(rest[1])
                return 1
            case "HMGET":
                return [table.get(part) for part in rest]
            case "SISMEMBER":
                return int(rest[0] in table)
            case "SMISMEMBER":
                return [int(part in table) for part in rest]
            case "EXISTS":
                return int(bool(table))
            case "SET":
                self.strings[key] = rest[0].encode() if isinstance(rest[0], str) else rest[0]
                return b"OK"
            case "GET":
                return self.strings.get(key)
            case "DEL":
                return int(self.strings.pop(key, None) is not None)
        raise AssertionError(f"unexpected command {name}")

    async def run(self, script: str, keys: list[str], args: list[Any], *, idempotent: bool = False) -> Any:
        self._count(script)
        table = self.hashes.setdefault(keys[0], {})
        if script == "beat":
            return str(NOW_MS).encode() if args[0] in table else None
        assert script == "swap"
        name, expected, new, channel, message = args
        current = table.get(name, b"")
        if current not in (expected, new):
            return [0, current]
        table.pop(name, None)
        if new:
            table[name] = new
        self.published.append(message)
        for handler in self._handlers:
            handler(channel, message.encode())
        return [1, str(NOW_MS).encode()]

    def on_message(self, channel_prefix: str, handler: Callable[[str, bytes], None]) -> None:
        self._handlers.append(handler)

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        self._reconnects.append(handler)

    async def subscribe(self, *channels: str) -> None:
        return

    def reconnect(self) -> None:
        for handler in self._reconnects:
            handler()

    def statistics(self) -> Any:
        pipe = SimpleNamespace(commands=7, round_trips=3, lost_connections=1, ambiguous=0)
        return SimpleNamespace(pipe=pipe, pubsub=SimpleNamespace(lost_connections=2), commits=4)

    def _count(self, name: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.commands.append(name)


class FakeEngine:
    """Answers every call with ``answers[name]``, raises it when it is an exception."""

    limits = Limits()
    sticky_misses = 0

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    async def release_workflow_tasks(self, *_: str) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        async def answer(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            found = self.answers.get(name, {})
            if isinstance(found, Exception):
                raise found
            return found

        return answer


class FakePolls:
    """Answers polls with ``result`` and remembers what was asked."""

    def __init__(self) -> None:
        self.parked = 0
        self.asked: list[PollRequest] = []
        self.result: PollResult | StoreError = PollResult(PollStatus.EMPTY)
        self.returned: list[object] = []
        self.undelivered = self.returned.append

    async def poll(self, request: PollRequest) -> PollResult:
        self.asked.append(request)
        if isinstance(self.result, StoreError):
            raise self.result
        return self.result


async def _healthy(_namespace: str) -> Candidates:
    return Candidates(0, [], [])


async def _nothing(*_: Any) -> None:
    return None


@dataclass
class FakeNode:
    """A node of fakes around the real namespaces and workers."""

    settings: Settings
    store: MemoryStore = field(default_factory=MemoryStore)
    engine: FakeEngine = field(default_factory=FakeEngine)
    schedules: FakeEngine = field(default_factory=FakeEngine)
    search_attributes: FakeEngine = field(default_factory=FakeEngine)
    polls: FakePolls = field(default_factory=FakePolls)
    stopping: bool = False

    def __post_init__(self) -> None:
        store = cast(Store, self.store)
        self.spans = Spans()
        self.clock = SimpleNamespace(now_ms=lambda: NOW_MS)
        self.membership = SimpleNamespace(held={0: None, 3: None})
        self.namespaces = NamespaceStore(store, self.clock.now_ms, self.settings.history_retention_days)
        self.workers = WorkerStore(store, self.clock.now_ms)
        self.contracts = Contracts(Fleet(store, self.clock.now_ms, 60_000))
        self.cohorts = Cohorts(store)
        self.due = SimpleNamespace(resting=0, failures=0)
        self.queries = SimpleNamespace(waiting=0)
        self.query_polls = SimpleNamespace(parked=0)
        self.barrier = SimpleNamespace(statistics=lambda: BarrierStatistics(0, {Reasserted.TAKEN: 0}))
        self.retention = SimpleNamespace(take_turn=_nothing)
        self.fleet = Fleet(store, self.clock.now_ms, 60_000)
        self.passes = SimpleNamespace(recent_candidates=_healthy)


@dataclass(frozen=True)
class Answer:
    """A response, read."""

    status: int
    headers: dict[str, str]
    body: Any
    raw: Response


class Client:
    """Sends requests through a pipeline."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.metrics = Metrics(cast(NodePort, node))
        self.pipeline = Pipeline(cast(NodePort, node), self.metrics)

    async def send(
        self,
        method: str,
        target: str,
        json: Any = None,
        *,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send with exactly these headers; a JSON body brings its Content-Type."""
        path, _, query = target.partition("?")
        wire = body if body is not None else b"" if json is None else orjson.dumps(json)
        fields = {"content-type": "application/json"} if wire else {}
        fields |= headers or {}
        pairs = tuple((name.lower().encode(), value.encode()) for name, value in fields.items())
        response = await self.pipeline.handle(Request(method, path.encode(), query.encode(), pairs, wire))
        shown = {name.decode(): value.decode() for name, value in response.headers}
        is_json = shown.get("content-type") == "application/json" and "content-encoding" not in shown
        read = orjson.loads(response.body) if is_json and response.body else response.body
        return Answer(response.status, shown, read, response)

    async def control(self, method: str, target: str, json: Any = None, **headers: str) -> Answer:
        """A well-versioned request to the control plane."""
        return await self.send(method, target, json, headers=CONTROL | headers)

    async def worker(self, method: str, target: str, json: Any = None, **headers: str) -> Answer:
        """A well-versioned request to the worker plane."""
        return await self.send(method, f"/api/worker/{target}", json, headers=WORKER | headers)
