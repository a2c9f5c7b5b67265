"""``dw workflow:signal`` and the other commands to one workflow, or to many."""

from __future__ import annotations

from typing import Annotated, Any

from nodes.cli.dw.arguments import (
    Encoding,
    Input,
    InputEncoding,
    InputFile,
    Reason,
    RequestId,
    RunOption,
    WorkflowId,
    Yes,
    argument,
    confirm,
    option,
    read_input,
)
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode, wrong_usage
from nodes.cli.dw.views import Result, document, facts
from nodes.cli.dw.workflows import Bucket, Status, Type, pages

_COMMAND = "namespace workflow_id run_id outcome command_id command_status"
_SHOWN = facts("workflow_id run_id outcome command_status command_id")


def _to(workflow_id: str, run_id: str | None, *rest: str) -> tuple[str, ...]:
    return ("workflows", workflow_id, *(("runs", run_id) if run_id else ()), *rest)


@command(
    "workflow:signal",
    _SHOWN,
    json=_COMMAND,
    examples=("dw workflow:signal order-1001 approve -i '[true]'",),
)
def signal(
    dw: Dw,
    workflow_id: WorkflowId,
    name: Annotated[str, argument("SIGNAL", "the signal's name")],
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    run_id: RunOption = None,
    request_id: RequestId = None,
) -> Result:
    """Send a workflow a signal."""
    body = {"input": read_input(input, input_file, input_encoding), "request_id": request_id}
    return dw.post(*_to(workflow_id, run_id, "signal", name), body=body)


@command(
    "workflow:query",
    document("result"),
    json="namespace workflow_id run_id query_name result",
    examples=("dw workflow:query order-1001 status",),
)
def query(
    dw: Dw,
    workflow_id: WorkflowId,
    name: Annotated[str, argument("QUERY", "the query's name")],
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    run_id: RunOption = None,
) -> Result:
    """Ask a workflow's query handler, and show its result."""
    body = {"input": read_input(input, input_file, input_encoding)}
    with dw.screen.waiting(f"asking {workflow_id}"):
        return dw.post(*_to(workflow_id, run_id, "query", name), body=body)


@command(
    "workflow:update",
    facts("workflow_id run_id update_name update_id update_status outcome result"),
    json=f"{_COMMAND} update_id update_status",
    examples=("dw workflow:update order-1001 add_item -i '[\"book\"]' --wait",),
)
def update(
    dw: Dw,
    workflow_id: WorkflowId,
    name: Annotated[str, argument("UPDATE", "the update's name")],
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    run_id: RunOption = None,
    request_id: RequestId = None,
    wait: Annotated[bool, option("--wait", text="wait until it is completed, not only accepted")] = False,
    wait_timeout: Annotated[
        int | None, option("--wait-timeout", metavar="SECONDS", text="longest time to wait", min=1)
    ] = None,
) -> Result:
    """Ask a workflow for an update."""
    body = {
        "input": read_input(input, input_file, input_encoding),
        "request_id": request_id,
        "wait_for": "completed" if wait else None,
        "wait_timeout_seconds": wait_timeout,
    }
    with dw.screen.waiting(f"waiting for {name}"):
        return dw.post(*_to(workflow_id, run_id, "update", name), body=body, patience=wait_timeout or 0)


@command(
    "workflow:cancel",
    facts("workflow_id run_id outcome matched cancelled failed"),
    examples=(
        "dw workflow:cancel order-1002 --reason 'customer called'",
        "dw workflow:cancel --all-matching trial- --status running -l 100 --yes",
    ),
)
def cancel(
    dw: Dw,
    workflow_id: Annotated[str | None, argument("WORKFLOW_ID", "the workflow")] = None,
    reason: Reason = None,
    run_id: RunOption = None,
    all_matching: Annotated[
        str | None,
        option("--all-matching", metavar="TEXT", text="all with this in their id or business key instead"),
    ] = None,
    workflow_type: Type = None,
    status: Status = Bucket.RUNNING,
    limit: Annotated[
        int, option("--limit", "-l", metavar="N", text="at most so many of them (100)", min=1)
    ] = 100,
    yes: Yes = False,
) -> Result:
    """Ask a workflow to end, or all that match.

    JSON of one: workflow_id, run_id, outcome ...; of many: matched, cancelled, failed, results.
    """
    if (workflow_id is None) == (all_matching is None):
        raise wrong_usage("name one workflow, or many with --all-matching")
    if workflow_id is not None:
        return dw.post(*_to(workflow_id, run_id, "cancel"), body={"reason": reason})
    wanted = {"workflow_type": workflow_type, "status": status, "query": all_matching}
    found = pages(dw, "workflows", key="workflows", limit=limit, query=wanted)["workflows"]
    if found:
        confirm(f"cancel {len(found)} workflows", yes=yes)
    report = _cancel_all(dw, found, reason)
    if report["failed"]:
        raise CallFailed(
            f"{report['failed']} of {report['matched']} could not be cancelled", ExitCode.FAILURE, body=report
        )
    return report


def _cancel_all(dw: Dw, found: list[dict[str, Any]], reason: str | None) -> Result:
    results = []
    with dw.screen.progress("cancelling", len(found)) as done:
        for run in found:
            entry = {"workflow_id": run["workflow_id"], "run_id": run["run_id"]}
            try:
                path = _to(run["workflow_id"], run["run_id"], "cancel")
                entry["outcome"] = dw.post(*path, body={"reason": reason})["outcome"]
            except CallFailed as failure:
                if failure.status is None:
                    raise
                entry |= {"error": str(failure), "reason": failure.reason}
            results.append(entry)
            done()
    failed = sum("error" in entry for entry in results)
    return {
        "matched": len(found),
        "cancelled": len(found) - failed,
        "failed": failed,
        "results": results,
    }


@command(
    "workflow:terminate",
    _SHOWN,
    json=_COMMAND,
    examples=("dw workflow:terminate order-1003 --reason stuck",),
)
def terminate(dw: Dw, workflow_id: WorkflowId, reason: Reason = None, run_id: RunOption = None) -> Result:
    """End a workflow at once; its code is not asked."""
    return dw.post(*_to(workflow_id, run_id, "terminate"), body={"reason": reason})


@command("workflow:repair", _SHOWN, json=_COMMAND, examples=("dw workflow:repair order-1001",))
def repair(dw: Dw, workflow_id: WorkflowId, request_id: RequestId = None) -> Result:
    """Look at a workflow again and put right what is not as it should be."""
    return dw.post("workflows", workflow_id, "repair", body={"request_id": request_id})


@command(
    "workflow:archive", _SHOWN, json=_COMMAND, examples=("dw workflow:archive order-1000 --reason audit",)
)
def archive(dw: Dw, workflow_id: WorkflowId, reason: Reason = None) -> Result:
    """Keep a closed workflow for good."""
    return dw.post("workflows", workflow_id, "archive", body={"reason": reason})
