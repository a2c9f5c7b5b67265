"""Any request gets an answer that the OpenAPI document names, and never an unexpected 5xx.

Half of the generated ids are those of things that exist, so that requests get past "not found".
Waits are cut short.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from nodes.api.openapi.document import build
from nodes.api.table import ROUTES
from tests.cluster_processes import Cluster, make_cluster
from tests.conftest import SharedServers
from tests.wire import HEADERS

EXAMPLES = 4
"""Of each operation: enough to find what no operation may do, few enough for every run."""
EXPECTED = {
    "update_validation_execution_timeout",
    "query_worker_timeout",
    "query_task_not_claimed",
    "rpc_unavailable",
    "rpc_timeout",
}
"""Reasons of 5xx answers that say what happened: nobody was there to answer."""


def no_unexpected_5xx(_context: Any, response: Any, _case: Any) -> None:
    """A check: the server fails only for want of a worker."""
    assert response.status_code < 500 or response.json()["reason"] in EXPECTED, response.content


CHECKS = [no_unexpected_5xx, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {
    "namespace": "default",
    "workflow_id": "known",
    "schedule_id": "known",
    "activity_id": "known-activity",
    "worker_id": "known",
    "task_queue": "known",
    "name": "Known",
}
WAITS = ("timeout_seconds", "wait_timeout_seconds")
schema = schemathesis.openapi.from_dict(build(ROUTES))


@pytest.fixture(scope="module")
def served(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    environ = {"HEADRACE_KEY_PREFIX": f"c{uuid4().hex[:8]}", "DW_WORKER_POLL_TIMEOUT": "0"}
    environ["DW_QUERY_TASK_TIMEOUT"] = "1"
    environ["DW_V2_UPDATE_WAIT_COMPLETION_TIMEOUT_SECONDS"] = "1"
    directory = tmp_path_factory.mktemp("served")
    with make_cluster(1, shared_servers.get("valkey").url, directory, environ) as made:
        trio.run(made.start)
        _fill(made.url)
        yield made


def _fill(url: str) -> None:
    """Something to find: one of each kind."""
    action = {"workflow_type": "t", "task_queue": "known"}
    with httpx.Client(base_url=url, headers=HEADERS, trust_env=False) as client:
        for path, body in (
            ("workflows", {"workflow_id": "known", **action}),
            ("schedules", {"schedule_id": "known", "spec": {}, "action": action}),
            ("activities", {"activity_id": "known-activity", "activity_type": "a", "task_queue": "known"}),
            ("search-attributes", {"name": "Known", "type": "keyword"}),
            ("worker/register", {"worker_id": "known", "task_queue": "known", "runtime": "python"}),
        ):
            client.post(f"/api/{path}", json=body).raise_for_status()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_described(case: Any, served: Cluster) -> None:
    for name in case.path_parameters or {}:
        if name in KNOWN and len(str(case.path_parameters[name])) % 2:
            case.path_parameters[name] = KNOWN[name]
    case.headers["X-Namespace"] = "default"
    for fields in (case.query, case.body):
        for name in WAITS:
            if isinstance(fields, MutableMapping) and (name in fields or "wait" in fields):
                fields[name] = 1
    if case.path.endswith("/wait"):
        case.query["timeout_seconds"] = 1
    elif "/rpc/" in case.path and isinstance(case.body, MutableMapping):
        case.body["timeout_seconds"] = 0.1
    case.call_and_validate(base_url=served.url, checks=CHECKS, timeout=30)
