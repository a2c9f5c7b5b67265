"""Ending the previous run of a schedule in the commit that starts the next one."""

from __future__ import annotations

from typing import Final

from cluster.schedules.records import Overlap
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.workflows import machine
from cluster.workflows.changes import Changes
from cluster.workflows.client_commands import ClientCommand, CommandKind
from cluster.workflows.deciding import expect_workflow_task
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes, plan
from cluster.workflows.storage import load

_COMMANDS: Final = {
    Overlap.CANCEL_OTHER: CommandKind.CANCEL,
    Overlap.TERMINATE_OTHER: CommandKind.TERMINATE,
}
_REASON: Final = "Its schedule fired again."


async def plan_end(
    tx: Transaction, store: Store, leases: LeaseTimes, run_id: str, how: Overlap, now_us: int
) -> None:
    """Add to ``tx`` the end of a run, if it is still open, and that it has not changed meanwhile."""
    snapshot = await load(store, run_id, whole=True)
    if snapshot is None or snapshot.run.state.status.closed:
        return
    run = snapshot.run
    command = ClientCommand(_COMMANDS[how], reason=_REASON)
    changes = machine.client_command(run, command, None, snapshot.workflow_task, now_us, Limits())
    if isinstance(changes, Changes):
        tx.expect_equal(store.keys.run(tx.partition, run_id), "v", run.version)
        expect_workflow_task(tx, snapshot)
        plan(tx, store.keys, run, changes, leases)
