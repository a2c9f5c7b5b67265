"""The workflow engine: load a run, decide, commit; again if somebody else was faster.

Every decision is made by the pure state machine and stored by one conditional commit (the run's
version, the task records it looked at). What this node remembers of a run saves the read, never
a check: a commit or refusal that rests on memory is tried again on what the store holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import orjson

from cluster.clock import Clock
from cluster.errors import ConditionFailed, Refused, StoreUnavailable
from cluster.ids import (
    AttemptId,
    TaskId,
    TaskKind,
    draw_workflow_id,
    new_run_id,
    parse_attempt_id,
    parse_task_id,
    partition_of_run,
    partition_of_workflow,
)
from cluster.paging import page_start, page_token
from cluster.store.store import Store
from cluster.store.transaction import Transaction, TransactionTooLarge
from cluster.times import iso_us
from cluster.workflows import guards, machine
from cluster.workflows.changes import Changes
from cluster.workflows.commands import ends_run, normalise
from cluster.workflows.deadlines import activity_lease_ms, next_due_ms
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes, plan, timer_name
from cluster.workflows.records import Payload, Run, RunInfo, RunState, RunStatus
from cluster.workflows.storage import RunCache, Snapshot, changed_run, encode_record, item_field, load
from cluster.workflows.visibility import Visibility

ATTEMPTS: Final = 20
"""How often a decision is made anew because somebody else changed the run meanwhile."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A validated start. ``workflow_id`` None: the server makes one."""

    namespace: str
    workflow_type: str
    task_queue: str
    workflow_id: str | None = None
    input: Payload | None = None
    business_key: str | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    duplicate_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """``outcome`` is ``started_new`` or ``returned_existing_active``."""

    info: RunInfo
    status: RunStatus
    outcome: str


@dataclass(frozen=True, slots=True)
class _Step:
    """One decision about one run.

    ``decide`` gets what was read and answers with changes, or None when there is nothing to do.
    ``expect`` adds the conditions that go beyond the run's version.
    """

    run_id: str
    decide: Callable[[Snapshot], Changes | None]
    expect: Callable[[Transaction, Snapshot], None]
    task_id: str = ""
    fields: tuple[str, ...] = ()
    whole: bool = False
    ends: str = ""
    orphan: Callable[[], Awaitable[object]] | None = None
    """What to do when the run is gone; None: refuse."""


class Engine(Visibility):
    """Runs workflow executions over a store. One per node; stateless but for its memory."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runs: RunCache,
        *,
        leases: LeaseTimes,
        limits: Limits,
        random: Random,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._runs = runs
        self._leases = leases
        self._limits = limits
        self._random = random

    # -- start ------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> Started:
        """Start a workflow in one commit: instance, run, history and first workflow task.

        Raises Refused ``duplicate_not_allowed`` or ``workflow_id_reserved_in_namespace`` (409).
        """
        keys = self._store.keys
        now_us = self._clock.now_us()
        now_ms = now_us // 1000
        workflow_id = request.workflow_id or draw_workflow_id(
            self._random.randrange(keys.partitions), keys.partitions, now_ms, self._random
        )
        partition = partition_of_workflow(workflow_id, keys.partitions)
        info = _run_info(request, workflow_id, new_run_id(partition, now_ms, self._random), now_us)
        changes = machine.start(info, now_us)
        run = Run(info=info, state=RunState(), version=0)
        run_key = keys.run(partition, info.run_id)
        tx = self._transaction(partition, info.run_id)
        tx.expect_absent(keys.workflow(partition, workflow_id))
        tx.hset(keys.workflow(partition, workflow_id), {"ns": info.namespace, "run": info.run_id, "runs": 1})
        tx.hset(
            run_key,
            {
                "i": encode_record(info),
                "wid": workflow_id,
                "type": info.workflow_type,
                "bk": info.business_key or "",
            },
        )
        tx.redis("ZADD", keys.runs(partition, info.namespace), now_ms, info.run_id)
        try:
            size = plan(tx, keys, run, changes, self._leases)
            await self._store.commit(tx)
        except ConditionFailed:
            return await self._existing(request, partition, workflow_id)
        except TransactionTooLarge as error:
            raise Refused("payload_too_large", str(error), status=413) from error
        self._runs.learn_commit(changed_run(run, changes.state, changes.activities, changes.timers), size)
        return Started(info, changes.state.status, "started_new")

    async def _existing(self, request: StartRequest, partition: int, workflow_id: str) -> Started:
        namespace, run_id = await self._store.call(
            "HMGET", self._store.keys.workflow(partition, workflow_id), "ns", "run", idempotent=True
        )
        if namespace is None:
            raise StoreUnavailable("the workflow was removed while it was started; try again")
        if namespace.decode() != request.namespace:
            raise Refused(
                "workflow_id_reserved_in_namespace",
                f"Workflow id {workflow_id!r} is already used in another namespace.",
                workflow_id=workflow_id,
            )
        snapshot = await load(self._store, run_id.decode())
        if snapshot is not None and request.duplicate_policy == "use-existing":
            status = snapshot.run.state.status
            if not status.closed:
                return Started(snapshot.run.info, status, "returned_existing_active")
        raise Refused(
            "duplicate_not_allowed",
            f"Workflow {workflow_id!r} already exists; choose another workflow_id or duplicate_policy use-existing.",
            outcome="rejected_duplicate",
            workflow_id=workflow_id,
            run_id=run_id.decode(),
            workflow_type=snapshot.run.info.workflow_type if snapshot else request.workflow_type,
        )

    # -- workflow tasks ---------------------------------------------------------------------

    async def complete_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int, commands: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Apply a worker's commands (server-behaviour 5.5). Raises Refused."""
        task = self._workflow_task(task_id, attempt)

        def decide(snapshot: Snapshot) -> Changes:
            guards.workflow_task(
                snapshot.run, snapshot.workflow_task, task, namespace, owner, attempt, self._now(snapshot)
            )
            return machine.complete_workflow_task(
                snapshot.run,
                snapshot.workflow_task,
                normalise(commands, snapshot.run.info.payload_codec),
                self._clock.now_us(),
                self._limits,
            )

        return await self._transact(
            _Step(
                task.run_id,
                decide,
                lambda tx, _: self._expect_owned(tx, task_id, owner, attempt),
                whole=ends_run(commands),
                ends=task_id,
            )
        )

    async def fail_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int, failure: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A worker could not replay or has nothing to do yet (5.6). Raises Refused."""
        task = self._workflow_task(task_id, attempt)

        def decide(snapshot: Snapshot) -> Changes:
            guards.workflow_task(
                snapshot.run, snapshot.workflow_task, task, namespace, owner, attempt, self._now(snapshot)
            )
            return machine.fail_workflow_task(
                snapshot.run, snapshot.workflow_task, failure, self._clock.now_us()
            )

        return await self._transact(
            _Step(
                task.run_id,
                decide,
                lambda tx, _: self._expect_owned(tx, task_id, owner, attempt),
                ends=task_id,
            )
        )

    async def heartbeat_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int
    ) -> dict[str, Any]:
        """Renew the lease of a workflow task (5.4). Raises Refused."""
        task = self._workflow_task(task_id, attempt)
        snapshot = await self._guarded(namespace, task, owner, attempt)
        tx = Transaction(_partition(task), frees=True)
        self._expect_owned(tx, task_id, owner, attempt)
        tx.extend(task_id, self._leases.workflow_ms)
        try:
            await self._store.commit(tx)
        except ConditionFailed:
            await self._guarded(namespace, task, owner, attempt)
            raise
        return {
            "task_id": task_id,
            "workflow_task_attempt": attempt,
            "lease_owner": owner,
            "renewed": True,
            "lease_expires_at": iso_us((self._clock.now_ms() + self._leases.workflow_ms) * 1000),
            "run_status": str(snapshot.run.state.status),
            "task_status": "leased",
            "reason": None,
        }

    async def workflow_task_history(
        self, namespace: str, task_id: str, owner: str, attempt: int, *, page_size: int, token: str
    ) -> dict[str, Any]:
        """A further page of the frozen history of a leased task. Raises Refused."""
        task = self._workflow_task(task_id, attempt)
        await self._guarded(namespace, task, owner, attempt)
        start = page_start(token)
        if start is None:
            raise Refused(
                "invalid_page_token", "The history page token is not valid.", status=400, task_id=task_id
            )
        events, total = await self._events(task.run_id, start, page_size)
        return {
            "task_id": task_id,
            "workflow_task_attempt": attempt,
            "history_events": events,
            "total_history_events": total,
            "next_history_page_token": page_token(start + len(events), total),
        }

    async def _events(self, run_id: str, start: int, count: int) -> tuple[list[bytes], int]:
        key = self._store.keys.history(partition_of_run(run_id) or 0, run_id)
        events: list[bytes] = await self._store.call("LRANGE", key, start, start + count - 1, idempotent=True)
        total: int = await self._store.call("LLEN", key, idempotent=True)
        return events, total

    async def _guarded(self, namespace: str, task: TaskId, owner: str, attempt: int) -> Snapshot:
        snapshot = await load(self._store, task.run_id)
        if snapshot is None:
            raise guards.task_not_found(str(task), attempt)
        guards.workflow_task(
            snapshot.run, snapshot.workflow_task, task, namespace, owner, attempt, snapshot.now_ms
        )
        return snapshot

    def _workflow_task(self, task_id: str, attempt: int) -> TaskId:
        task = parse_task_id(task_id)
        if (
            task is None
            or task.kind is not TaskKind.WORKFLOW
            or _partition(task) >= self._store.keys.partitions
        ):
            raise guards.task_not_found(task_id, attempt)
        return task

    @staticmethod
    def _expect_owned(tx: Transaction, task_id: str, owner: str, attempt: int) -> None:
        tx.expect_task(task_id, "l", attempt, None, owner)
        tx.expect_unlapsed(task_id)

    # -- activity tasks ---------------------------------------------------------------------

    async def complete_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, result: Payload | None
    ) -> dict[str, Any]:
        """Record the result of an activity attempt (5.8). Raises Refused."""
        return await self._end_activity(
            namespace,
            task_id,
            attempt_id,
            owner,
            lambda snapshot, step: machine.complete_activity(
                snapshot.run, step, snapshot.task, snapshot.workflow_task, result, self._clock.now_us()
            ),
        )

    async def fail_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, failure: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Record that an activity attempt failed; the retry policy decides (5.8). Raises Refused."""
        return await self._end_activity(
            namespace,
            task_id,
            attempt_id,
            owner,
            lambda snapshot, step: machine.fail_activity(
                snapshot.run, step, snapshot.task, snapshot.workflow_task, failure, self._clock.now_us()
            ),
        )

    async def _end_activity(
        self,
        namespace: str,
        task_id: str,
        attempt_id: str,
        owner: str,
        decide: Callable[[Snapshot, int], Changes],
    ) -> dict[str, Any]:
        task, attempt = self._activity_task(task_id, attempt_id)

        def guarded(snapshot: Snapshot) -> Changes:
            guards.activity_task(snapshot.run, snapshot.task, task, attempt, namespace, owner)
            return decide(snapshot, task.index)

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            if task.index in snapshot.run.state.activities:
                tx.expect_task(task_id, "l", attempt.attempt, attempt.delivery, owner)
                _expect_workflow_task(tx, snapshot)

        return await self._transact(
            _Step(
                task.run_id,
                guarded,
                expect,
                task_id=task_id,
                fields=(item_field("a", task.index),),
                ends=task_id,
            )
        )

    async def heartbeat_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, progress: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Renew an attempt's lease and heartbeat deadline; says whether to carry on (5.8)."""
        task, attempt = self._activity_task(task_id, attempt_id)
        for _ in range(ATTEMPTS):
            snapshot = await load(
                self._store, task.run_id, task_id=task_id, fields=(item_field("a", task.index),)
            )
            if snapshot is None:
                raise guards.attempt_not_found(task_id, attempt_id)
            verdict = guards.activity_heartbeat(snapshot.run, snapshot.task, task, attempt, namespace, owner)
            activity = snapshot.run.activities.get(task.index)
            if not verdict["can_continue"] or activity is None:
                return verdict
            lease_ms = activity_lease_ms(activity, self._leases.activity_ms)
            tx = Transaction(_partition(task), frees=True)
            tx.expect_task(task_id, "l", attempt.attempt, attempt.delivery, owner)
            tx.extend(task_id, lease_ms)
            if progress:
                key = self._store.keys.task(tx.partition, task_id)
                tx.hset(key, {"pg": orjson.dumps(dict(progress))})
            renewed = guards.renewed(snapshot.task, snapshot.now_ms)
            due_ms = next_due_ms(activity, renewed)
            if due_ms is not None:
                tx.arm(timer_name(task.run_id, f"a{task.index}"), due_ms)
            try:
                await self._store.commit(tx)
            except ConditionFailed:
                continue
            return verdict | {
                "heartbeat_recorded": True,
                "lease_expires_at": iso_us((snapshot.now_ms + lease_ms) * 1000),
                "last_heartbeat_at": iso_us(snapshot.now_ms * 1000),
            }
        raise _contended(task.run_id)

    def _activity_task(self, task_id: str, attempt_id: str) -> tuple[TaskId, AttemptId]:
        task = parse_task_id(task_id)
        if (
            task is None
            or task.kind is not TaskKind.ACTIVITY
            or _partition(task) >= self._store.keys.partitions
        ):
            raise guards.task_not_found(task_id, attempt_id)
        attempt = parse_attempt_id(attempt_id)
        if attempt is None:
            raise guards.attempt_not_found(task_id, attempt_id)
        return task, attempt

    # -- time -------------------------------------------------------------------------------

    async def lease_lapsed(self, task_id: str) -> None:
        """End a lease that ran out: the task becomes ready again, or its retry policy decides."""
        task = parse_task_id(task_id)
        if task is None:
            return
        workflow = task.kind is TaskKind.WORKFLOW

        def decide(snapshot: Snapshot) -> Changes | None:
            lease = snapshot.workflow_task if workflow else snapshot.task
            if lease.task_id != task_id or lease.state != "l" or lease.expires_at_ms > snapshot.now_ms:
                return None
            if workflow:
                return machine.workflow_task_lapsed(snapshot.run, lease, self._clock.now_us())
            return machine.activity_lapsed(
                snapshot.run, task.index, lease, snapshot.workflow_task, self._clock.now_us()
            )

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            lease = snapshot.workflow_task if workflow else snapshot.task
            tx.expect_task(task_id, "l", lease.attempt, lease.delivery, lease.owner)
            tx.expect_lapsed(task_id)
            if not workflow:
                _expect_workflow_task(tx, snapshot)

        fields = () if workflow else (item_field("a", task.index),)
        await self._transact(
            _Step(
                task.run_id,
                decide,
                expect,
                task_id="" if workflow else task_id,
                fields=fields,
                ends=task_id,
                orphan=lambda: self._drop_orphan(task_id, task.run_id),
            ),
            fresh=True,
        )

    async def timer_due(self, timer: str, due_ms: int) -> None:
        """Do what an entry of the timers stands for, if it is still there and due."""
        run_id, _, name = timer.partition(" ")
        kind, index = name[:1], name[1:]
        task_id = f"{run_id}-{name}" if kind == "a" else ""

        def decide(snapshot: Snapshot) -> Changes | None:
            now_us = max(self._clock.now_us(), snapshot.now_ms * 1000)
            match kind:
                case "t":
                    return machine.timer_due(snapshot.run, int(index), snapshot.workflow_task, now_us)
                case "a":
                    return machine.activity_deadline(
                        snapshot.run, int(index), snapshot.task, snapshot.workflow_task, now_us
                    )
                case "w":
                    return machine.workflow_task_due(snapshot.run, now_us)
                case _:
                    return machine.run_deadline(snapshot.run, snapshot.workflow_task, now_us)

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            tx.expect_due(timer, due_ms)
            tx.disarm(timer)
            if kind == "a":
                task = snapshot.task
                if task.state:
                    tx.expect_task(task_id, task.state, task.attempt, task.delivery)
                else:
                    tx.expect_task_state(task_id, "")
            _expect_workflow_task(tx, snapshot)

        fields = (f"{kind}:{index}",) if kind in ("a", "t") else ()
        await self._transact(
            _Step(
                run_id,
                decide,
                expect,
                task_id=task_id,
                fields=fields,
                whole=kind == "r",
                orphan=lambda: self._disarm_orphan(timer, run_id),
            ),
            fresh=True,
        )

    async def _drop_orphan(self, task_id: str, run_id: str) -> None:
        tx = Transaction(partition_of_run(run_id) or 0, frees=True)
        tx.drop(task_id)
        await self._store.commit(tx)

    async def _disarm_orphan(self, timer: str, run_id: str) -> None:
        tx = Transaction(partition_of_run(run_id) or 0, frees=True)
        tx.disarm(timer)
        await self._store.commit(tx)

    # -- the loop ---------------------------------------------------------------------------

    async def _transact(self, step: _Step, *, fresh: bool = False) -> dict[str, Any]:
        remembered = not fresh
        for _ in range(ATTEMPTS):
            snapshot = None
            if remembered:
                snapshot = self._runs.guess(
                    step.run_id, task_id=step.task_id, fields=step.fields, whole=step.whole
                )
            if snapshot is None:
                remembered = False
                snapshot = await load(
                    self._store, step.run_id, task_id=step.task_id, fields=step.fields, whole=step.whole
                )
            if snapshot is None:
                if step.orphan is None:
                    raise guards.task_not_found(step.ends)
                await step.orphan()
                return {}
            try:
                changes = await self._decide_and_commit(step, snapshot)
            except ConditionFailed:
                self._runs.forget(step.run_id, step.task_id)
            except Refused:
                if not snapshot.cached:
                    raise
            else:
                if changes is None:
                    return {}
                if changes.refusal is not None:
                    raise changes.refusal
                return dict(changes.outcome)
            remembered = False
        raise _contended(step.run_id)

    async def _decide_and_commit(self, step: _Step, snapshot: Snapshot) -> Changes | None:
        changes = step.decide(snapshot)
        if changes is None:
            return None
        run = snapshot.run
        partition = partition_of_run(step.run_id) or 0
        tx = self._transaction(partition, step.run_id)
        tx.expect_equal(self._store.keys.run(partition, step.run_id), "v", run.version)
        step.expect(tx, snapshot)
        try:
            size = plan(tx, self._store.keys, run, changes, self._leases)
            await self._store.commit(tx)
        except TransactionTooLarge as error:
            raise Refused("payload_too_large", str(error), status=422) from error
        self._runs.forget_lease(step.ends)
        self._runs.learn_commit(changed_run(run, changes.state, changes.activities, changes.timers), size)
        return changes

    def _transaction(self, partition: int, run_id: str) -> Transaction:
        request_id = f"{self._random.getrandbits(64):016x}"
        return Transaction(partition, ring=self._store.keys.run(partition, run_id), request_id=request_id)

    def _now(self, snapshot: Snapshot) -> int:
        return snapshot.now_ms or self._clock.now_ms()


def _run_info(request: StartRequest, workflow_id: str, run_id: str, now_us: int) -> RunInfo:
    now_ms = now_us // 1000
    return RunInfo(
        namespace=request.namespace,
        workflow_id=workflow_id,
        run_id=run_id,
        workflow_type=request.workflow_type,
        task_queue=request.task_queue,
        business_key=request.business_key,
        payload_codec=request.input.codec if request.input else "avro",
        input=request.input,
        memo=request.memo,
        search_attributes=request.search_attributes,
        execution_timeout_seconds=request.execution_timeout_seconds,
        run_timeout_seconds=request.run_timeout_seconds,
        started_at_us=now_us,
        execution_deadline_ms=_deadline(now_ms, request.execution_timeout_seconds),
        run_deadline_ms=_deadline(now_ms, request.run_timeout_seconds),
    )


def _deadline(now_ms: int, seconds: int | None) -> int | None:
    return None if seconds is None else now_ms + seconds * 1000


def _partition(task: TaskId) -> int:
    partition = partition_of_run(task.run_id)
    return 1 << 30 if partition is None else partition


def _expect_workflow_task(tx: Transaction, snapshot: Snapshot) -> None:
    """What was decided depends on whether the workflow task is leased: rule 4.8.2."""
    state = snapshot.run.state
    if state.task_open and not state.task_waiting:
        tx.expect_task_state(snapshot.workflow_task.task_id, snapshot.workflow_task.state)


def _contended(run_id: str) -> StoreUnavailable:
    return StoreUnavailable(f"run {run_id} changes faster than this node can decide; try again")
