"""``dw worker:...``, ``system:...``, builds of a task queue, and what looks after single workflows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from nodes.cli.api_client import ApiClient, CallFailed, ExitCode
from nodes.cli.output import columns, pairs

Result = dict[str, Any]
Run = Callable[[ApiClient, argparse.Namespace], Result]

_WORKER_COLUMNS = ("worker_id", "status", "task_queue", "build_id", "runtime", "last_heartbeat_at")
_BUILD_COLUMNS = (
    "build_id",
    "rollout_status",
    "drain_intent",
    "active_worker_count",
    "draining_worker_count",
    "stale_worker_count",
)
_RUN_COLUMNS = ("run_number", "run_id", "status", "workflow_type", "started_at", "closed_at")


class Command(NamedTuple):
    """A command: its name, what it does, how people see its result, and what it needs."""

    name: str
    run: Run
    show: Callable[[Result], str]
    arguments: Callable[[argparse.ArgumentParser], None]


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


# -- workers and builds ---------------------------------------------------------------------


def worker_list(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """list registered workers, the one heard of last first"""
    query = {"task_queue": arguments.task_queue, "status": arguments.status}
    return client.call("GET", "/workers", query=query)


def worker_describe(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """show one worker"""
    return client.call("GET", _path("workers", arguments.worker_id))


def worker_deregister(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """forget a worker and give its workflow tasks to others"""
    return client.call("DELETE", _path("workers", arguments.worker_id))


def build_ids(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """list the builds of a task queue's workers"""
    return client.call("GET", _path("task-queues", arguments.name, "build-ids"))


def drain(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """give a build no new tasks; it may finish what it holds"""
    return _set_intent(client, arguments, "drain")


def resume(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """give a drained build tasks again"""
    return _set_intent(client, arguments, "resume")


def _set_intent(client: ApiClient, arguments: argparse.Namespace, verb: str) -> Result:
    body = {"build_id": None if arguments.unversioned else arguments.build_id}
    return client.call("POST", _path("task-queues", arguments.name, "build-ids", verb), body=body, nulls=True)


# -- workflows ------------------------------------------------------------------------------


def workflow_query(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """ask a workflow's query handler"""
    body = {"input": _arguments(arguments)}
    return client.call("POST", _path("workflows", arguments.workflow_id, "query", arguments.name), body=body)


def workflow_signal(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """send a workflow a signal"""
    body = {"input": _arguments(arguments), "request_id": arguments.request_id}
    return client.call("POST", _path("workflows", arguments.workflow_id, "signal", arguments.name), body=body)


def workflow_update(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """ask a workflow for an update"""
    body = {
        "input": _arguments(arguments),
        "request_id": arguments.request_id,
        "wait_for": "completed" if arguments.wait else None,
    }
    return client.call("POST", _path("workflows", arguments.workflow_id, "update", arguments.name), body=body)


def workflow_cancel(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """ask a workflow to end"""
    return _stop(client, arguments, "cancel")


def workflow_terminate(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """end a workflow at once"""
    return _stop(client, arguments, "terminate")


def _stop(client: ApiClient, arguments: argparse.Namespace, verb: str) -> Result:
    run = ("runs", arguments.run_id) if arguments.run_id else ()
    path = _path("workflows", arguments.workflow_id, *run, verb)
    return client.call("POST", path, body={"reason": arguments.reason})


def workflow_list_runs(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """list the runs of a workflow, oldest first"""
    return client.call("GET", _path("workflows", arguments.workflow_id, "runs"))


def workflow_repair(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """look at a workflow again and put right what is not as it should be"""
    return client.call("POST", _path("workflows", arguments.workflow_id, "repair"), body={})


def workflow_archive(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """keep a closed workflow for good"""
    body = {"reason": arguments.reason}
    return client.call("POST", _path("workflows", arguments.workflow_id, "archive"), body=body)


def workflow_debug(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """show what keeps a workflow from moving"""
    return client.call("GET", _path("workflows", arguments.workflow_id, "debug"))


def workflow_history_export(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """export a run's history as a document that can be verified elsewhere"""
    path = _path("workflows", arguments.workflow_id, "runs", arguments.run_id, "history", "export")
    bundle = client.call("GET", path)
    if arguments.output is not None:
        try:
            arguments.output.write_text(_document(bundle))
        except OSError as error:
            raise CallFailed(f"cannot write {arguments.output}: {error}", ExitCode.FAILURE) from error
        return {"output": str(arguments.output), "checksum": bundle.get("integrity", {}).get("checksum")}
    return bundle


# -- system ---------------------------------------------------------------------------------


def repair_status(client: ApiClient, _: argparse.Namespace) -> Result:
    """show how much there is to repair"""
    return client.call("GET", "/system/repair")


def repair_pass(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """repair what needs it, or the given runs"""
    return _checked(client.call("POST", "/system/repair/pass", body={"run_ids": arguments.run_id or None}))


def retention_status(client: ApiClient, _: argparse.Namespace) -> Result:
    """show which runs are past their retention"""
    return client.call("GET", "/system/retention")


def retention_pass(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """remove runs past their retention, or the given closed runs"""
    return _checked(client.call("POST", "/system/retention/pass", body={"run_ids": arguments.run_id or None}))


def activity_timeout_status(client: ApiClient, _: argparse.Namespace) -> Result:
    """show which activities have a deadline that has come"""
    return client.call("GET", "/system/activity-timeouts")


def activity_timeout_pass(client: ApiClient, _: argparse.Namespace) -> Result:
    """enforce the deadlines that have come"""
    return _checked(client.call("POST", "/system/activity-timeouts/pass", body={}))


def system_metrics(client: ApiClient, _: argparse.Namespace) -> Result:
    """show the namespace's metrics"""
    return client.call("GET", "/system/metrics")


def operator_metrics(client: ApiClient, _: argparse.Namespace) -> Result:
    """show counts of runs, tasks and workers"""
    return client.call("GET", "/system/operator-metrics")


def _checked(report: Result) -> Result:
    """A pass that could not do everything fails the command."""
    if report.get("failed") or report.get("existing_task_failures"):
        raise CallFailed("the pass could not do everything", ExitCode.FAILURE, body=report)
    return report


# -- shapes ---------------------------------------------------------------------------------


def _arguments(arguments: argparse.Namespace) -> Any:
    if arguments.input is None:
        return None
    try:
        value = json.loads(arguments.input)
    except ValueError as error:
        raise CallFailed(f"the input is not JSON: {error}", ExitCode.REFUSED) from error
    return value if isinstance(value, list | dict) else [value]


def _document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _table(key: str, names: Sequence[str]) -> Callable[[Result], str]:
    return lambda result: columns(result.get(key, []), names)


def _told(result: Result) -> Result:
    return {key: value for key, value in result.items() if key != "control_plane"}


def _pairs(result: Result) -> str:
    return pairs(_told(result))


def _without_echo(result: Result) -> str:
    return _document(_told(result))


def _answer(result: Result) -> str:
    return _document(result.get("result"))


def _none(_: argparse.ArgumentParser) -> None:
    """The command needs nothing."""


def _one(name: str, text: str) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(name, help=text)

    return add


def _workers_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task-queue", metavar="QUEUE")
    parser.add_argument("--status", choices=["active", "draining", "stale"])


def _build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the task queue")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--build-id", metavar="BUILD")
    which.add_argument("--unversioned", action="store_true", help="the workers without a build id")


def _call(kind: str) -> Callable[[argparse.ArgumentParser], None]:
    """What names a query, signal or update, and its arguments."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("workflow_id")
        parser.add_argument("name", help=f"the {kind}'s name")
        parser.add_argument("-i", "--input", metavar="TEXT", help="arguments: a JSON list, object or value")
        if kind != "query":
            parser.add_argument("--request-id", metavar="ID", help="sent again, it has no further effect")
        if kind == "update":
            parser.add_argument("--wait", action="store_true", help="wait for its result")

    return add


def _stopping(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workflow_id")
    parser.add_argument("-r", "--run-id", metavar="RUN", help="default: the newest run")
    parser.add_argument("--reason")


def _archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workflow_id")
    parser.add_argument("--reason")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workflow_id")
    parser.add_argument("run_id")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")


def _runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-id", action="append", metavar="RUN", help="may be repeated")


_WORKER = _one("worker_id", "the worker's id")
_WORKFLOW = _one("workflow_id", "the workflow's id")

COMMANDS: Sequence[Command] = (
    Command("worker:list", worker_list, _table("workers", _WORKER_COLUMNS), _workers_filter),
    Command("worker:describe", worker_describe, _pairs, _WORKER),
    Command("worker:deregister", worker_deregister, _pairs, _WORKER),
    Command(
        "task-queue:build-ids", build_ids, _table("build_ids", _BUILD_COLUMNS), _one("name", "the task queue")
    ),
    Command("task-queue:drain", drain, _pairs, _build),
    Command("task-queue:resume", resume, _pairs, _build),
    Command("workflow:query", workflow_query, _answer, _call("query")),
    Command("workflow:signal", workflow_signal, _pairs, _call("signal")),
    Command("workflow:update", workflow_update, _pairs, _call("update")),
    Command("workflow:cancel", workflow_cancel, _pairs, _stopping),
    Command("workflow:terminate", workflow_terminate, _pairs, _stopping),
    Command("workflow:list-runs", workflow_list_runs, _table("runs", _RUN_COLUMNS), _WORKFLOW),
    Command("workflow:repair", workflow_repair, _pairs, _WORKFLOW),
    Command("workflow:archive", workflow_archive, _pairs, _archive),
    Command("workflow:history-export", workflow_history_export, _document, _export),
    Command("debug", workflow_debug, _without_echo, _WORKFLOW),
    Command("system:repair-status", repair_status, _document, _none),
    Command("system:repair-pass", repair_pass, _pairs, _runs),
    Command("system:retention-status", retention_status, _pairs, _none),
    Command("system:retention-pass", retention_pass, _pairs, _runs),
    Command("system:activity-timeout-status", activity_timeout_status, _pairs, _none),
    Command("system:activity-timeout-pass", activity_timeout_pass, _pairs, _none),
    Command("system:metrics", system_metrics, _document, _none),
    Command("system:operator-metrics", operator_metrics, _document, _none),
)
