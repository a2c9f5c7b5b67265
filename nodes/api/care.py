"""Routes that look after one workflow: its runs, repair, archive, export (server-behaviour 3.3)."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen

from cluster.errors import Refused
from cluster.paging import page_start, page_token
from cluster.times import iso_us
from cluster.workflows.history_bundle import export
from cluster.workflows.visibility import RunView
from nodes.api.attribution import command_context
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, Trimmed
from nodes.api.operations import command_body, new_command_id, target
from nodes.api.routes import Reply


class _Runs(Fields):
    page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


class _Repair(Fields):
    request_id: OptionalText = None


class _Archive(_Repair):
    reason: Annotated[Annotated[str, MaxLen(1000)] | None, Trimmed] = None


async def list_runs(call: Call) -> Reply:
    """``GET /api/workflows/{workflow_id}/runs``, oldest first; all of them without a ``page_size``."""
    workflow_id = call.parameters["workflow_id"]
    wanted = call.query_fields(_Runs)
    after = page_start(wanted.next_page_token or "") or 0
    views = await call.node.engine.runs(call.namespace, workflow_id, after=after, most=wanted.page_size)
    count = views[-1].run_count if views else 0
    return Reply(
        {
            "workflow_id": workflow_id,
            "run_count": count,
            "runs": [_show(view) for view in views],
            "next_page_token": page_token(after + wanted.page_size, count) if wanted.page_size else None,
        }
    )


def _show(view: RunView) -> dict[str, Any]:
    info, state = view.run.info, view.run.state
    return {
        "run_id": info.run_id,
        "run_number": info.run_number,
        "workflow_type": info.workflow_type,
        "business_key": info.business_key,
        "status": state.status.value,
        "task_queue": info.task_queue,
        "is_current_run": view.is_current,
        "started_at": iso_us(info.started_at_us),
        "closed_at": iso_us(state.closed_at_us) if state.closed_at_us else None,
    }


async def repair(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}/repair``."""
    call.fields(_Repair)
    view, scope = await target(call)
    command_id = new_command_id()
    if view.run.state.status.closed:
        refused = command_body(
            view, scope, command_id, outcome="rejected_not_active", reason="run_not_active"
        )
        raise Refused("run_not_active", "The run is closed.", **_without_reason(refused))
    context = command_context(call, "repair", workflow_id=view.run.info.workflow_id)
    repaired = await call.node.engine.repair(call.namespace, view.run.info.run_id, command_id, context)
    outcome = "repair_dispatched" if repaired else "repair_not_needed"
    return Reply(command_body(view, scope, command_id, outcome=outcome))


async def archive(call: Call) -> Reply:
    """``POST /api/workflows/{workflow_id}/archive``: keep the closed run for good."""
    body = call.fields(_Archive)
    view, scope = await target(call)
    command_id = new_command_id()
    context = command_context(call, "archive", workflow_id=view.run.info.workflow_id)
    try:
        outcome = await call.node.engine.archive(view.run.info.run_id, body.reason, command_id, context)
    except Refused as refusal:
        refused = command_body(view, scope, command_id, outcome="rejected_not_closed", reason=refusal.reason)
        raise Refused(
            refusal.reason, refusal.message, status=refusal.status, **_without_reason(refused)
        ) from None
    return Reply(command_body(view, scope, command_id, outcome=outcome))


def _without_reason(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "reason"}


async def export_history(call: Call) -> Reply:
    """``GET /api/workflows/{workflow_id}/runs/{run_id}/history/export``."""
    workflow_id, run_id = call.parameters["workflow_id"], call.parameters["run_id"]
    await call.node.engine.describe(call.namespace, workflow_id, run_id)
    found = await call.node.engine.whole_record(run_id)
    if found is None:
        raise Refused("run_not_found", "The run was removed.", status=404, run_id=run_id)
    return Reply(export(found, call.node.clock.now_us()))
