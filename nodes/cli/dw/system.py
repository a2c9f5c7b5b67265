"""``dw system:...``: upkeep at will, and metrics; all need an administrator's token."""

from __future__ import annotations

from typing import Annotated

from nodes.cli.dw.arguments import option
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode
from nodes.cli.dw.views import Result, document, facts

Runs = Annotated[
    list[str] | None, option("--run-id", "-r", metavar="RUN_ID", text="only these runs; repeatable")
]
ScanLimit = Annotated[int | None, option("--limit", "-l", metavar="N", text="most to look at (100)", min=1)]


def _checked(report: Result) -> Result:
    """A pass that could not do everything fails the command."""
    if report.get("failed") or report.get("existing_task_failures"):
        raise CallFailed("the pass could not do everything", ExitCode.FAILURE, body=report)
    return report


@command(
    "system:repair-status",
    document(),
    json="policy candidates",
    examples=("dw system:repair-status",),
    watch=True,
)
def repair_status(dw: Dw) -> Result:
    """Show how much there is to repair."""
    return dw.get("system", "repair")


@command(
    "system:repair-pass",
    facts(),
    json="selected_total_candidates dispatched_tasks",
    examples=("dw system:repair-pass", "dw system:repair-pass --instance order-1001"),
)
def repair_pass(
    dw: Dw,
    run_id: Runs = None,
    instance: Annotated[
        str | None, option("--instance", metavar="WORKFLOW_ID", text="only this workflow")
    ] = None,
) -> Result:
    """Repair what needs it; exit code 1 when something could not be."""
    body = {"run_ids": run_id or None, "instance_id": instance}
    return _checked(dw.post("system", "repair", "pass", body=body))


@command(
    "system:retention-status",
    facts(),
    json="namespace retention_days cutoff expired_run_count expired_run_ids",
    examples=("dw system:retention-status",),
    watch=True,
)
def retention_status(dw: Dw, limit: ScanLimit = None) -> Result:
    """Show which runs are past their retention."""
    return dw.get("system", "retention", query={"limit": limit})


@command(
    "system:retention-pass",
    facts(),
    json="processed pruned skipped failed results",
    examples=("dw system:retention-pass", "dw system:retention-pass --run-id $RUN"),
)
def retention_pass(dw: Dw, run_id: Runs = None, limit: ScanLimit = None) -> Result:
    """Remove runs past their retention, or the given closed runs; exit code 1 when some could not be."""
    return _checked(dw.post("system", "retention", "pass", body={"run_ids": run_id or None, "limit": limit}))


@command(
    "system:activity-timeout-status",
    facts(),
    json="expired_count expired_execution_ids",
    examples=("dw system:activity-timeout-status",),
    watch=True,
)
def activity_timeout_status(dw: Dw, limit: ScanLimit = None) -> Result:
    """Show which activities have a deadline that has come."""
    return dw.get("system", "activity-timeouts", query={"limit": limit})


@command(
    "system:activity-timeout-pass",
    facts(),
    json="processed enforced skipped failed results",
    examples=("dw system:activity-timeout-pass",),
)
def activity_timeout_pass(dw: Dw, limit: ScanLimit = None) -> Result:
    """Enforce the deadlines that have come; exit code 1 when some could not be."""
    return _checked(dw.post("system", "activity-timeouts", "pass", body={"limit": limit}))


@command(
    "system:metrics",
    document(),
    json="namespace generated_at metrics cardinality",
    examples=("dw system:metrics",),
    watch=True,
)
def metrics(dw: Dw) -> Result:
    """Show the namespace's metrics."""
    return dw.get("system", "metrics")


@command(
    "system:operator-metrics",
    document("operator_metrics"),
    json="namespace operator_metrics",
    examples=("dw system:operator-metrics",),
    watch=True,
)
def operator_metrics(dw: Dw) -> Result:
    """Show counts of runs, tasks and workers."""
    return dw.get("system", "operator-metrics")


@command(
    "system:store",
    facts(),
    json="status durability findings",
    examples=("dw system:store",),
)
def store(dw: Dw) -> Result:
    """Show whether the settings of the Redis server are such that the node can keep its promises."""
    return dw.get("system", "store")
