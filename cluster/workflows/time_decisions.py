"""What time does to runs: leases that ran out, timers that are due."""

from __future__ import annotations

from cluster.ids import TaskKind, parse_task_id, partition_of_run
from cluster.store.transaction import Transaction
from cluster.workflows import machine
from cluster.workflows.changes import Changes
from cluster.workflows.deciding import Decider, Step, expect_workflow_task
from cluster.workflows.limits import Limits
from cluster.workflows.storage import Snapshot, item_field


class TimeDecisions(Decider):
    """Decides what is due. Safe to be asked by several nodes at once."""

    _limits: Limits

    async def lease_lapsed(self, task_id: str) -> None:
        """End a lease that ran out: the task becomes ready again, or its retry policy decides."""
        task = parse_task_id(task_id)
        if task is None:
            return
        workflow = task.kind is TaskKind.WORKFLOW

        def decide(snapshot: Snapshot) -> Changes | None:
            lease = snapshot.task
            if lease.state != "l" or lease.expires_at_ms > snapshot.now_ms:
                return None
            if workflow:
                return machine.workflow_task_lapsed(snapshot.run, lease, self._clock.now_us())
            return machine.activity_lapsed(
                snapshot.run, task.index, lease, snapshot.workflow_task, self._clock.now_us()
            )

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            lease = snapshot.task
            tx.expect_task(task_id, "l", lease.attempt, lease.delivery, lease.owner)
            tx.expect_lapsed(task_id)
            if not workflow:
                expect_workflow_task(tx, snapshot)

        fields = () if workflow else (item_field("a", task.index),)
        await self.decide(
            Step(
                task.run_id,
                decide,
                expect,
                task_id=task_id,
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
                case "q":
                    return machine.wait_due(snapshot.run, int(index), snapshot.workflow_task, now_us)
                case "w":
                    return machine.workflow_task_due(snapshot.run, now_us)
                case _:
                    return machine.run_deadline(snapshot.run, snapshot.workflow_task, now_us, self._limits)

        def expect(tx: Transaction, snapshot: Snapshot) -> None:
            tx.expect_due(timer, due_ms)
            tx.disarm(timer)
            if kind == "a":
                task = snapshot.task
                if task.state:
                    tx.expect_task(task_id, task.state, task.attempt, task.delivery)
                else:
                    tx.expect_task_state(task_id, "")
            expect_workflow_task(tx, snapshot)

        fields = (f"{kind}:{index}",) if kind in ("a", "t") else ()
        await self.decide(
            Step(
                run_id,
                decide,
                expect,
                task_id=task_id,
                fields=fields,
                whole=kind == "r",
                orphan=lambda: self._disarm_orphan(timer, run_id),
                moot="due",
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
