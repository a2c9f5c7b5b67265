"""Starting flows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import Raw

from cluster.errors import ConditionFailed, Refused, StoreUnavailable
from cluster.flows import machine
from cluster.flows.changes import View
from cluster.flows.deciding import FlowDecider
from cluster.flows.planning import plan, step_queue
from cluster.flows.records import (
    FlowInfo,
    FlowRun,
    FlowState,
    FlowStatus,
    StepOptions,
    TimeoutHandler,
    TimeoutPolicy,
)
from cluster.flows.storage import Picture, Wants, encode_record, load
from cluster.ids import new_run_id, partition_of_flow
from cluster.store.transaction import Transaction, TransactionTooLarge
from cluster.times import due_after

STARTED: Final = "started_new"
ALREADY_STARTED: Final = "already_started"
_TRIES: Final = 20


class IdReuse(StrEnum):
    """When a flow id that was used before may be used again."""

    IF_NOT_RUNNING = "allow_if_not_running"
    IF_PREVIOUS_FAILED = "allow_if_previous_failed"
    NEVER = "disallow"
    TERMINATE_RUNNING = "terminate_if_running"

    def allows(self, previous: FlowStatus) -> bool:
        """Whether a run may follow one in this status."""
        match self:
            case IdReuse.IF_NOT_RUNNING:
                return previous.closed
            case IdReuse.IF_PREVIOUS_FAILED:
                return previous.closed and previous is not FlowStatus.COMPLETED
            case IdReuse.NEVER:
                return False
            case IdReuse.TERMINATE_RUNNING:
                return True


@dataclass(frozen=True, slots=True)
class StartFlow:
    """A validated start. ``flow_id`` and ``request_id`` None: the server makes them."""

    namespace: str
    flow_type: str
    start_step: str
    flow_id: str | None = None
    input: bytes = b"null"
    options: StepOptions = field(default_factory=StepOptions)
    attributes: Mapping[str, Raw] = field(default_factory=dict)
    timeout_ms: int = 0
    timeout_policy: TimeoutPolicy = TimeoutPolicy.FAIL
    timeout_handler: TimeoutHandler | None = None
    id_reuse: IdReuse = IdReuse.IF_NOT_RUNNING
    request_id: str | None = None
    ignore_already_started: bool = False
    traceparent: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FlowStarted:
    """``outcome`` is STARTED or ALREADY_STARTED."""

    info: FlowInfo
    outcome: str


@dataclass(frozen=True, slots=True)
class _Previous:
    """The current run of a flow id; ``picture`` is None when only the id is left of it."""

    run_id: str
    runs: int
    picture: Picture | None


class Starts(FlowDecider):
    """Starts flows."""

    async def start(self, request: StartFlow) -> FlowStarted:
        """Start a flow in one commit.

        The same request id never starts a second run: with ``ignore_already_started`` it finds the
        first one. Raises Refused (flow_already_started 409, structural_limit_exceeded and
        payload_too_large 422).
        """
        keys = self._store.keys
        now_ms = self._clock.now_ms()
        flow_id = request.flow_id or new_run_id(self._random.randrange(keys.partitions), now_ms, self._random)
        partition = partition_of_flow(request.namespace, flow_id, keys.partitions)
        previous: _Previous | None = None
        for _ in range(_TRIES):
            if previous is not None and previous.picture is not None:
                found = _meets(request, previous.picture)
                if found is not None:
                    return found
            try:
                return await self._start(request, flow_id, partition, previous)
            except ConditionFailed:
                previous = await self._previous(request.namespace, flow_id, partition)
        raise StoreUnavailable(f"flow {flow_id} is started faster than this node can; try again")

    async def _start(
        self, request: StartFlow, flow_id: str, partition: int, previous: _Previous | None
    ) -> FlowStarted:
        keys = self._store.keys
        now_ms = self._clock.now_ms()
        run_id = new_run_id(partition, now_ms, self._random)
        info = FlowInfo(
            namespace=request.namespace,
            flow_id=flow_id,
            run_id=run_id,
            run_number=1 if previous is None else previous.runs + 1,
            flow_type=request.flow_type,
            start_step=request.start_step,
            request_id=request.request_id or run_id,
            started_at_ms=now_ms,
            deadline_ms=due_after(now_ms, request.timeout_ms) if request.timeout_ms else 0,
            timeout_policy=request.timeout_policy,
            timeout_handler=request.timeout_handler,
            traceparent=request.traceparent,
        )
        changes = machine.start(info, request.input, request.options, request.attributes, self._limits)
        tx = self._transaction(partition, run_id)
        flow_key = keys.flow(partition, info.namespace, flow_id)
        if previous is None:
            tx.expect_absent(flow_key)
        else:
            tx.expect_equal(flow_key, "run", previous.run_id)
            self._end_previous(tx, previous, now_ms)
        tx.hset(flow_key, {"run": run_id, "runs": info.run_number})
        fixed: dict[str, str | bytes] = {
            "fl": "1",
            "i": encode_record(info),
            "wid": flow_id,
            "type": info.flow_type,
            "st": changes.state.status.value,
        }
        tx.redis("ZADD", keys.flows(partition, info.namespace), now_ms, run_id)
        run = FlowRun(info=info, state=FlowState())
        reserved = self._placement.reserve(step_queue(info), info.start_step)
        with reserved or nullcontext():
            try:
                planned = plan(tx, keys, run, changes, self._placement, reserved, fixed)
                applied_now = await self._store.commit(tx)
            except TransactionTooLarge as error:
                raise Refused("payload_too_large", str(error), status=422) from error
            if applied_now:
                self._runs.learn(Picture(run).after(changes, tx.request_id).run, planned.written)
                if reserved is not None:
                    reserved.settle(planned.handed_out(tx))
        if previous is not None:
            self._runs.forget(previous.run_id)
        return FlowStarted(info, STARTED)

    def _end_previous(self, tx: Transaction, previous: _Previous, now_ms: int) -> None:
        """The run before it is as it was read; if it runs, it ends with this commit."""
        if previous.picture is None:
            return
        run = previous.picture.run
        tx.expect_equal(self._store.keys.run(tx.partition, run.info.run_id), "v", run.version)
        if not run.state.status.closed:
            changes = machine.stop(
                View(run), machine.StopType.TERMINATE, "replaced by a new run", False, now_ms, self._limits
            )
            plan(tx, self._store.keys, run, changes, self._placement)

    async def _previous(self, namespace: str, flow_id: str, partition: int) -> _Previous | None:
        key = self._store.keys.flow(partition, namespace, flow_id)
        run_id, runs = await self._store.call("HMGET", key, "run", "runs", idempotent=True)
        if run_id is None:
            return None
        return _Previous(run_id.decode(), int(runs), await load(self._store, run_id.decode(), Wants()))


def _meets(request: StartFlow, picture: Picture) -> FlowStarted | None:
    """What a start answers that finds this run: None when it may go on. Raises Refused."""
    info, status = picture.run.info, picture.run.state.status
    same = request.request_id is not None and request.request_id == info.request_id
    if same and request.ignore_already_started:
        return FlowStarted(info, ALREADY_STARTED)
    if same or not request.id_reuse.allows(status):
        raise Refused(
            "flow_already_started",
            f"Flow {info.flow_id!r} was started before and is {status.value}.",
            status=409,
            flow_id=info.flow_id,
            run_id=info.run_id,
            flow_status=status.value,
        )
    return None
