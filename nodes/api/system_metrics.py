"""Routes of system metrics: what operators watch, as far as this server counts it (server-behaviour 11.1).

Every label set is bounded: the namespace is that of the request and never a label, workflow types
are capped, tables are a fixed list.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from cluster.times import iso_us
from nodes.api.call import Call
from nodes.api.routes import Reply

FAILURES: Final = "dw_workflow_task_consecutive_failures"
DRIFT: Final = "dw_projection_drift_total"
_TABLES: Final = (
    "run_summaries",
    "run_waits",
    "run_timeline_entries",
    "run_timer_entries",
    "run_lineage_entries",
)


async def metrics(call: Call) -> Reply:
    """``GET /api/system/metrics``."""
    limit = call.node.settings.metrics_workflow_task_failure_type_limit
    type_policy = {
        "cardinality_class": "bounded",
        "limit": limit,
        "selection": "top_by_max_consecutive_failures_then_name",
    }
    namespace_policy = "request_scoped_not_a_label"
    return Reply(
        {
            "generated_at": iso_us(call.node.clock.now_us()),
            "namespace": call.namespace,
            "metrics": {
                FAILURES: {**await _failures(call, limit), "label_cardinality_policy": type_policy},
                DRIFT: _drift(),
            },
            "cardinality": {
                "metric_label_sets": {
                    FAILURES: {"namespace": namespace_policy, "workflow_type": type_policy},
                    DRIFT: {"table": "fixed_list"},
                }
            },
        }
    )


async def _failures(call: Call, limit: int) -> dict[str, Any]:
    worst: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for workflow_type, failures in await call.node.census.failing(call.namespace):
        worst[workflow_type] = max(worst[workflow_type], failures)
        count[workflow_type] += 1
    ranked = sorted(worst, key=lambda name: (-worst[name], name))
    shown, hidden = ranked[:limit], ranked[limit:]
    return {
        "max_consecutive_failures": max(worst.values(), default=0),
        "failed_task_count": sum(count.values()),
        "workflow_type_count": len(ranked),
        "workflow_type_limit": limit,
        "workflow_types_truncated": bool(hidden),
        "suppressed_workflow_type_count": len(hidden),
        "suppressed_failed_task_count": sum(count[name] for name in hidden),
        "by_workflow_type": [
            {
                "workflow_type": name,
                "max_consecutive_failures": worst[name],
                "failed_task_count": count[name],
            }
            for name in shown
        ],
    }


def _drift() -> dict[str, Any]:
    """Views are read from the runs themselves, so there is no copy that could drift."""
    return {
        "total": 0,
        "table_count": len(_TABLES),
        "tables_with_drift": 0,
        "scope": "server",
        "label_cardinality_policy": {"cardinality_class": "fixed", "label": "table"},
        "by_table": [{"table": table, "needs_rebuild": 0} for table in _TABLES],
    }


async def operator_metrics(call: Call) -> Reply:
    """``GET /api/system/operator-metrics``."""
    node, settings = call.node, call.node.settings
    census = await node.census.count(call.namespace)
    workers = await node.fleet.workers(call.namespace)
    statuses = [view.status.value for view in workers]
    candidates = await node.passes.repair_candidates(call.namespace)
    return Reply(
        {
            "namespace": call.namespace,
            "operator_metrics": {
                "generated_at": iso_us(node.clock.now_us()),
                "runs": {
                    "total": census.runs,
                    "open": census.runs - census.closed,
                    "closed": census.closed,
                    "archived": census.archived,
                },
                "tasks": {
                    "open": census.ready + census.leased,
                    "ready": census.ready,
                    "leased": census.leased,
                    "dispatch_overdue": census.overdue,
                    "lease_expired": census.lapsed,
                    "claim_failed": census.failing,
                    "unhealthy": census.lapsed + census.failing,
                },
                "backlog": {
                    "runnable_tasks": census.ready,
                    "claim_failed_runs": census.failing,
                    "leased_tasks": census.leased,
                    "unhealthy_tasks": census.lapsed + census.failing,
                },
                "repair": {
                    "existing_task_candidates": candidates.existing,
                    "missing_task_candidates": len(candidates.lacking),
                },
                "workers": {
                    "total": len(statuses),
                    "active": statuses.count("active"),
                    "draining": statuses.count("draining"),
                    "stale": statuses.count("stale"),
                },
                "queries": {"waiting_callers": node.queries.waiting},
                "projections": _drift(),
                "matching_role": {
                    "queue_wake_enabled": True,
                    "shape": "in_server",
                    "task_dispatch_mode": settings.task_dispatch_mode,
                    "partition_primitives": ["namespace", "queue", "compatibility"],
                    "backpressure_model": "lease_ownership",
                    "discovery_limits": {
                        "availability_ceiling_seconds": settings.worker_poll_interval_ms / 1000,
                        "workflow_task_lease_seconds": settings.workflow_task_timeout,
                        "activity_task_lease_seconds": settings.activity_task_timeout,
                    },
                },
            },
        }
    )
