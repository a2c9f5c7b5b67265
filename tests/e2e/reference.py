"""``docs/metrics.md`` and ``docs/reasons.md``, written from the code.

``python -m tests.e2e.reference`` rewrites them; a test fails when they are not up to date.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster import errors
from nodes.api.openapi.document import build
from nodes.api.table import ROUTES
from tests.cluster_processes import make_cluster
from tests.e2e.programs import TOP
from tests.servers import run_server

METRICS = TOP / "docs/metrics.md"
REASONS = TOP / "docs/reasons.md"

_METRICS_HEAD = """# Metrics

`GET /metrics` of a node, in Prometheus' text format. Names that begin with `headrace_step_`,
`headrace_matching_` and `headrace_stream` begin with `HEADRACE_METRICS_PREFIX` instead when that is set.
Gauges of queues cover the partitions that a node holds: add them up over the nodes, and take the maximum of
an age. [Deployment](deployment.md#alerts-and-the-dashboard) has rules and a dashboard. This page is made from
the code.

| metric | type | labels | says |
| --- | --- | --- | --- |
"""
_REASONS_HEAD = """# Reasons

Every answer that is not a success has a `reason`, which never changes its meaning, and a text for people,
which may. Branch on the reason. Statuses 502, 503 and 504 and `store_contended` are worth a repetition under
the same request id; the others stay as they are until the request changes. This page is made from the code.

| reason | status | says |
| --- | --- | --- |
"""
_MADE_UP = {
    "flow_closed": "The flow has ended.",
    "invalid_commands": "The commands of a completion contradict each other or the run; `errors` says which.",
    "invalid_query_arguments": "The arguments do not fit what the worker declared for the query.",
    "invalid_signal_arguments": "The arguments do not fit what the worker declared for the signal.",
    "invalid_update_arguments": "The arguments do not fit what the worker declared for the update.",
    "missing_control_plane_version": "The header X-Durable-Workflow-Control-Plane-Version is missing.",
    "missing_protocol_version": "The header X-Durable-Workflow-Protocol-Version is missing.",
    "query_not_found": "The worker does not know the query.",
    "query_payload_decode_failed": "The worker could not decode the query's arguments.",
    "query_rejected": "The worker's handler refused the query.",
    "query_task_attempt_mismatch": "The query task is leased under another attempt.",
    "query_task_not_found": "The query task is not known (any more).",
    "query_task_not_leased": "The query task is not leased, or its lease has run out.",
    "query_workflow_state_unavailable": "The worker could not rebuild the workflow to answer.",
    "rejected_unknown_query": "No worker of the workflow's type declared this query.",
    "rpc_failed": "The handler of the RPC failed; `failure` has its words.",
    "run_already_closed": "The run has ended.",
    "run_cancelled": "The run was cancelled; the answer of its activity is not wanted.",
    "run_closed": "The run has ended; `run_closed_reason` says how.",
    "run_terminated": "The run was terminated; the answer of its activity is not wanted.",
    "run_timed_out": "The run has timed out.",
    "stale_update_validation_completion": "The update was decided otherwise, or leased anew.",
    "structural_limit_exceeded": "A run or flow would have more open operations, or larger, than it may.",
    "unauthorized": "The credential is missing or wrong.",
    "unknown_signal": "No worker of the workflow's type declared this signal.",
    "unknown_update": "No worker of the workflow's type declared this update.",
    "unsupported_control_plane_version": "This version of the control plane is not served.",
    "unsupported_protocol_version": "This version of the protocol is not served; `supported` says which are.",
    "update_failed": "The update's handler failed; `failure` has its words.",
    "update_validation_execution_timeout": "No worker ran the update's validator in time.",
    "update_validation_lease_expired": "The lease of the validation has run out.",
    "update_validation_task_not_found": "The validation is not known (any more).",
    "update_validation_task_not_leased": "The validation is not leased.",
    "update_validator_rejected": "The update's validator refused it; `failure` has its words.",
    "validation_failed": "Fields are missing or wrong; `errors` maps each to what is wrong with it.",
    "worker_session_held": "Another worker holds the session.",
    "worker_session_limit_reached": "The worker holds as many sessions as it registered.",
    "worker_session_lost": "The session's holder fell silent; the session is over.",
    "worker_session_not_found": "The session is not known (any more).",
}
"""What the code puts together; the rest is read from it."""
_LABELS = {
    "headrace_http_requests": ("route", "status"),
    "headrace_http_request_seconds": ("route",),
    "headrace_polls": ("kind", "status"),
    "headrace_tasks": ("kind", "outcome"),
}
"""Of metrics that have no sample before something happened."""


# -- metrics --------------------------------------------------------------------------------------


def metrics_page(scraped: str) -> str:
    """The page for what a node shows."""
    families = sorted(text_string_to_metric_families(scraped), key=lambda family: family.name)
    return _METRICS_HEAD + "".join(map(_metric_row, families))


def _metric_row(family: Metric) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    seen = {label for sample in family.samples for label in sample.labels} - {"le"}
    shown = ", ".join(f"`{label}`" for label in sorted(seen | set(_LABELS.get(family.name, ()))))
    return f"| `{name}` | {family.type} | {shown} | {family.documentation} |\n"


# -- reasons --------------------------------------------------------------------------------------


def reasons_page() -> str:
    """The page of all reasons: statuses from the interface's description, texts from the code."""
    statuses = _described()
    statuses["too_many_attempts"] = {"429"}  # the console's login, which is no part of the interface
    texts: dict[str, list[str]] = {}
    for package in ("cluster", "nodes/api", "nodes/console/attempts.py"):
        found = TOP / package
        for path in [found] if found.is_file() else sorted(found.rglob("*.py")):
            for name, text in _refusals(ast.parse(path.read_text())):
                if text not in texts.setdefault(name, []):
                    texts[name].append(text)
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.StoreError):
            texts[kind.reason] = [(kind.__doc__ or "").strip().splitlines()[0]]
    rows = []
    for name, answered in sorted(statuses.items()):
        text = " · ".join(texts.get(name) or [_MADE_UP[name]]).replace("|", "\\|")
        rows.append(f"| `{name}` | {', '.join(sorted(answered))} | {text} |\n")
    return _REASONS_HEAD + "".join(rows)


def _described() -> dict[str, set[str]]:
    """Statuses of each reason in the OpenAPI document, which tests hold against real answers."""
    found: dict[str, set[str]] = {}
    for operations in build(ROUTES)["paths"].values():
        for operation in operations.values():
            for status, response in operation.get("responses", {}).items():
                for name in _enumerated(response):
                    found.setdefault(name, set()).add(status)
    return found


def _enumerated(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).get("reason", {}).get("enum", ())
        for part in schema.values():
            yield from _enumerated(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _enumerated(part)


def _refusals(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Reason and text of each ``Refused(reason, text)`` whose reason stands there literally."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        locals_: dict[str, ast.expr] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                locals_[node.targets[0].id] = node.value
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refused":
                match node.args:
                    case [ast.Constant(value=str(name)), text, *_]:
                        shown = _text(locals_.get(text.id, text) if isinstance(text, ast.Name) else text)
                        if shown:
                            yield name, shown


def _text(expression: ast.expr) -> str:
    """A literal text, with … for what is filled in."""
    match expression:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
    return ""


# -- both -----------------------------------------------------------------------------------------


async def scrape(directory: Path) -> str:
    """What a fresh node of a fresh cluster shows."""
    with run_server("valkey", directory) as server, make_cluster(1, server.url, directory) as cluster:
        await cluster.start()
        async with httpx.AsyncClient(base_url=cluster.url, trust_env=False) as client:
            return (await client.get("/metrics")).text


if __name__ == "__main__":
    REASONS.write_text(reasons_page())
    with TemporaryDirectory() as directory:
        METRICS.write_text(metrics_page(trio.run(scrape, Path(directory))))
