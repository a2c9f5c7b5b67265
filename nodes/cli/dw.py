"""The ``dw`` command: operate a server over HTTP (``server-behaviour 10``).

Only commands whose routes exist are offered.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from cluster.version import VERSION
from nodes.cli import task_queues, upkeep
from nodes.cli.api_client import CONTROL_PLANE_VERSION, ApiClient, CallFailed, ExitCode
from nodes.cli.console import complain
from nodes.cli.output import columns, pairs

Result = dict[str, Any]
WAIT_SECONDS = 1.0
HISTORY_PAGE = 1000


def server_health(client: ApiClient, _: argparse.Namespace) -> Result:
    """show whether the server serves"""
    return client.call("GET", "/health")


def server_info(client: ApiClient, _: argparse.Namespace) -> Result:
    """show the server's version; with --json also its limits and capabilities"""
    info = client.call("GET", "/cluster/info")
    version = info.get("control_plane", {}).get("version")
    if str(version) != CONTROL_PLANE_VERSION:
        raise CallFailed(
            f"the server speaks control plane version {version}, dw speaks {CONTROL_PLANE_VERSION}",
            ExitCode.INCOMPATIBLE,
            body=info,
        )
    return info


def namespace_list(client: ApiClient, _: argparse.Namespace) -> Result:
    """list the namespaces"""
    return client.call("GET", "/namespaces")


def namespace_describe(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """show one namespace"""
    return client.call("GET", f"/namespaces/{quote(arguments.name, safe='')}")


def namespace_create(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """create a namespace"""
    body = {
        "name": arguments.name,
        "description": arguments.description,
        "retention_days": arguments.retention_days,
    }
    return client.call("POST", "/namespaces", body=body)


def namespace_update(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """change a namespace's description or retention"""
    body = {"description": arguments.description, "retention_days": arguments.retention_days}
    return client.call("PUT", f"/namespaces/{quote(arguments.name, safe='')}", body=body)


def workflow_start(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """start a workflow"""
    body = {
        "workflow_type": arguments.type,
        "workflow_id": arguments.workflow_id,
        "task_queue": arguments.task_queue,
        "business_key": arguments.business_key,
        "duplicate_policy": arguments.duplicate_policy,
        "execution_timeout_seconds": arguments.execution_timeout,
        "run_timeout_seconds": arguments.run_timeout,
        "memo": None if arguments.memo is None else _json_object(arguments.memo, "--memo"),
        "search_attributes": dict(arguments.search_attr) or None,
        "input": _input(arguments),
    }
    started = client.call("POST", "/workflows", body=body)
    if not arguments.wait:
        return started
    while True:
        path = f"/workflows/{quote(started['workflow_id'], safe='')}/runs/{quote(started['run_id'], safe='')}"
        run = client.call("GET", path)
        if run.get("is_terminal"):
            shown = {key: run.get(key) for key in ("status", "status_bucket", "is_terminal", "output")}
            return started | shown
        time.sleep(WAIT_SECONDS)


def workflow_list(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """list workflows, newest first"""
    query = {
        "workflow_type": arguments.type,
        "status": arguments.status,
        "query": arguments.query,
        "page_size": arguments.limit,
    }
    return client.call("GET", "/workflows", query=query)


def workflow_describe(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """show one workflow"""
    path = f"/workflows/{quote(arguments.workflow_id, safe='')}"
    if arguments.run_id:
        path += f"/runs/{quote(arguments.run_id, safe='')}"
    return client.call("GET", path)


def workflow_history(client: ApiClient, arguments: argparse.Namespace) -> Result:
    """show all events of a run"""
    workflow = f"/workflows/{quote(arguments.workflow_id, safe='')}"
    run_id = arguments.run_id or client.call("GET", workflow)["run_id"]
    path = f"{workflow}/runs/{quote(run_id, safe='')}/history"
    events: list[Any] = []
    token: str | None = None
    while True:
        page = client.call("GET", path, query={"page_size": arguments.page_size, "next_page_token": token})
        events += page.get("events", [])
        token = page.get("next_page_token")
        if not token:
            return page | {"events": events}


def _json_object(text: str, option: str) -> Any:
    value = _json(text, option)
    if not isinstance(value, dict):
        raise CallFailed(f"{option} must be a JSON object", ExitCode.REFUSED)
    return value


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CallFailed(f"{option} is not JSON: {error}", ExitCode.REFUSED) from error


def _input(arguments: argparse.Namespace) -> Any:
    text = arguments.input
    if arguments.input_file is not None:
        try:
            text = arguments.input_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CallFailed(f"cannot read {arguments.input_file}: {error}", ExitCode.REFUSED) from error
    if text is None:
        return None
    if arguments.input_encoding == "raw":
        return [text]
    value = _json(text, "the input")
    return value if isinstance(value, list | dict) else [value]


_WORKFLOW_COLUMNS = ("workflow_id", "run_id", "workflow_type", "status", "task_queue", "started_at")
_TABLES: Mapping[Any, tuple[str, Sequence[str]]] = {
    namespace_list: ("namespaces", ("name", "status", "retention_days", "description")),
    workflow_list: ("workflows", _WORKFLOW_COLUMNS),
    workflow_history: ("events", ("sequence", "event_type", "timestamp")),
}
_SHOWN = {run: show for _, run, show in task_queues.COMMANDS}
_SHOWN |= {entry.run: entry.show for entry in upkeep.COMMANDS}
_INFO_KEYS = ("server_id", "version", "default_namespace")


def _print(result: Result, arguments: argparse.Namespace) -> None:
    if arguments.json:
        sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    elif arguments.run in _SHOWN:
        sys.stdout.write(_SHOWN[arguments.run](result))
    elif arguments.run in _TABLES:
        key, names = _TABLES[arguments.run]
        sys.stdout.write(columns(result.get(key, []), names))
    elif arguments.run is server_info:
        versions = {
            name: result.get(name, {}).get("version") for name in ("control_plane", "worker_protocol")
        }
        sys.stdout.write(pairs({key: result.get(key) for key in _INFO_KEYS} | versions))
    else:
        shown = {key: value for key, value in result.items() if key != "control_plane"}
        sys.stdout.write(pairs(shown))


def _attribute(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _flag(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _shared(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    def variable(*names: str, default: str | None = None) -> str | None:
        return next((environ[name] for name in names if environ.get(name)), default)

    shared = argparse.ArgumentParser(add_help=False)
    group = shared.add_argument_group("connection")
    group.add_argument(
        "-s",
        "--server",
        metavar="URL",
        default=variable("DURABLE_WORKFLOW_SERVER_URL", "DW_SERVER_URL", default="http://localhost:8080"),
        help="the server (DURABLE_WORKFLOW_SERVER_URL; now %(default)s)",
    )
    group.add_argument(
        "--namespace",
        metavar="NAME",
        default=variable("DURABLE_WORKFLOW_NAMESPACE", default="default"),
        help="the namespace (DURABLE_WORKFLOW_NAMESPACE; now %(default)s)",
    )
    group.add_argument(
        "--token",
        default=variable("DURABLE_WORKFLOW_AUTH_TOKEN"),
        help="bearer token, better put in DURABLE_WORKFLOW_AUTH_TOKEN",
    )
    group.add_argument(
        "--tls-verify",
        type=_flag,
        metavar="BOOL",
        default=variable("DURABLE_WORKFLOW_TLS_VERIFY", default="true"),
        help="check the server's certificate (DURABLE_WORKFLOW_TLS_VERIFY)",
    )
    group.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    return shared


def build_parser(environ: Mapping[str, str]) -> tuple[argparse.ArgumentParser, Collection[str]]:
    """The parser of all commands, and their names; defaults come from ``environ``."""
    parser = argparse.ArgumentParser(prog="dw", description="Operate a durable workflow server.")
    parser.add_argument("--version", action="version", version=f"dw {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    shared = _shared(environ)

    def command(name: str, run: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[shared], help=run.__doc__, description=run.__doc__)
        added.set_defaults(run=run)
        return added

    command("server:health", server_health)
    command("server:info", server_info)
    command("namespace:list", namespace_list)
    command("namespace:describe", namespace_describe).add_argument("name")
    for name, run in (("namespace:create", namespace_create), ("namespace:update", namespace_update)):
        changed = command(name, run)
        changed.add_argument("name")
        changed.add_argument("-d", "--description")
        changed.add_argument("-r", "--retention-days", type=int, metavar="DAYS")

    for name, run, _ in task_queues.COMMANDS:
        added = command(name, run)
        if run is not task_queues.task_queue_list:
            task_queues.arguments_of(name, added)

    for entry in upkeep.COMMANDS:
        entry.arguments(command(entry.name, entry.run))

    start = command("workflow:start", workflow_start)
    start.add_argument("-t", "--type", required=True, help="workflow type")
    start.add_argument("-w", "--workflow-id", metavar="ID", help="default: drawn by the server")
    start.add_argument("--task-queue", default="default", metavar="QUEUE")
    start.add_argument("--business-key", metavar="KEY")
    start.add_argument("--duplicate-policy", choices=["fail", "use-existing"])
    start.add_argument("--memo", metavar="JSON")
    start.add_argument("--search-attr", type=_attribute, action="append", default=[], metavar="KEY=VALUE")
    start.add_argument("--execution-timeout", type=int, metavar="SECONDS")
    start.add_argument("--run-timeout", type=int, metavar="SECONDS")
    given = start.add_mutually_exclusive_group()
    given.add_argument("-i", "--input", metavar="TEXT", help="arguments: a JSON list, object or value")
    given.add_argument("--input-file", type=Path, metavar="FILE")
    start.add_argument("--input-encoding", choices=["json", "raw"], default="json")
    start.add_argument("--wait", action="store_true", help="wait until the run is closed")

    listing = command("workflow:list", workflow_list)
    listing.add_argument("-t", "--type", help="workflow type")
    listing.add_argument("--status", choices=["running", "completed", "failed"])
    listing.add_argument("--query", help="part of a workflow id or business key")
    listing.add_argument("-l", "--limit", type=int, default=20)

    describe = command("workflow:describe", workflow_describe)
    describe.add_argument("workflow_id")
    describe.add_argument("-r", "--run-id", metavar="RUN")

    history = command("workflow:history", workflow_history)
    history.add_argument("workflow_id")
    history.add_argument("run_id", nargs="?", help="default: the newest run")
    history.add_argument("--page-size", type=int, default=HISTORY_PAGE)
    return parser, commands.choices


def _report(failure: CallFailed, arguments: argparse.Namespace) -> None:
    if not arguments.json:
        reason = f" ({failure.reason})" if failure.reason else ""
        complain(f"{failure}{reason}", "dw")
        for name, texts in (failure.validation_errors or {}).items():
            complain(f"  {name}: {', '.join(texts) if isinstance(texts, list) else texts}", "dw")
        if failure.status == httpx.codes.UNAUTHORIZED and not arguments.token:
            complain("put the token in DURABLE_WORKFLOW_AUTH_TOKEN", "dw")
        return
    report = {
        "error": str(failure),
        "exit_code": int(failure.code),
        "command": arguments.command,
        "namespace": arguments.namespace,
        "status_code": failure.status,
        "reason": failure.reason,
        "validation_errors": failure.validation_errors,
        "server_response": failure.body or None,
    }
    sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The arguments. A command that does not exist is answered with the one that was meant, not with all."""
    parser, commands = build_parser(environ)
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        close = difflib.get_close_matches(argv[0], commands, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        complain(f"no command {argv[0]}{hint}; dw --help lists them", "dw")
        sys.exit(ExitCode.REFUSED)
    return parser.parse_args(argv)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> ExitCode:
    """Run one command; returns what to exit with. Exits by itself on wrong usage."""
    arguments = _parse(argv, environ)
    try:
        with ApiClient(
            arguments.server,
            namespace=arguments.namespace,
            token=arguments.token,
            verify=arguments.tls_verify,
        ) as client:
            _print(arguments.run(client, arguments), arguments)
    except CallFailed as failure:
        _report(failure, arguments)
        return failure.code
    except KeyboardInterrupt:
        return ExitCode.FAILURE
    return ExitCode.OK


def main() -> None:
    """Entry point of the ``dw`` script."""
    sys.exit(run(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
