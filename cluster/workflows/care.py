"""What operators do to single runs: repair, archive, and time out an activity at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cluster.errors import Refused
from cluster.ids import TaskKind, parse_task_id, partition_of_run
from cluster.store.transaction import Transaction
from cluster.workflows import deadlines, machine, repairing
from cluster.workflows.changes import Changes
from cluster.workflows.deciding import Step, expect_workflow_task
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.planning import timer_name
from cluster.workflows.records import Run
from cluster.workflows.repairing import Findings, TaskFinding
from cluster.workflows.storage import Snapshot, item_field, load
from cluster.workflows.time_decisions import TimeDecisions

INSPECT_CHUNK: Final = 100
"""Open items looked at per script (H6)."""
REPAIR_ROUNDS: Final = 5
RELEASE_LIMIT: Final = 1_000
"""Leases of a queue and partition among which those of a leaving worker are looked for (H6)."""
DEREGISTERED: Final = "worker_deregistered"


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many existing tasks were put right and how many missing ones were brought back."""

    existing: int = 0
    missing: int = 0

    def __add__(self, other: Repaired) -> Repaired:
        return Repaired(self.existing + other.existing, self.missing + other.missing)

    def __bool__(self) -> bool:
        return self.existing + self.missing > 0


@dataclass(frozen=True, slots=True)
class TimeoutResult:
    """What became of one activity: ``outcome`` is enforced or skipped (with a reason)."""

    execution_id: str
    outcome: str
    reason: str | None = None
    has_retry: bool = False


class RunCare(TimeDecisions):
    """Looks after single runs. Everything is safe to repeat and to do on several nodes at once."""

    async def repair(
        self,
        namespace: str,
        run_id: str,
        command_id: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Repaired:
        """Look at one open run again, and put right what is not as it should be.

        Leases that ran out end, timers that are due fire, missing tasks and timers come back, and a
        failing workflow task is ready now. Nothing for runs of other namespaces and closed ones.
        """
        done = Repaired()
        for _ in range(REPAIR_ROUNDS):
            found = await self.inspect(namespace, run_id)
            if found is None:
                return done
            run, findings = found
            for task_id in findings.lapsed():
                await self.lease_lapsed(task_id)
                done += Repaired(existing=1)
            for name, due in findings.due().items():
                await self.timer_due(timer_name(run_id, name), due)
                done += Repaired(existing=1)
            if findings.lapsed() or findings.due():
                continue
            if not repairing.lacks(run, findings):
                return done
            done += await self._mend(run, findings, command_id, context)
        return done

    async def inspect(self, namespace: str, run_id: str) -> tuple[Run, Findings] | None:
        """An open run and what the store has for it; None for any other."""
        snapshot = await load(self._store, run_id, whole=True)
        if snapshot is None or snapshot.run.state.status.closed or snapshot.run.info.namespace != namespace:
            return None
        run = snapshot.run
        tasks, timers = repairing.expected_tasks(run), sorted(repairing.expected_timers(run))
        keys, partition = self._store.keys, partition_of_run(run_id) or 0
        task_findings: dict[str, TaskFinding] = {}
        timer_findings: dict[str, int | None] = {}
        now_ms = snapshot.now_ms
        for start in range(0, max(len(tasks), len(timers), 1), INSPECT_CHUNK):
            some_tasks = tasks[start : start + INSPECT_CHUNK]
            some_timers = timers[start : start + INSPECT_CHUNK]
            members = [timer_name(run_id, name) for name in some_timers]
            now, rows, due = await self._store.run(
                "inspect",
                [keys.touch(partition)],
                [keys.base(partition), len(some_tasks), *some_tasks, *members],
                idempotent=True,
            )
            now_ms = int(now)
            for index, task_id in enumerate(some_tasks):
                state, expires = rows[2 * index : 2 * index + 2]
                task_findings[task_id] = TaskFinding(state.decode(), int(expires or 0))
            for name, raw in zip(some_timers, due, strict=True):
                timer_findings[name] = int(raw) if raw else None
        return run, Findings(now_ms, task_findings, timer_findings)

    async def archive(
        self, run_id: str, reason: str | None, command_id: str, context: Mapping[str, Any] | None = None
    ) -> str:
        """Keep a closed run for good; returns ``archived`` or ``archive_not_needed``.

        Raises Refused (409 run_not_closed).
        """

        def decide(snapshot: Snapshot) -> Changes | None:
            run = snapshot.run
            if not run.state.status.closed:
                raise Refused("run_not_closed", "The run is still open.", run_id=run_id)
            if snapshot.archived:
                return None
            decision = Decision(run, self._clock.now_us())
            said = {"reason": reason, "workflow_command_id": command_id}
            decision.record(EventType.WORKFLOW_ARCHIVED, said, workflow_command_id=command_id)
            decision.log_command(command_id, "archive", context, outcome="archived")
            return decision.changes({"outcome": "archived"})

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            keys, info = self._store.keys, snapshot.run.info
            tx.hset(keys.run(tx.partition, run_id), {"arch": "1"})
            closed_ms = (snapshot.run.state.closed_at_us or 0) // 1000
            tx.redis("ZREM", keys.closed(tx.partition, info.namespace), run_id)
            tx.redis("ZADD", keys.archived(tx.partition, info.namespace), closed_ms, run_id)

        async def gone() -> None:
            raise Refused("run_not_found", "The run was removed.", status=404, run_id=run_id)

        outcome = await self.decide(Step(run_id, decide, expect, orphan=gone), fresh=True)
        return str(outcome.get("outcome", "archive_not_needed"))

    async def release_workflow_tasks(self, namespace: str, queue: str, owner: str) -> int:
        """Make the workflow tasks leased to a worker ready again, because it is gone; returns how many.

        Where this node fails on the way, their leases run out.
        """
        keys, released = self._store.keys, 0
        for partition in range(keys.partitions):
            owned = await self._store.run(
                "owned",
                [keys.queue_leases(partition, TaskKind.WORKFLOW, namespace, queue)],
                [keys.base(partition), owner, RELEASE_LIMIT],
                idempotent=True,
            )
            for task_id in owned:
                released += await self._release(task_id.decode(), owner)
        return released

    async def _release(self, task_id: str, owner: str) -> int:
        def decide(snapshot: Snapshot) -> Changes | None:
            lease = snapshot.task
            if lease.state != "l" or lease.owner != owner:
                return None
            now_us = self._clock.now_us()
            changes = machine.workflow_task_lapsed(snapshot.run, lease, now_us, DEREGISTERED)
            changes.outcome["released"] = 1
            return changes

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            lease = snapshot.task
            tx.expect_task(task_id, "l", lease.attempt, lease.delivery, owner)

        run_id = task_id.rpartition("-")[0]
        step = Step(run_id, decide, expect, task_id=task_id, ends=task_id, orphan=_nothing)
        outcome = await self.decide(step, fresh=True)
        return int(outcome.get("released", 0))

    async def time_out_activity(self, namespace: str, execution_id: str) -> TimeoutResult:
        """Enforce a deadline of an activity that was reached (server-behaviour 5.10, 8.7)."""
        reason = await self.timeout_obstacle(namespace, execution_id)
        if reason is not None:
            return TimeoutResult(execution_id, "skipped", reason)
        run_id, _, name = execution_id.rpartition("-")
        timer, partition = timer_name(run_id, name), partition_of_run(run_id) or 0
        due = await self._store.call("ZSCORE", self._store.keys.timers(partition), timer, idempotent=True)
        if due is not None:
            await self.timer_due(timer, int(float(due)))
        after = await load(self._store, run_id)
        retries = after is not None and int(name[1:]) in after.run.state.activities
        return TimeoutResult(execution_id, "enforced", has_retry=retries)

    async def timeout_obstacle(self, namespace: str, execution_id: str) -> str | None:
        """Why no timeout of an activity can be enforced now, as a reason; None when one can."""
        task = parse_task_id(execution_id)
        snapshot = None
        if task is not None and task.kind is TaskKind.ACTIVITY:
            fields = (item_field("a", task.index),)
            snapshot = await load(self._store, task.run_id, task_id=execution_id, fields=fields)
        if task is None or snapshot is None or snapshot.run.info.namespace != namespace:
            return "execution_not_found"
        state, activity = snapshot.run.state, snapshot.run.activities.get(task.index)
        if task.index >= state.next_step:
            return "execution_not_found"
        if state.status.closed:
            return "run_already_terminal"
        if activity is None:
            return "execution_already_terminal"
        if deadlines.reached(activity, snapshot.task, snapshot.now_ms) is None:
            return "no_deadline_expired"
        return None

    async def _mend(
        self, run: Run, findings: Findings, command_id: str | None, context: Mapping[str, Any] | None
    ) -> Repaired:
        run_id = run.info.run_id
        missing = repairing.missing_tasks(run, findings)

        def decide(snapshot: Snapshot) -> Changes | None:
            if snapshot.run.version != run.version:
                return None
            now_us = self._clock.now_us()
            return repairing.mend(snapshot.run, findings, snapshot.workflow_task, now_us, command_id, context)

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            for task_id in missing:
                tx.expect_task_state(task_id, "")
            expect_workflow_task(tx, snapshot)

        step = Step(run_id, decide, expect, whole=True, moot="state", orphan=_nothing)
        outcome = await self.decide(step, fresh=True)
        return Repaired(int(outcome.get("existing", 0)), int(outcome.get("missing", 0)))


async def _nothing() -> None:
    """The run was removed meanwhile."""
