"""The command lines and settings of the public documentation work as they are written there.

Each is run by bash and curl against a node with the documentation's own settings and tokens.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from tests.cluster_processes import Cluster, environment, make_cluster
from tests.conftest import SharedServers

TOKENS = {
    "DW_AUTH_DRIVER": "token",
    "DW_WORKER_TOKEN": "worker-secret",
    "DW_OPERATOR_TOKEN": "operator-secret",
    "DW_ADMIN_TOKEN": "admin-secret",
    "DW_DEFAULT_NAMESPACE": "default",
}
LIMITS = {
    "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "25",
    "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "100",
    "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE": "500",
    "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE": "2000",
    "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE": "600",
    "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE": "1200",
    "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE": "12000",
    "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE": "24000",
    "DW_QUERY_TASK_MAX_PENDING_PER_QUEUE": "1024",
    "DW_TASK_QUEUE_ADMISSION_OVERRIDES": """{
  "production:payments": {
    "workflow_tasks": {
      "max_active_leases_per_queue": 8,
      "max_dispatches_per_minute": 120,
      "dispatch_budget_group": "downstream-openai",
      "max_dispatches_per_minute_per_budget_group": 600
    },
    "activity_tasks": {
      "max_active_leases_per_queue": 12,
      "max_dispatches_per_minute": 240
    }
  },
  "production:*": {
    "workflow_tasks": {
      "max_active_leases_per_namespace": 300,
      "max_dispatches_per_minute_per_namespace": 6000
    },
    "activity_tasks": {
      "max_active_leases_per_namespace": 1200,
      "max_dispatches_per_minute_per_namespace": 12000
    }
  },
  "email": {
    "activity_tasks": {
      "max_active_leases_per_queue": 4,
      "max_dispatches_per_minute": 60,
      "dispatch_budget_group": "downstream-sendgrid",
      "max_dispatches_per_minute_per_budget_group": 300
    }
  },
  "*": {
    "workflow_tasks": { "max_active_leases_per_queue": 50 }
  }
}""",
}

CREATE_NAMESPACE = r"""
curl -sS -X POST "$DURABLE_WORKFLOW_SERVER_URL/api/namespaces" \
  -H "Authorization: Bearer $DW_ADMIN_TOKEN" \
  -H "X-Durable-Workflow-Control-Plane-Version: 2" \
  -H "Content-Type: application/json" \
  -d '{
    "name": "orders-prod",
    "description": "production order workflows",
    "retention_days": 90
  }'
"""
START = r"""
curl -sS -X POST "$DURABLE_WORKFLOW_SERVER_URL/api/workflows" \
  -H "Authorization: Bearer $DW_OPERATOR_TOKEN" \
  -H "X-Namespace: orders-prod" \
  -H "X-Durable-Workflow-Control-Plane-Version: 2" \
  -H "Content-Type: application/json" \
  -d '{
    "workflow_type": "orders.fulfillment",
    "workflow_id": "order-1001",
    "task_queue": "orders",
    "input": ["order-1001"]
  }'
"""
REGISTER = r"""
curl -sS -X POST "$DURABLE_WORKFLOW_SERVER_URL/api/worker/register" \
  -H "Authorization: Bearer $DW_WORKER_TOKEN" \
  -H "X-Namespace: orders-prod" \
  -H "X-Durable-Workflow-Protocol-Version: 1.0" \
  -H "Content-Type: application/json" \
  -d '{
    "worker_id": "py-orders-1",
    "task_queue": "orders",
    "runtime": "python",
    "sdk_version": "<installed-sdk-version>",
    "build_id": "orders-worker-2026-04-22",
    "supported_workflow_types": ["orders.fulfillment"],
    "workflow_definition_fingerprints": {
      "orders.fulfillment": "sha256:definition-fingerprint"
    },
    "supported_activity_types": ["payments.capture"],
    "max_concurrent_workflow_tasks": 10,
    "max_concurrent_activity_tasks": 50
  }'
"""
POLL = r"""
curl -sS -X POST "$DURABLE_WORKFLOW_SERVER_URL/api/worker/workflow-tasks/poll" \
  -H "Authorization: Bearer $DW_WORKER_TOKEN" \
  -H "X-Namespace: orders-prod" \
  -H "X-Durable-Workflow-Protocol-Version: 1.0" \
  -H "Content-Type: application/json" \
  -d '{
    "worker_id": "py-orders-1",
    "task_queue": "orders",
    "timeout_seconds": 30
  }'
"""
DESCRIBE_QUEUE = r"""
curl -sS "$DURABLE_WORKFLOW_SERVER_URL/api/task-queues/orders" \
  -H "Authorization: Bearer $DW_OPERATOR_TOKEN" \
  -H "X-Namespace: orders-prod" \
  -H "X-Durable-Workflow-Control-Plane-Version: 2" | jq '.pollers, .admission'
"""
REGISTER_PAYMENTS = r"""
curl -sS -X POST "$DURABLE_WORKFLOW_SERVER_URL/api/worker/register" \
  -H "Authorization: Bearer $DW_WORKER_TOKEN" \
  -H "X-Namespace: orders-prod" \
  -H "X-Durable-Workflow-Protocol-Version: 1.0" \
  -H "Content-Type: application/json" \
  -d '{
  "worker_id": "payments-python-1",
  "task_queue": "payments",
  "runtime": "python",
  "supported_workflow_types": ["payments.PaymentWorkflow"],
  "supported_activity_types": ["payments.charge_card", "payments.send_receipt"],
  "max_concurrent_workflow_tasks": 8,
  "max_concurrent_activity_tasks": 12
}'
"""


@contextmanager
def documented_node(servers: SharedServers, directory: Path) -> Iterator[Cluster]:
    """One node with the settings of the documentation, on keys of its own."""
    environ = {**TOKENS, **LIMITS, "HEADRACE_KEY_PREFIX": f"e{uuid4().hex[:8]}"}
    with make_cluster(1, servers.get("valkey").url, directory, environ) as made:
        trio.run(made.start)
        yield made


@pytest.fixture(scope="module")
def documented(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node that the tests here share, in any order."""
    with documented_node(shared_servers, tmp_path_factory.mktemp("documented")) as made:
        yield made


@pytest.fixture
def untouched(shared_servers: SharedServers, tmp_path: Path) -> Iterator[Cluster]:
    """A node on which nothing was done yet."""
    with documented_node(shared_servers, tmp_path) as made:
        yield made


def run(node: Cluster, line: str) -> list[Any]:
    """The JSON documents a command line prints."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env=environment(DURABLE_WORKFLOW_SERVER_URL=node.url, **TOKENS),
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    decoder, rest, found = json.JSONDecoder(), done.stdout.strip(), []
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


def test_every_line_of_the_documentation(untouched: Cluster) -> None:
    (namespace,) = run(untouched, CREATE_NAMESPACE)
    assert (namespace["name"], namespace["retention_days"]) == ("orders-prod", 90)
    (again,) = run(untouched, CREATE_NAMESPACE)
    assert again["reason"] == "namespace_already_exists"

    (started,) = run(untouched, START)
    assert (started["outcome"], started["namespace"]) == ("started_new", "orders-prod")
    assert started["control_plane"]["operation"] == "start"

    (unknown,) = run(untouched, POLL)
    assert (unknown["reason"], unknown["task"]) == ("worker_not_registered", None)
    (registered,) = run(untouched, REGISTER)
    assert (registered["worker_id"], registered["registered"]) == ("py-orders-1", True)
    (registered,) = run(untouched, REGISTER)
    assert registered["registered"] is True
    changed = REGISTER.replace("sha256:definition-fingerprint", "sha256:other")
    assert run(untouched, changed)[0]["reason"] == "workflow_definition_changed"

    (polled,) = run(untouched, POLL)
    assert polled["poll_status"] == "leased"
    assert polled["server_capabilities"]["poll_status"] is True
    task = polled["task"]
    assert (task["workflow_id"], task["workflow_type"]) == ("order-1001", "orders.fulfillment")
    assert task["lease_owner"] == "py-orders-1"
    elsewhere = POLL.replace('"task_queue": "orders"', '"task_queue": "other"')
    assert run(untouched, elsewhere)[0]["reason"] == "task_queue_mismatch"


def test_the_task_queue_shows_its_pollers_and_admission(documented: Cluster) -> None:
    run(documented, CREATE_NAMESPACE)
    run(documented, REGISTER)
    run(documented, REGISTER_PAYMENTS)
    pollers, admission = run(documented, DESCRIBE_QUEUE)
    assert [poller["worker_id"] for poller in pollers] == ["py-orders-1"]
    workflow = admission["workflow_tasks"]
    assert (workflow["configured_slot_count"], workflow["active_worker_count"]) == (10, 1)
    # The override for every queue wins over the global limit of 25.
    assert workflow["server_max_active_leases_per_queue"] == 50
    assert workflow["server_max_dispatches_per_minute"] == 600
    assert admission["activity_tasks"]["server_max_active_leases_per_queue"] == 100
    assert admission["query_tasks"]["max_pending_per_queue"] == 1024


@pytest.mark.parametrize(
    ("line", "header", "reason"),
    [
        (START, "X-Durable-Workflow-Control-Plane-Version: 2", "missing_control_plane_version"),
        (REGISTER, "X-Durable-Workflow-Protocol-Version: 1.0", "missing_protocol_version"),
        (START, "X-Namespace: orders-prod", None),
    ],
)
def test_a_line_without_its_header(documented: Cluster, line: str, header: str, reason: str | None) -> None:
    run(documented, CREATE_NAMESPACE)
    other = line.replace("order-1001", uuid4().hex)
    (answer,) = run(documented, other.replace(f'  -H "{header}" \\\n', ""))
    if reason is None:
        assert answer["namespace"] == "default"
    else:
        assert answer["reason"] == reason


@pytest.mark.parametrize(
    ("line", "right", "wrong"),
    [
        (CREATE_NAMESPACE, "DW_ADMIN_TOKEN", "DW_OPERATOR_TOKEN"),
        (START, "DW_OPERATOR_TOKEN", "DW_WORKER_TOKEN"),
        (REGISTER, "DW_WORKER_TOKEN", "DW_OPERATOR_TOKEN"),
    ],
)
def test_a_line_with_the_wrong_role(documented: Cluster, line: str, right: str, wrong: str) -> None:
    hidden = line.replace("X-Namespace: orders-prod", "X-Namespace: nowhere")
    for attempt in (line, hidden):
        (answer,) = run(documented, attempt.replace(right, wrong))
        assert answer["reason"] == "forbidden"
        assert "namespace" not in answer
