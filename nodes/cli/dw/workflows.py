"""``dw workflow:...``: start runs, look at them, wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

from nodes.cli.dw.arguments import (
    Attributes,
    Encoding,
    Input,
    InputEncoding,
    InputFile,
    Limit,
    Memo,
    QueueOption,
    RunArgument,
    RunOption,
    WorkflowId,
    argument,
    option,
    read_input,
    read_object,
    read_pairs,
)
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode
from nodes.cli.dw.views import Block, Facts, Result, Rows, facts, table

PAGE: Final = 200
FOLLOW_SECONDS: Final = 1.0

_LIST = table("workflows", "workflow_id run_id workflow_type status task_queue started_at")
_RUN = (
    "workflow_id run_id namespace workflow_type status status_bucket is_terminal task_queue started_at "
    "closed_at input output"
)
_RUN_VIEW = facts(
    "workflow_id run_id namespace workflow_type business_key status task_queue run_number run_count "
    "started_at closed_at closed_reason wait_kind wait_reason input output memo search_attributes"
)
_END = ("status", "status_bucket", "is_terminal", "output")


class Bucket(StrEnum):
    """What a list can be filtered by."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Duplicate(StrEnum):
    """What a start does when there is such a workflow."""

    FAIL = "fail"
    USE_EXISTING = "use-existing"


Type = Annotated[str | None, option("--type", "-t", metavar="TYPE", text="the workflow type")]
Status = Annotated[Bucket | None, option("--status", text="what became of them")]
Query = Annotated[str | None, option("--query", metavar="TEXT", text="part of a workflow id or business key")]
Follow = Annotated[bool, option("--follow", "-f", text="go on until the run is closed")]


@command(
    "workflow:start",
    facts(),
    json="namespace workflow_id run_id business_key payload_codec outcome",
    examples=(
        "dw workflow:start -t order -w order-1004 --task-queue orders -i '[\"order-1001\"]'",
        "dw workflow:start -t greet --task-queue orders -i '[\"you\"]' --wait",
        "echo '{\"id\": 7}' | dw workflow:start -t order --task-queue orders --input-file -",
    ),
)
def start(
    dw: Dw,
    workflow_type: Annotated[str, option("--type", "-t", metavar="TYPE", text="the workflow type")],
    workflow_id: Annotated[
        str | None, option("--workflow-id", "-w", metavar="ID", text="drawn by the server when none is given")
    ] = None,
    task_queue: QueueOption = "default",
    business_key: Annotated[
        str | None, option("--business-key", metavar="KEY", text="an id of your own")
    ] = None,
    duplicate_policy: Annotated[
        Duplicate | None, option("--duplicate-policy", text="when there is one of this id")
    ] = None,
    memo: Memo = None,
    search_attr: Attributes = None,
    execution_timeout: Annotated[
        int | None, option("--execution-timeout", metavar="SECONDS", text="for all its runs", min=1)
    ] = None,
    run_timeout: Annotated[
        int | None, option("--run-timeout", metavar="SECONDS", text="for one run", min=1)
    ] = None,
    priority: Annotated[
        int | None, option("--priority", metavar="N", text="for servers that know priorities")
    ] = None,
    fairness_key: Annotated[
        str | None, option("--fairness-key", metavar="KEY", text="for servers that know fairness")
    ] = None,
    fairness_weight: Annotated[
        float | None, option("--fairness-weight", metavar="N", text="for servers that know fairness")
    ] = None,
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    wait: Annotated[bool, option("--wait", text="wait until the run is closed")] = False,
    wait_timeout: Annotated[
        float | None, option("--wait-timeout", metavar="SECONDS", text="longest time to wait", min=0)
    ] = None,
) -> Result:
    """Start a workflow.

    With --wait the exit code is 1 when the run does not end well, and 7 when --wait-timeout is over.
    """
    body = {
        "workflow_type": workflow_type,
        "workflow_id": workflow_id,
        "task_queue": task_queue,
        "business_key": business_key,
        "duplicate_policy": duplicate_policy,
        "execution_timeout_seconds": execution_timeout,
        "run_timeout_seconds": run_timeout,
        "memo": read_object(memo, "--memo"),
        "search_attributes": read_pairs(search_attr, "--search-attr"),
        "priority": priority,
        "fairness_key": fairness_key,
        "fairness_weight": fairness_weight,
        "input": read_input(input, input_file, input_encoding),
    }
    started = dw.post("workflows", body=body)
    if not wait:
        return started
    ended = _wait(dw, started["workflow_id"], started["run_id"], wait_timeout)
    return started | {name: ended.get(name) for name in _END}


def _wait(dw: Dw, workflow_id: str, run_id: str, seconds: float | None) -> Result:
    """The run once it is closed. Raises CallFailed when it did not end well or not in time."""
    last = None if seconds is None else time.monotonic() + seconds
    with dw.screen.waiting(f"waiting for {workflow_id}"):
        for run in _states(dw, workflow_id, run_id, last):
            if run.get("is_terminal"):
                if run.get("status_bucket") == "failed":
                    raise CallFailed(
                        f"{workflow_id} ended as {run.get('status')}", ExitCode.FAILURE, body=run
                    )
                return run
    raise CallFailed(
        f"{workflow_id} has not ended in time; it goes on",
        ExitCode.TIMEOUT,
        advice=(f"dw workflow:describe {workflow_id} --follow waits on",),
    )


def _states(dw: Dw, workflow_id: str, run_id: str, last: float | None = None) -> Iterator[Result]:
    """What a run is like, again and again, until it is closed or ``last`` (monotonic) is over."""
    while True:
        run = dw.get("workflows", workflow_id, "runs", run_id)
        yield run
        if run.get("is_terminal") or (last is not None and time.monotonic() >= last):
            return
        time.sleep(FOLLOW_SECONDS)


def pages(dw: Dw, *path: str, key: str, limit: int, query: dict[str, Any]) -> Result:
    """The first ``limit`` records of a list, over as many pages as that takes."""
    found: list[Any] = []
    token: str | None = None
    while True:
        size = min(PAGE, limit - len(found))
        page = dw.get(*path, query={**query, "page_size": size, "next_page_token": token})
        found += page.get(key) or []
        token = page.get("next_page_token")
        if not token or len(found) >= limit:
            return page | {key: found[:limit]}


@command(
    "workflow:list",
    _LIST,
    json="namespace workflows workflow_count next_page_token",
    examples=(
        "dw workflow:list --status running",
        "dw workflow:list -t order --query order-10 -l 500 --output jsonl",
    ),
    watch=True,
)
def list_workflows(
    dw: Dw, workflow_type: Type = None, status: Status = None, query: Query = None, limit: Limit = 20
) -> Result:
    """List workflows, newest first."""
    wanted = {"workflow_type": workflow_type, "status": status, "query": query}
    listed = pages(dw, "workflows", key="workflows", limit=limit, query=wanted)
    return listed | {"workflow_count": len(listed["workflows"])}


@command(
    "workflow:describe",
    _RUN_VIEW,
    json=_RUN,
    examples=("dw workflow:describe order-1001", "dw workflow:describe order-1000 --follow --json"),
    watch=True,
)
def describe(
    dw: Dw, workflow_id: WorkflowId, run_id: RunOption = None, follow: Follow = False
) -> Result | None:
    """Show one workflow; with --follow again whenever it changed, until it is closed."""
    path = ("workflows", workflow_id, *(("runs", run_id) if run_id else ()))
    run = dw.get(*path)
    if not follow:
        return run
    shown: Result | None = None
    for state in _states(dw, workflow_id, run["run_id"]):
        if state != shown:
            dw.screen.snapshot(state, _RUN_VIEW)
            shown = state
    return None


@command(
    "workflow:list-runs",
    table("runs", "run_number run_id status workflow_type started_at closed_at"),
    json="workflow_id run_count runs",
    examples=("dw workflow:list-runs order-1001",),
    watch=True,
)
def list_runs(dw: Dw, workflow_id: WorkflowId) -> Result:
    """List the runs of a workflow, oldest first."""
    return dw.get("workflows", workflow_id, "runs")


@command(
    "workflow:show-run",
    _RUN_VIEW,
    json=_RUN,
    examples=("dw workflow:show-run order-1001 $RUN",),
    watch=True,
)
def show_run(
    dw: Dw, workflow_id: WorkflowId, run_id: Annotated[str, argument("RUN_ID", "the run")]
) -> Result:
    """Show one run of a workflow."""
    return dw.get("workflows", workflow_id, "runs", run_id)


class Watched(StrEnum):
    """What can be watched and debugged by its kind and id."""

    WORKFLOW = "workflow"


Kind = Annotated[Watched, argument("workflow", "the kind of thing")]


@command("watch", _RUN_VIEW, json=_RUN, examples=("dw watch workflow order-1000",))
def watch(dw: Dw, kind: Kind, workflow_id: WorkflowId, run_id: RunOption = None) -> Result | None:
    """Show a workflow whenever it changed, until it is closed."""
    return describe(dw, workflow_id, run_id, follow=True)


def _debug(result: Result) -> Iterable[Block]:
    """What helps to decide; --json has everything."""
    execution = result.get("execution") or {}
    yield Facts(
        {name: result.get(name) for name in ("workflow_id", "run_id", "diagnostic_status")}
        | {name: execution.get(name) for name in ("status", "task_queue", "wait_kind", "wait_reason")}
        | {"last_progress_at": execution.get("last_progress_at")}
        | {"workers": (result.get("task_queue") or {}).get("active_pollers")}
    )
    if tasks := result.get("pending_workflow_tasks"):
        yield Rows(tasks, ("task_id", "status", "attempt", "lease_owner", "lease_expires_at", "last_error"))
    if activities := result.get("pending_activities"):
        activity_columns = (
            "activity_type",
            "task_queue",
            "status",
            "attempt",
            "available_at",
            "last_failure",
        )
        yield Rows(activities, ("activity_execution_id", *activity_columns))
    if failures := result.get("recent_failures"):
        yield Rows(failures, ("sequence", "event_type", "timestamp", "exception_type", "message"))
    yield Facts(result.get("last_event") or {}, "last event")


@command(
    "debug",
    _debug,
    json="workflow_id run_id diagnostic_status execution pending_workflow_tasks pending_activities",
    examples=("dw debug workflow order-1001", "dw debug workflow order-1001 $RUN --payload"),
    watch=True,
)
def debug(
    dw: Dw,
    kind: Kind,
    workflow_id: WorkflowId,
    run_id: RunArgument = None,
    payload: Annotated[bool, option("--payload", text="with a look at the last event's payload")] = False,
) -> Result:
    """Show what keeps a workflow from moving: its open tasks, their queues, and recent failures."""
    path = ("workflows", workflow_id, *(("runs", run_id) if run_id else ()), "debug")
    return dw.get(*path, query={"include_last_event_payload": 1 if payload else None})
