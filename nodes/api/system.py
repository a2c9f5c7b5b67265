"""Routes of system maintenance: repair, retention, timeouts of activities (server-behaviour 3.7)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from annotated_types import Ge, MaxLen, MinLen

from cluster.times import iso_seconds
from cluster.upkeep.passes import POLICY, SCAN_LIMIT, Candidates, RepairReport
from cluster.workflows.retention import Pruned, cutoff_ms, show
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, Trimmed
from nodes.api.routes import Reply

PASS_LIMIT: Final = 100
MULTI_STATUS: Final = 207

_Limit = Annotated[Annotated[int, Ge(1)] | None, Integer]
_Id = Annotated[str, MinLen(1), MaxLen(128)]
_Ids = Annotated[Annotated[list[_Id], MaxLen(PASS_LIMIT)] | None, Trimmed]


class _Limited(Fields):
    limit: _Limit = None


class _RepairPass(Fields):
    run_ids: _Ids = None
    instance_id: Annotated[_Id | None, Trimmed] = None


class _TimeoutPass(_Limited):
    execution_ids: _Ids = None


class _RetentionPass(_Limited):
    run_ids: _Ids = None


def _capped(limit: int | None) -> int:
    return min(limit or PASS_LIMIT, PASS_LIMIT)


# -- repair ---------------------------------------------------------------------------------


async def repair_status(call: Call) -> Reply:
    """``GET /api/system/repair``."""
    found = await call.node.passes.repair_candidates(call.namespace)
    return Reply({"policy": POLICY, "candidates": show_candidates(found)})


def show_candidates(found: Candidates) -> dict[str, Any]:
    """Counts of what a repair pass would look at."""
    total = found.existing + len(found.lacking)
    return {
        "existing_task_candidates": found.existing,
        "missing_task_candidates": len(found.lacking),
        "total_candidates": total,
        "scan_limit": SCAN_LIMIT,
        "scan_pressure": total >= SCAN_LIMIT,
        "scopes": [],
    }


async def repair_pass(call: Call) -> Reply:
    """``POST /api/system/repair/pass``."""
    body = call.fields(_RepairPass)
    run_ids = body.run_ids
    if body.instance_id is not None:
        view = await call.node.engine.describe(call.namespace, body.instance_id)
        run_ids = [*(run_ids or ()), view.run.info.run_id]
    report = await call.node.passes.repair(call.namespace, run_ids)
    return Reply(
        _show_repair(report, body.run_ids, body.instance_id), MULTI_STATUS if report.failures else 200
    )


def _show_repair(report: RepairReport, run_ids: list[str] | None, instance_id: str | None) -> dict[str, Any]:
    repaired = report.repaired
    return {
        "connection": None,
        "queue": None,
        "run_ids": run_ids or [],
        "instance_id": instance_id,
        "respect_throttle": False,
        "throttled": False,
        "selected_existing_task_candidates": report.selected_existing,
        "selected_missing_task_candidates": report.selected_missing,
        "selected_total_candidates": report.selected_existing + report.selected_missing,
        "repaired_existing_tasks": repaired.existing,
        "repaired_missing_tasks": repaired.missing,
        "dispatched_tasks": repaired.existing + repaired.missing,
        "existing_task_failures": report.failures,
        "missing_run_failures": [],
        "deadline_expired_candidates": 0,
        "deadline_expired_repaired": 0,
        "deadline_expired_failures": [],
        "activity_timeout_candidates": 0,
        "activity_timeout_enforced": 0,
        "activity_timeout_failures": [],
        "selected_command_contract_candidates": 0,
        "backfilled_command_contracts": 0,
        "command_contract_backfill_unavailable": 0,
        "command_contract_failures": [],
    }


# -- timeouts of activities -------------------------------------------------------------------


async def timeout_status(call: Call) -> Reply:
    """``GET /api/system/activity-timeouts``."""
    limit = _capped(call.query_fields(_Limited).limit)
    found = await call.node.passes.reached_timeouts(call.namespace, limit)
    return Reply(
        {
            "expired_count": len(found),
            "expired_execution_ids": found,
            "scan_limit": limit,
            "scan_pressure": len(found) >= limit,
        }
    )


async def timeout_pass(call: Call) -> Reply:
    """``POST /api/system/activity-timeouts/pass``."""
    body = call.fields(_TimeoutPass)
    ids = body.execution_ids
    if ids is None:
        ids = await call.node.passes.reached_timeouts(call.namespace, _capped(body.limit))
    results = await call.node.passes.time_out(call.namespace, ids)
    outcomes = [result.outcome for result in results]
    failed = outcomes.count("error")
    shown: list[dict[str, Any]] = []
    for result in results:
        entry: dict[str, Any] = {"execution_id": result.execution_id, "outcome": result.outcome}
        if result.outcome == "enforced":
            entry["has_retry"] = result.has_retry
        else:
            entry["reason"] = result.reason
        shown.append(entry)
    return Reply(
        {
            "processed": len(results),
            "enforced": outcomes.count("enforced"),
            "skipped": outcomes.count("skipped"),
            "failed": failed,
            "results": shown,
        },
        MULTI_STATUS if failed else 200,
    )


# -- retention --------------------------------------------------------------------------------


async def retention_cutoff_ms(call: Call) -> tuple[int, int]:
    """Retention days of the request's namespace, and the close time before which runs expired."""
    namespace = await call.node.namespaces.describe(call.namespace)
    return namespace.retention_days, cutoff_ms(call.node.clock.now_ms(), namespace.retention_days)


async def retention_status(call: Call) -> Reply:
    """``GET /api/system/retention``."""
    limit = _capped(call.query_fields(_Limited).limit)
    days, cutoff = await retention_cutoff_ms(call)
    expired = await call.node.retention.expired(call.namespace, cutoff, limit)
    return Reply(
        {
            "namespace": call.namespace,
            "retention_days": days,
            "cutoff": iso_seconds(cutoff),
            "expired_run_count": len(expired),
            "expired_run_ids": expired,
            "scan_limit": limit,
            "scan_pressure": len(expired) >= limit,
        }
    )


async def retention_pass(call: Call) -> Reply:
    """``POST /api/system/retention/pass``: named runs whatever their age, else expired ones."""
    body = call.fields(_RetentionPass)
    run_ids = body.run_ids
    if run_ids is None:
        _, cutoff = await retention_cutoff_ms(call)
        run_ids = await call.node.retention.expired(call.namespace, cutoff, _capped(body.limit))
    results = await call.node.retention.prune(call.namespace, run_ids)
    counts = show(results)
    return Reply(
        {**counts, "results": [_show_pruned(result) for result in results]},
        MULTI_STATUS if counts["failed"] else 200,
    )


def _show_pruned(result: Pruned) -> dict[str, Any]:
    if result.outcome != "pruned":
        return {"run_id": result.run_id, "outcome": result.outcome, "reason": result.reason}
    return {
        "run_id": result.run_id,
        "outcome": "pruned",
        "history_events_deleted": result.events,
        "tasks_deleted": 0,
        "external_payloads_deleted": 0,
        "deleted": {"runs": 1, "instances": result.instances, "history_events": result.events},
    }
