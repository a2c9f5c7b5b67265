"""What workers say about workflow tasks: complete, fail, heartbeat, further history pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from cluster.errors import ConditionFailed, Refused
from cluster.ids import TaskId, TaskKind, parse_task_id, partition_of_run, partition_of_task
from cluster.paging import page_start, page_token
from cluster.store.transaction import Transaction
from cluster.times import iso_us
from cluster.workflows import guards, machine
from cluster.workflows.changes import Changes
from cluster.workflows.commands import answered_updates, cancels_operations, ends_run, normalise
from cluster.workflows.deciding import Decider, Step
from cluster.workflows.kept_histories import Keeping, keep, lost, page_length
from cluster.workflows.limits import Limits, grows_long
from cluster.workflows.storage import Snapshot, load

log = structlog.get_logger(__name__)


class WorkflowTaskAnswers(Decider):
    """Takes the answers to workflow tasks."""

    _limits: Limits
    _sticky_misses: int

    @property
    def sticky_misses(self) -> int:
        """Hand-outs on this node's watch whose worker had lost the history that it kept."""
        return self._sticky_misses

    async def complete_workflow_task(
        self,
        namespace: str,
        task_id: str,
        owner: str,
        attempt: int,
        commands: list[dict[str, Any]],
        keeping: Keeping | None = None,
    ) -> dict[str, Any]:
        """Apply a worker's commands (server-behaviour 5.5). Raises Refused."""
        task = self._workflow_task(task_id, attempt)
        lengths = (0, 0)

        def decide(snapshot: Snapshot) -> Changes:
            nonlocal lengths
            guards.workflow_task(
                snapshot.run, snapshot.workflow_task, task, namespace, owner, attempt, self.now_ms(snapshot)
            )
            run, lease = snapshot.run, snapshot.workflow_task
            changes = machine.complete_workflow_task(
                run,
                lease,
                normalise(commands, run.info.payload_codec),
                self._clock.now_us(),
                self._limits,
                self._store.keys.partitions,
                None if keeping is None else keep(run, lease, keeping, self.now_ms(snapshot)),
            )
            lengths = (run.state.history_length, changes.state.history_length)
            return changes

        outcome = await self.decide(
            Step(
                task.run_id,
                decide,
                lambda tx, _: self._expect_owned(tx, task_id, owner, attempt),
                fields=answered_updates(commands),
                whole=ends_run(commands) or cancels_operations(commands),
                ends=task_id,
                attempt=attempt,
            )
        )
        if grows_long(self._limits, *lengths):
            limit = self._limits.history_event_count
            log.warning("history_grew_long", run_id=task.run_id, events=lengths[1], limit=limit)
        return outcome

    async def fail_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int, failure: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A worker could not replay or has nothing to do yet (5.6). Raises Refused."""
        task = self._workflow_task(task_id, attempt)

        def decide(snapshot: Snapshot) -> Changes:
            guards.workflow_task(
                snapshot.run, snapshot.workflow_task, task, namespace, owner, attempt, self.now_ms(snapshot)
            )
            return machine.fail_workflow_task(
                snapshot.run, snapshot.workflow_task, failure, self._clock.now_us()
            )

        return await self.decide(
            Step(
                task.run_id,
                decide,
                lambda tx, _: self._expect_owned(tx, task_id, owner, attempt),
                ends=task_id,
                attempt=attempt,
            )
        )

    async def heartbeat_workflow_task(
        self, namespace: str, task_id: str, owner: str, attempt: int
    ) -> dict[str, Any]:
        """Renew the lease of a workflow task (5.4). Raises Refused."""
        task = self._workflow_task(task_id, attempt)
        snapshot = await self._guarded(namespace, task, owner, attempt)
        tx = Transaction(partition_of_task(task), frees=True)
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
        snapshot = await self._guarded(namespace, task, owner, attempt)
        start = page_start(token)
        if start is None:
            raise Refused(
                "invalid_page_token", "The history page token is not valid.", status=400, task_id=task_id
            )
        total = snapshot.run.state.history_length
        self._sticky_misses += lost(snapshot.run, snapshot.workflow_task, start, page_size)
        length = page_length(snapshot.run, snapshot.workflow_task, start, page_size)
        events = await self._events(task.run_id, start, min(start + length, total))
        return {
            "task_id": task_id,
            "workflow_task_attempt": attempt,
            "history_events": events,
            "total_history_events": total,
            "next_history_page_token": page_token(start + len(events), total),
        }

    async def _events(self, run_id: str, start: int, end: int) -> list[bytes]:
        """Events after the first ``start`` up to number ``end``, whatever the history has got since."""
        if start >= end:
            return []
        key = self._store.keys.history(partition_of_run(run_id) or 0, run_id)
        events: list[bytes] = await self._store.call("LRANGE", key, start, end - 1, idempotent=True)
        return events

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
            or partition_of_task(task) >= self._store.keys.partitions
        ):
            raise guards.task_not_found(task_id, attempt)
        return task

    @staticmethod
    def _expect_owned(tx: Transaction, task_id: str, owner: str, attempt: int) -> None:
        tx.expect_task(task_id, "l", attempt, None, owner)
        tx.expect_unlapsed(task_id)
