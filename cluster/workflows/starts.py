"""Starting workflows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cluster.errors import ConditionFailed, Refused, StoreUnavailable
from cluster.ids import draw_workflow_id, new_run_id, partition_of_workflow
from cluster.store.keys import Keys
from cluster.store.transaction import Transaction, TransactionTooLarge
from cluster.workflows import machine
from cluster.workflows.changes import Changes
from cluster.workflows.commands import ScheduleActivity
from cluster.workflows.deadlines import due_in
from cluster.workflows.deciding import ATTEMPTS, Decider
from cluster.workflows.planning import LeaseTimes, plan_begin
from cluster.workflows.records import Payload, Run, RunInfo, RunStatus
from cluster.workflows.storage import load


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
    marker: str = ""
    """The build whose workers alone may take the run's tasks; "" for any."""
    context: Mapping[str, Any] | None = field(default=None, compare=False)
    """Who asks (server-behaviour 2.4); None: the server itself."""
    traceparent: str = field(default="", compare=False)
    """The trace in which it was asked for, as W3C writes it."""


@dataclass(frozen=True, slots=True)
class Started:
    """``outcome`` is ``started_new`` or ``returned_existing_active``."""

    info: RunInfo
    status: RunStatus
    outcome: str


@dataclass(frozen=True, slots=True)
class Birth:
    """A run as its first commit leaves it, and the size of its records in bytes."""

    run: Run
    size: int


def plan_start(tx: Transaction, keys: Keys, info: RunInfo, changes: Changes, leases: LeaseTimes) -> Birth:
    """Add the start of a workflow's first run to ``tx``: instance, records, listing, first task.

    The commit fails (condition ``absent``) when the workflow id is taken.
    """
    tx.expect_absent(keys.workflow(tx.partition, info.workflow_id))
    size = plan_begin(tx, keys, info, changes, leases)
    return Birth(Run(info=info, state=changes.state, version=1), size)


class Starts(Decider):
    """Starts workflow executions."""

    async def start(self, request: StartRequest, *, hosts: ScheduleActivity | None = None) -> Started:
        """Start a workflow in one commit: instance, run, history and first workflow task.

        With ``hosts`` the run only hosts that activity: its task comes instead of a workflow task.
        Raises Refused ``duplicate_not_allowed`` or ``workflow_id_reserved_in_namespace`` (409).
        """
        keys = self._store.keys
        now_us = self._clock.now_us()
        now_ms = now_us // 1000
        workflow_id = request.workflow_id or draw_workflow_id(
            self._random.randrange(keys.partitions), keys.partitions, now_ms, self._random
        )
        partition = partition_of_workflow(workflow_id, keys.partitions)
        info = run_info(request, workflow_id, new_run_id(partition, now_ms, self._random), now_us)
        if hosts is None:
            changes = machine.start(info, now_us, context=request.context)
        else:
            info = msgspec.structs.replace(info, standalone_activity=hosts.activity_type)
            changes = machine.start_host(info, hosts, now_us, request.context)
        tx = self.transaction(partition, info.run_id)
        try:
            birth = plan_start(tx, keys, info, changes, self._leases)
            await self._store.commit(tx)
        except ConditionFailed:
            return await self._existing(request, partition, workflow_id)
        except TransactionTooLarge as error:
            raise Refused("payload_too_large", str(error), status=413) from error
        self._runs.learn_commit(birth.run, birth.size)
        return Started(info, birth.run.state.status, "started_new")

    async def _existing(self, request: StartRequest, partition: int, workflow_id: str) -> Started:
        run_id = await self._current_run(request, partition, workflow_id)
        snapshot = await load(self._store, run_id)
        if request.duplicate_policy == "use-existing":
            for _ in range(ATTEMPTS):
                if snapshot is not None and not snapshot.run.state.status.closed:
                    status = snapshot.run.state.status
                    return Started(snapshot.run.info, status, "returned_existing_active")
                # Between the two reads the run may have been continued by another one.
                latest = await self._current_run(request, partition, workflow_id)
                if latest == run_id:
                    break
                run_id = latest
                snapshot = await load(self._store, run_id)
        raise Refused(
            "duplicate_not_allowed",
            f"Workflow {workflow_id!r} already exists; choose another id or duplicate_policy use-existing.",
            outcome="rejected_duplicate",
            workflow_id=workflow_id,
            run_id=run_id,
            workflow_type=snapshot.run.info.workflow_type if snapshot else request.workflow_type,
        )

    async def _current_run(self, request: StartRequest, partition: int, workflow_id: str) -> str:
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
        current: str = run_id.decode()
        return current


def run_info(request: StartRequest, workflow_id: str, run_id: str, now_us: int) -> RunInfo:
    """The facts of a first run that starts now."""
    execution, run = request.execution_timeout_seconds, request.run_timeout_seconds
    return RunInfo(
        namespace=request.namespace,
        workflow_id=workflow_id,
        run_id=run_id,
        workflow_type=request.workflow_type,
        task_queue=request.task_queue,
        marker=request.marker,
        business_key=request.business_key,
        payload_codec=request.input.codec if request.input else "avro",
        input=request.input,
        memo=request.memo,
        search_attributes=request.search_attributes,
        execution_timeout_seconds=execution,
        run_timeout_seconds=run,
        started_at_us=now_us,
        execution_deadline_ms=None if execution is None else due_in(now_us, execution),
        run_deadline_ms=None if run is None else due_in(now_us, run),
        traceparent=request.traceparent,
    )
