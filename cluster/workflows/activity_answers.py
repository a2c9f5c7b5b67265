"""What workers say about activity attempts: complete, fail, heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from cluster.errors import ConditionFailed, Refused
from cluster.ids import AttemptId, TaskId, TaskKind, parse_attempt_id, parse_task_id, partition_of_task
from cluster.store.transaction import Transaction
from cluster.times import iso_us
from cluster.worker_sessions import WorkerSessions
from cluster.workflows import guards, machine
from cluster.workflows.changes import Changes
from cluster.workflows.deadlines import activity_lease_ms, next_due_ms
from cluster.workflows.deciding import ATTEMPTS, Decider, Step, contended, expect_workflow_task
from cluster.workflows.planning import timer_name
from cluster.workflows.records import ActivityState, Payload
from cluster.workflows.storage import Snapshot, item_field, load


class ActivityAnswers(Decider):
    """Takes the answers to activity tasks."""

    _sessions: WorkerSessions

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
        ended: ActivityState | None = None

        def guarded(snapshot: Snapshot) -> Changes:
            nonlocal ended
            guards.activity_task(snapshot.run, snapshot.task, task, attempt, namespace, owner)
            ended = snapshot.run.activities.get(task.index)
            return decide(snapshot, task.index)

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            if task.index in snapshot.run.state.activities:
                tx.expect_task(task_id, "l", attempt.attempt, attempt.delivery, owner)
                expect_workflow_task(tx, snapshot)

        outcome = await self.decide(
            Step(
                task.run_id,
                guarded,
                expect,
                task_id=task_id,
                fields=(item_field("a", task.index),),
                ends=task_id,
                attempt=str(attempt),
            )
        )
        if ended is not None and ended.worker_session is not None:
            session_id = ended.worker_session["session_id"]
            partition = partition_of_task(task)
            await self._sessions.left(namespace, ended.task_queue, session_id, owner, task_id, partition)
        return outcome

    async def heartbeat_activity(
        self, namespace: str, task_id: str, attempt_id: str, owner: str, progress: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Renew an attempt's lease and heartbeat deadline; says whether to carry on (5.8)."""
        try:
            task, attempt = self._activity_task(task_id, attempt_id)
        except Refused:
            # Heartbeats know one answer to what never was.
            raise guards.attempt_not_found(task_id, attempt_id) from None
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
            tx = Transaction(partition_of_task(task), frees=True)
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
            if activity.worker_session is not None:
                session_id, until_ms = activity.worker_session["session_id"], snapshot.now_ms + lease_ms
                await self._sessions.prolong(namespace, session_id, owner, task_id, until_ms)
            return verdict | {
                "heartbeat_recorded": True,
                "lease_expires_at": iso_us((snapshot.now_ms + lease_ms) * 1000),
                "last_heartbeat_at": iso_us(snapshot.now_ms * 1000),
            }
        raise contended(task.run_id)

    def _activity_task(self, task_id: str, attempt_id: str) -> tuple[TaskId, AttemptId]:
        task = parse_task_id(task_id)
        if (
            task is None
            or task.kind is not TaskKind.ACTIVITY
            or partition_of_task(task) >= self._store.keys.partitions
        ):
            raise guards.task_not_found(task_id, attempt_id)
        attempt = parse_attempt_id(attempt_id)
        if attempt is None:
            raise guards.attempt_not_found(task_id, attempt_id)
        return task, attempt
