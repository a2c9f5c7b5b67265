"""``dw activity:...``: activities that run without a workflow.

``activity:complete`` and ``activity:fail`` belong to the worker's side, see ``worker_plane``.
"""

from __future__ import annotations

from typing import Annotated

from nodes.cli.dw.arguments import (
    Encoding,
    Input,
    InputEncoding,
    InputFile,
    Limit,
    argument,
    option,
    read_input,
)
from nodes.cli.dw.choices import ActivityStatus
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.views import Result, facts, table
from nodes.cli.dw.workflows import pages

Seconds = int | None


@command(
    "activity:start",
    facts("activity_id workflow_run_id activity_type task_queue status outcome"),
    json="activity_id workflow_run_id activity_execution_id activity_type",
    examples=(
        "dw activity:start -t send_receipt --task-queue mail --activity-id mail-2 -i '[\"order-1001\"]'",
    ),
)
def start(
    dw: Dw,
    activity_type: Annotated[str, option("--type", "-t", metavar="TYPE", text="the activity type")],
    task_queue: Annotated[str, option("--task-queue", metavar="QUEUE", text="the task queue")],
    activity_id: Annotated[
        str | None, option("--activity-id", metavar="ID", text="drawn by the server when none is given")
    ] = None,
    business_key: Annotated[
        str | None, option("--business-key", metavar="KEY", text="an id of your own")
    ] = None,
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    max_attempts: Annotated[
        Seconds, option("--max-attempts", metavar="N", text="try so often", min=1)
    ] = None,
    start_to_close: Annotated[
        Seconds, option("--start-to-close-timeout", metavar="SECONDS", text="for one attempt", min=1)
    ] = None,
    schedule_to_start: Annotated[
        Seconds, option("--schedule-to-start-timeout", metavar="SECONDS", text="to be taken", min=1)
    ] = None,
    schedule_to_close: Annotated[
        Seconds, option("--schedule-to-close-timeout", metavar="SECONDS", text="for all attempts", min=1)
    ] = None,
    heartbeat: Annotated[
        Seconds, option("--heartbeat-timeout", metavar="SECONDS", text="longest silence", min=1)
    ] = None,
) -> Result:
    """Start an activity of its own."""
    body = {
        "activity_type": activity_type,
        "task_queue": task_queue,
        "activity_id": activity_id,
        "business_key": business_key,
        "input": read_input(input, input_file, input_encoding),
        "retry_policy": None if max_attempts is None else {"max_attempts": max_attempts},
        "start_to_close_timeout_seconds": start_to_close,
        "schedule_to_start_timeout_seconds": schedule_to_start,
        "schedule_to_close_timeout_seconds": schedule_to_close,
        "heartbeat_timeout_seconds": heartbeat,
    }
    return dw.post("activities", body=body)


@command(
    "activity:list",
    table("activities", "activity_id activity_type status activity_status attempt_count task_queue"),
    json="activities activity_count next_page_token",
    examples=("dw activity:list --status running",),
    watch=True,
)
def list_activities(
    dw: Dw,
    status: Annotated[ActivityStatus | None, option("--status", text="what became of them")] = None,
    limit: Limit = 20,
) -> Result:
    """List activities without a workflow, newest first."""
    listed = pages(dw, "activities", key="activities", limit=limit, query={"status": status})
    return listed | {"activity_count": len(listed["activities"])}


@command(
    "activity:describe",
    facts(),
    json="activity_id workflow_run_id activity_type status activity_status result attempt_count",
    examples=("dw activity:describe mail-1",),
    watch=True,
)
def describe(dw: Dw, activity_id: Annotated[str, argument("ACTIVITY_ID", "the activity")]) -> Result:
    """Show an activity that runs without a workflow."""
    return dw.get("activities", activity_id)
