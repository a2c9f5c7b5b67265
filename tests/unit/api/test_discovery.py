"""What a node says of itself: where to go, what it can do, whether it is well."""

from __future__ import annotations

from cluster.errors import ValidationFailed
from cluster.workflows.commands import COMMAND_TYPES, normalise
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Client
from tests.unit.api.runs import CLAIM, poll


async def test_the_front_says_where_to_go(client: Client) -> None:
    front = await client.send("GET", "/")
    assert (front.status, front.body["name"]) == (200, "Headrace")
    for place in ("openapi", "health", "ready", "cluster_info", "metrics"):
        found = await client.send("GET", front.body["links"][place])
        assert found.status in (200, 401, 503), place
    assert (await client.send("HEAD", "/")).status == 200


async def test_only_applied_commands_are_advertised(client: Client) -> None:
    info = (await client.send("GET", "/api/cluster/info")).body
    advertised = info["worker_protocol"]["server_capabilities"]["supported_workflow_task_commands"]

    assert advertised == list(COMMAND_TYPES)
    for name in ("start_service_operation", *advertised):
        try:
            normalise([{"type": name}])
            known = True
        except ValidationFailed as fault:
            known = "commands.0.type" not in fault.errors
        assert known == (name in advertised), name


async def test_cluster_info_carries_no_version_header(client: Client) -> None:
    answer = await client.send("GET", "/api/cluster/info")

    assert not any(name.startswith("x-durable-workflow") for name in answer.headers)
    assert answer.body["limits"]["max_payload_bytes"] == 2097152
    assert answer.body["worker_protocol"]["version"] == "1.20"
    assert answer.body["control_plane"]["version"] == "2"
    stages = answer.body["control_plane"]["request_contract"]["operations"]["update"]["fields"]["wait_for"]
    assert stages["canonical_values"] == ["accepted", "completed"]
    assert "namespace" not in answer.body


async def test_health_and_readiness(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="token")

    health = await client.send("GET", "/api/health")
    unset = await client.send("GET", "/api/ready")

    assert (health.status, health.body["status"], health.body["checks"]) == (
        200,
        "serving",
        {"database": "ok"},
    )
    assert (unset.status, unset.body["status"]) == (503, "not_ready")
    assert unset.body["checks"]["auth"]["status"] == "missing"
    assert unset.body["checks"]["migrations"] == {"status": "ok"}
    assert unset.body["checks"]["default_namespace"] == {"status": "ok", "namespace": "default"}
    assert unset.body["checks"]["cache"] == {"status": "ok", "store": "redis"}
    assert client.node.store.strings == {}


async def test_a_node_that_leaves_is_not_ready(client: Client) -> None:
    assert (await client.send("GET", "/api/ready")).status == 200
    client.node.stopping = True
    assert (await client.send("GET", "/api/ready")).status == 503
    assert (await client.send("GET", "/api/health")).status == 200


async def test_metrics_name_what_happened(client: Client) -> None:
    await poll(client, "workflow")
    await client.worker(
        "POST", "workflow-tasks/x/complete", CLAIM | {"commands": [{"type": "complete_workflow"}]}
    )
    await client.send("GET", "/api/secret-path")

    text = (await client.send("GET", "/metrics")).body.decode()

    assert 'headrace_http_requests_total{route="/api/worker/register",status="2xx"} 1.0' in text
    assert 'headrace_http_requests_total{route="unmatched",status="4xx"} 1.0' in text
    assert 'headrace_polls_total{kind="workflow",status="empty"} 1.0' in text
    assert 'headrace_tasks_total{kind="workflow",outcome="completed"} 1.0' in text
    assert "headrace_partitions_owned 2.0" in text
    assert "headrace_store_commands_total 7.0" in text
    assert "headrace_build_info{" in text
    assert "secret-path" not in text
