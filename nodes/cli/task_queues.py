"""``dw task-queue:...``: what queues hold, what limits them, and why a task waits."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from nodes.cli.api_client import ApiClient
from nodes.cli.output import columns, pairs

Result = dict[str, Any]

_SECTIONS = ("workflow_tasks", "activity_tasks", "step_tasks", "query_tasks")
_LIST_COLUMNS = ("name", "backlog", "age", "workers", *_SECTIONS)


def task_queue_list(client: ApiClient, _: argparse.Namespace) -> Result:
    """list task queues with their backlog and admission status"""
    return client.call("GET", "/task-queues")


def task_queue_describe(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """show what a task queue holds, its workers, leases and limits"""
    return client.call("GET", f"/task-queues/{quote(arguments.name, safe='')}")


def task_queue_why(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """say why a task is not running"""
    path = f"/task-queues/{quote(arguments.name, safe='')}/why"
    return client.call("GET", path, query={"task": arguments.task})


def show_list(result: Result) -> str:
    """One line per queue."""
    return columns([_row(queue) for queue in result.get("task_queues", [])], _LIST_COLUMNS)


def show_queue(result: Result) -> str:
    """The queue's numbers, then its limits, then its workers."""
    stats = result.get("stats", {})
    text = pairs({key: result.get(key) for key in ("name", "namespace")} | dict(_row(result)))
    text += "".join(
        f"\n{name}\n{pairs(_told(result.get('admission', {}).get(name, {})))}" for name in _SECTIONS
    )
    rates = {key: stats.get(key) for key in ("tasks_added_last_minute", "tasks_dispatched_last_minute")}
    workers = columns(result.get("pollers", []), ("worker_id", "status", "build_id", "last_heartbeat_at"))
    return f"{text}\n{pairs(rates)}\n{workers}"


def show_why(result: Result) -> str:
    """The verdict, then every obstacle."""
    text = pairs({key: result.get(key) for key in ("task_id", "task_queue", "state", "reason")})
    return text + "".join(f"* {reason.get('message')}\n" for reason in result.get("reasons", []))


def _row(queue: Mapping[str, Any]) -> dict[str, Any]:
    stats, admission = queue.get("stats", {}), queue.get("admission", {})
    row = {
        "name": queue.get("name"),
        "backlog": stats.get("approximate_backlog_count"),
        "age": stats.get("approximate_backlog_age"),
        "workers": stats.get("pollers", {}).get("active_count"),
    }
    return row | {name: admission.get(name, {}).get("status") for name in _SECTIONS}


def _told(section: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a section that say something: a limit that is not set does not."""
    return {name: value for name, value in section.items() if value is not None}


def arguments_of(name: str, parser: argparse.ArgumentParser) -> None:
    """Add what a command needs."""
    parser.add_argument("name", help="the task queue")
    if name.endswith(":why"):
        parser.add_argument("task", help="the task's id")


COMMANDS: Sequence[tuple[str, Any, Any]] = (
    ("task-queue:list", task_queue_list, show_list),
    ("task-queue:describe", task_queue_describe, show_queue),
    ("task-queue:why", task_queue_why, show_why),
)
"""Name, what it does, and how its result is shown to people."""
