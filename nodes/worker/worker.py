"""The pull worker: registers slots at nodes, runs the tasks that come, and leaves in good order."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Final

import trio

from cluster.queues.slot_kind import SlotKind
from cluster.version import VERSION
from nodes.streams.frames import FlowTypeSupport, Hello, Welcome
from nodes.worker.configuration import WorkerConfiguration, configure
from nodes.worker.context import Attempt
from nodes.worker.credentials import Credential
from nodes.worker.errors import (
    ProtocolVersionError,
    PullRegistrationError,
    StreamRejected,
    TaskLimitTooHigh,
    WorkerError,
)
from nodes.worker.flow import Flow, bind
from nodes.worker.lane import Lane, LaneState
from nodes.worker.lane_runner import LaneRunner
from nodes.worker.line import SLOTS_PER_CONNECTION, Line
from nodes.worker.readiness import QueueReadiness, Readiness
from nodes.worker.running import Ended, Job, TaskRunner
from nodes.worker.tasks import TaskBody

log = logging.getLogger("headrace.worker")

FLUSH_SECONDS: Final = 5.0
"""How long a stop waits for the node to confirm outputs and closed slots (R80)."""
MOST_NAMES: Final = 256
"""A flow with more step types or RPCs does not list them; what it lacks is declined."""


class Worker:
    """Runs flows. ``url`` is a node, a balancer, or several of them.

    ``flows`` are classes or objects of Flow. ``max_concurrent_tasks`` (CPU count) is the number of
    slots, ``reserved_rpc_slots`` of them (one, if there are two or more) run RPCs only. ``token`` or
    ``token_file`` opens streams; the file is read again for every connection. Raises
    WorkerConfigurationError and DefinitionError. ::

        async with Worker("http://127.0.0.1:8080", flows=[Order]) as worker:
            await worker.wait_pull_registered()
            await trio.sleep_forever()
    """

    def __init__(
        self,
        url: str | Sequence[str],
        flows: Sequence[Flow | type[Flow]],
        *,
        worker_id: str | None = None,
        max_concurrent_tasks: int | None = None,
        reserved_rpc_slots: int | None = None,
        stop_drain_timeout: float = 30.0,
        stop_on_permanent_stream_rejection: bool = False,
        token: str | None = None,
        token_file: str | None = None,
        namespace: str = "default",
        build: str = "",
    ) -> None:
        bound = [bind(flow) for flow in flows]
        self.configuration: WorkerConfiguration = configure(
            url,
            [flow.shape.name for flow in bound],
            worker_id=worker_id,
            max_concurrent_tasks=max_concurrent_tasks,
            reserved_rpc_slots=reserved_rpc_slots,
            stop_drain_timeout=stop_drain_timeout,
            stop_on_permanent_stream_rejection=stop_on_permanent_stream_rejection,
            namespace=namespace,
        )
        made = self.configuration
        self.stopping = False
        """No new task is started."""
        self._hello = Hello(
            worker_id=made.worker_id,
            flow_types=[
                FlowTypeSupport(flow.shape.name, _listed(flow.steps), _listed(flow.rpcs)) for flow in bound
            ],
            task_limit=made.task_limit,
            reserved_rpc_slots=made.reserved_rpc_slots,
            build=build,
            sdk=f"headrace/{VERSION}",
        )
        self._runner = TaskRunner(bound, made.worker_id, made.task_limit)
        self._readiness = Readiness(dict.fromkeys(made.slot_kinds))
        kinds = made.slot_kinds
        count = -(-len(kinds) // SLOTS_PER_CONNECTION)
        credential = Credential(token, token_file)
        self._lines = [
            Line(self, kinds[number::count], made.urls, number, credential, made.namespace)
            for number in range(count)
        ]
        self._lanes = [lane for line in self._lines for lane in line.lanes]
        self._nursery: trio.Nursery | None = None
        self._started = False
        self._stop = trio.Event()
        self._ended = trio.Event()
        self._changed = trio.Event()
        self._failure: WorkerError | None = None
        self._warned_of_cap = False
        self._beside = AsyncExitStack()

    @property
    def worker_id(self) -> str:
        """Names this process; another one after each start."""
        return self.configuration.worker_id

    # -- life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until :meth:`stop` is called, once.

        Raises PullRegistrationError when a kind of slot is refused for good and that was to stop the
        worker (R16), TaskLimitTooHigh (R25), ProtocolVersionError (R99).
        """
        if self._started:
            raise RuntimeError("a worker runs once")
        self._started = True
        if self.configuration.warns_about_rpcs:
            log.warning(
                "This worker has one slot, so RPCs wait behind long-running steps. Set "
                "max_concurrent_tasks to 2 or more, or reserved_rpc_slots to 0 if that is fine."
            )
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for line in self._lines:
                    nursery.start_soon(line.run)
                await self._stop.wait()
                await self._drain()
                for line in self._lines:
                    line.close()
                for lane in self._lanes:
                    if lane.runner is not None:
                        lane.runner.end()
        finally:
            self.stopping = True
            self._readiness.ended(self._failure)
            self._ended.set()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Start nothing more, let handlers finish for ``stop_drain_timeout``, then cancel them.

        Returns when the last handler has returned. Safe to call at any time and more than once.
        """
        self._begin_stop()
        if self._started:
            await self._ended.wait()

    def _begin_stop(self) -> None:
        self.stopping = True
        self._stop.set()
        if not self._started:
            self._readiness.ended()
        for line in self._lines:
            line.wake()

    def _fail(self, error: WorkerError) -> None:
        if self._failure is None and not self.stopping:
            self._failure = error
            self._readiness.ended(error)
            self._begin_stop()

    async def _drain(self) -> None:
        self._readiness.ended(self._failure)
        for lane in self._lanes:
            self._wind_down(lane)
        with trio.move_on_after(self.configuration.stop_drain_timeout):
            await self._until(lambda lane: not lane.runs)
        for lane in self._lanes:
            if lane.attempt is not None:
                if lane.connection is not None and lane.state is LaneState.BUSY:
                    lane.connection.reset(lane, "drain_timeout")
                lane.attempt.cancel("the worker is stopping")
        with trio.move_on_after(FLUSH_SECONDS):
            await self._until(lambda lane: lane.connection is None)
        await self._until(lambda lane: not lane.runs)

    def _wind_down(self, lane: Lane) -> None:
        if lane.state is LaneState.UNPLACED:
            lane.state = LaneState.GONE
        elif lane.state in (LaneState.OPENING, LaneState.IDLE) and lane.connection is not None:
            lane.connection.half_close(lane)

    async def _until(self, holds: Callable[[Lane], bool]) -> None:
        while not all(holds(lane) for lane in self._lanes):
            self._changed = trio.Event()
            await self._changed.wait()

    async def __aenter__(self) -> Worker:
        return await self._beside.enter_async_context(self._run_beside())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._beside.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run_beside(self) -> AsyncIterator[Worker]:
        """Runs the worker beside a block: what either raises comes out as it is, in no group."""
        raised: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_until_failure, nursery.cancel_scope)
            try:
                yield self
            except Exception as error:
                raised = error
            await self.stop()
        if raised is not None:
            raise raised
        if self._failure is not None:
            raise self._failure

    async def _run_until_failure(self, block: trio.CancelScope) -> None:
        try:
            await self.run()
        except WorkerError:
            block.cancel()

    # -- readiness --------------------------------------------------------------------------

    async def wait_pull_registered(self) -> None:
        """Return once every kind of slot has had a registered stream; from then on at once, always.

        Any number of tasks may wait, also before the start. Raises PullRegistrationError, or what
        ended the worker; give it a deadline with ``trio.fail_after`` (R1 to R9).
        """
        await self._readiness.wait()

    @property
    def is_ready(self) -> bool:
        """For a probe: 200 or 503. Losing connections leaves a worker ready (R11, R12)."""
        return self._readiness.is_ready

    @property
    def queues(self) -> tuple[QueueReadiness, ...]:
        """One entry per required kind of slot (R10)."""
        return self._readiness.queues

    # -- what connections tell --------------------------------------------------------------

    def hello(self) -> Hello:
        """How the worker introduces itself."""
        return self._hello

    def welcomed(self, welcome: Welcome) -> None:
        """A node said how many slots it allows (R25 to R27)."""
        limit, cap = self.configuration.task_limit, welcome.max_concurrent_tasks
        if cap >= limit:
            return
        if not self._readiness.ever_registered:
            self._fail(TaskLimitTooHigh(limit, cap))
        elif not self._warned_of_cap:
            self._warned_of_cap = True
            log.warning("%s", TaskLimitTooHigh(limit, cap))

    def registered(self, lane: Lane) -> None:
        """A lane has a slot."""
        self._readiness.registered(lane.kind)

    def unregistered(self, lane: Lane) -> None:
        """A lane has no slot any more."""
        self._readiness.lost(lane.kind)

    def rejected(self, kind: SlotKind, error: StreamRejected, permanent: bool) -> None:
        """A node refused a slot, or the connection it would have had."""
        if not permanent or self.stopping:
            return
        if not self._readiness.ever_registered and _speaks_no_common_version(error):
            self._fail(ProtocolVersionError(_versions_text(error)))
            return
        problem: PullRegistrationError | None = self._readiness.rejected(kind, error)
        if problem is not None and self.configuration.stop_on_permanent_stream_rejection:
            self._fail(problem)

    def job(self, body: TaskBody) -> Job | None:
        """What runs a task, if it can be run here."""
        return self._runner.job(body)

    def start(self, lane: Lane, job: Job, attempt: Attempt) -> None:
        """Run a task on its lane."""
        if lane.runner is None:
            if self._nursery is None:
                return
            lane.runner = LaneRunner(self._nursery, partial(self._settle, lane))
        lane.attempt = attempt
        lane.runner.start(job, attempt)

    def _settle(self, lane: Lane, ended: Ended) -> None:
        lane.attempt = None
        if lane.state is LaneState.BUSY and lane.connection is not None:
            lane.connection.finish(lane, ended)
        elif lane.state is LaneState.ORPHANED:
            lane.state = LaneState.UNPLACED
        self.changed(lane)

    def changed(self, lane: Lane) -> None:
        """A lane is in another state."""
        if self.stopping:
            self._wind_down(lane)
        if lane.state is LaneState.UNPLACED:
            lane.line.wake()
        self._changed.set()


def _listed(names: object) -> list[str] | None:
    found = list(names) if isinstance(names, dict) else []
    return found if len(found) <= MOST_NAMES else None


def _speaks_no_common_version(error: StreamRejected) -> bool:
    no_streams = error.status == 404 and error.reason != "namespace_not_found"
    return no_streams or error.reason == "unsupported_protocol_version"


def _versions_text(error: StreamRejected) -> str:
    if error.status == 404:
        return (
            "the server has no stream protocol at all, this worker needs version 1 (1-1): "
            "upgrade the server first"
        )
    return f"no version of the stream protocol in common: {error.message}"
