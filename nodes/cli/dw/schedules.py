"""``dw schedule:...``: workflows that are started by the clock."""

from __future__ import annotations

from typing import Annotated, Any

from cluster.schedules.records import Overlap, Status
from nodes.cli.dw.arguments import (
    Attributes,
    Encoding,
    Input,
    InputEncoding,
    InputFile,
    Memo,
    argument,
    option,
    read_input,
    read_object,
    read_pairs,
)
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.views import Result, facts, table
from nodes.cli.dw.workflows import pages

ScheduleId = Annotated[str, argument("SCHEDULE_ID", "the schedule")]
Cron = Annotated[
    list[str] | None, option("--cron", metavar="EXPRESSION", text="five fields, e.g. '0 2 * * *'; repeatable")
]
Every = Annotated[
    list[str] | None,
    option("--every", metavar="DURATION[+OFFSET]", text="ISO 8601, e.g. PT15M or PT1H+PT5M; repeatable"),
]
Timezone = Annotated[str | None, option("--timezone", metavar="ZONE", text="of cron expressions (UTC)")]
Queue = Annotated[str | None, option("--task-queue", metavar="QUEUE", text="the workflow's task queue")]
Jitter = Annotated[int | None, option("--jitter", metavar="SECONDS", text="start up to so much later", min=0)]
MaxRuns = Annotated[int | None, option("--max-runs", metavar="N", text="stop after so many", min=1)]
Timeout = Annotated[int | None, option("--run-timeout", metavar="SECONDS", text="for each run", min=1)]
Total = Annotated[
    int | None, option("--execution-timeout", metavar="SECONDS", text="for all its runs", min=1)
]
Note = Annotated[str | None, option("--note", metavar="TEXT", text="for those who look at it later")]
_DONE = "schedule_id outcome"


OverlapOption = Annotated[Overlap | None, option("--overlap", text="when the last run still runs (skip)")]


def _spec(cron: list[str] | None, every: list[str] | None, timezone: str | None) -> dict[str, Any] | None:
    intervals = []
    for text in every or ():
        length, _, offset = text.partition("+")
        intervals.append({"every": length} | ({"offset": offset} if offset else {}))
    given = {"cron_expressions": cron or None, "intervals": intervals or None, "timezone": timezone}
    return {name: value for name, value in given.items() if value is not None} or None


@command(
    "schedule:list",
    table("schedules", "schedule_id workflow_type status next_fire_at last_fired_at fires_count"),
    json="schedules next_page_token",
    examples=("dw schedule:list", "dw schedule:list --status paused"),
    watch=True,
)
def list_schedules(
    dw: Dw,
    status: Annotated[Status | None, option("--status", text="only those that are so")] = None,
    workflow_type: Annotated[
        str | None, option("--type", "-t", metavar="TYPE", text="the workflow type")
    ] = None,
    query: Annotated[str | None, option("--query", metavar="TEXT", text="part of an id")] = None,
    limit: Annotated[int, option("--limit", "-l", metavar="N", text="most to show (50)", min=1)] = 50,
) -> Result:
    """List schedules."""
    wanted = {"status": status, "workflow_type": workflow_type, "query": query}
    return pages(dw, "schedules", key="schedules", limit=limit, query=wanted)


@command(
    "schedule:create",
    facts(_DONE),
    json=_DONE,
    examples=(
        "dw schedule:create weekly -t report --cron '0 2 * * *' --timezone Europe/Kyiv --task-queue orders",
        "dw schedule:create heartbeat -t ping --every PT15M --overlap buffer_one --paused",
    ),
)
def create(
    dw: Dw,
    workflow_type: Annotated[str, option("--type", "-t", metavar="TYPE", text="the workflow type")],
    schedule_id: Annotated[
        str | None, argument("SCHEDULE_ID", "drawn by the server when none is given")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    task_queue: Queue = None,
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    overlap: OverlapOption = None,
    jitter: Jitter = None,
    max_runs: MaxRuns = None,
    execution_timeout: Total = None,
    run_timeout: Timeout = None,
    memo: Memo = None,
    search_attr: Attributes = None,
    note: Note = None,
    paused: Annotated[bool, option("--paused", text="do not start it yet")] = False,
) -> Result:
    """Create a schedule."""
    action = {
        "workflow_type": workflow_type,
        "task_queue": task_queue,
        "input": read_input(input, input_file, input_encoding),
        "execution_timeout_seconds": execution_timeout,
        "run_timeout_seconds": run_timeout,
    }
    body = {
        "schedule_id": schedule_id,
        "spec": _spec(cron, every, timezone) or {},
        "action": {name: value for name, value in action.items() if value is not None},
        "overlap_policy": overlap,
        "jitter_seconds": jitter,
        "max_runs": max_runs,
        "memo": read_object(memo, "--memo"),
        "search_attributes": read_pairs(search_attr, "--search-attr"),
        "note": note,
        "paused": paused or None,
    }
    return dw.post("schedules", body=body)


@command(
    "schedule:describe",
    facts(),
    json="schedule_id spec action overlap_policy state info status next_fire_at fires_count",
    examples=("dw schedule:describe nightly",),
    watch=True,
)
def describe(dw: Dw, schedule_id: ScheduleId) -> Result:
    """Show a schedule, its last and its next fires."""
    return dw.get("schedules", schedule_id)


@command(
    "schedule:update",
    facts(_DONE),
    json=_DONE,
    examples=("dw schedule:update nightly --cron '30 3 * * *' --jitter 60",),
)
def update(
    dw: Dw,
    schedule_id: ScheduleId,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    workflow_type: Annotated[
        str | None, option("--type", "-t", metavar="TYPE", text="the workflow type")
    ] = None,
    task_queue: Queue = None,
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    overlap: OverlapOption = None,
    jitter: Jitter = None,
    max_runs: MaxRuns = None,
    memo: Memo = None,
    search_attr: Attributes = None,
    note: Note = None,
) -> Result:
    """Change what is given of a schedule; cron expressions and intervals are replaced together."""
    action = {
        "workflow_type": workflow_type,
        "task_queue": task_queue,
        "input": read_input(input, input_file, input_encoding),
    }
    body = {
        "spec": _spec(cron, every, timezone),
        "action": {name: value for name, value in action.items() if value is not None} or None,
        "overlap_policy": overlap,
        "jitter_seconds": jitter,
        "max_runs": max_runs,
        "memo": read_object(memo, "--memo"),
        "search_attributes": read_pairs(search_attr, "--search-attr"),
        "note": note,
    }
    if all(value is None for value in body.values()):
        raise wrong_usage("nothing to change was given")
    return dw.put("schedules", schedule_id, body=body)


@command("schedule:pause", facts(_DONE), json=_DONE, examples=("dw schedule:pause nightly --note holiday",))
def pause(dw: Dw, schedule_id: ScheduleId, note: Note = None) -> Result:
    """Let a schedule start nothing until it is resumed."""
    return dw.post("schedules", schedule_id, "pause", body={"note": note})


@command("schedule:resume", facts(_DONE), json=_DONE, examples=("dw schedule:resume pulse",))
def resume(dw: Dw, schedule_id: ScheduleId, note: Note = None) -> Result:
    """Let a paused schedule go on."""
    return dw.post("schedules", schedule_id, "resume", body={"note": note})


@command(
    "schedule:trigger",
    facts("schedule_id outcome workflow_id run_id"),
    json=_DONE,
    examples=("dw schedule:trigger nightly",),
)
def trigger(dw: Dw, schedule_id: ScheduleId, overlap: OverlapOption = None) -> Result:
    """Start a schedule's workflow now."""
    return dw.post("schedules", schedule_id, "trigger", body={"overlap_policy": overlap})


@command(
    "schedule:backfill",
    facts("schedule_id outcome fires_attempted"),
    json=f"{_DONE} fires_attempted results",
    examples=("dw schedule:backfill nightly 2026-11-01T00:00:00Z 2026-11-03T00:00:00Z --overlap allow_all",),
)
def backfill(
    dw: Dw,
    schedule_id: ScheduleId,
    start: Annotated[str, argument("START", "ISO 8601 with an offset")],
    end: Annotated[str, argument("END", "ISO 8601 with an offset")],
    overlap: OverlapOption = None,
) -> Result:
    """Start what a schedule would have started between two times."""
    body = {"start_time": start, "end_time": end, "overlap_policy": overlap}
    return dw.post("schedules", schedule_id, "backfill", body=body)


@command(
    "schedule:history",
    table("events", "sequence event_type timestamp"),
    json="schedule_id events next_cursor has_more",
    examples=("dw schedule:history nightly --limit 10",),
    watch=True,
)
def history(
    dw: Dw,
    schedule_id: ScheduleId,
    after: Annotated[int | None, option("--after", metavar="SEQUENCE", text="only later ones", min=0)] = None,
    limit: Annotated[
        int, option("--limit", "-l", metavar="N", text="most to show (100)", min=1, max=500)
    ] = 100,
) -> Result:
    """Show what happened to a schedule, oldest first."""
    return dw.get("schedules", schedule_id, "history", query={"after_sequence": after, "limit": limit})


@command("schedule:delete", facts(_DONE), json=_DONE, examples=("dw schedule:delete pulse",))
def delete(dw: Dw, schedule_id: ScheduleId) -> Result:
    """Delete a schedule; workflows it started go on."""
    return dw.delete("schedules", schedule_id)
