"""Health, readiness, and what this server says it can do.

Only what works is advertised: clients switch behaviour on by it (sdk-wire 1.5).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import trio
from ulid import ULID

from cluster.errors import StoreError
from cluster.settings.schema import AuthDriver, Settings
from cluster.times import iso_seconds
from cluster.version import VERSION
from cluster.workers import RECEIPT_SECONDS
from cluster.workflows.commands import COMMAND_TYPES
from nodes.api import bridges, compression, documents
from nodes.api.auth import Principal, credentials
from nodes.api.call import Call
from nodes.api.fleet_info import task_repair, worker_fleet
from nodes.api.ports import NodePort
from nodes.api.routes import Reply, Role
from nodes.api.versions import CONTROL_VERSION, WORKER_VERSION
from nodes.streams.versions import VERSIONS as STREAM_VERSIONS

HISTORY_COMPRESSION_THRESHOLD: Final = 50
PROBE_SECONDS: Final = 1.5
"""Longest time a health or readiness check waits for the store."""

_PROVENANCE_BYTES: Final = 64 * 1024

_AUTH_COMPOSITION: Final[Mapping[str, Any]] = {
    "schema": "durable-workflow.v2.auth-composition.contract",
    "version": 1,
    "precedence": {
        "connection_values": ["flag", "environment", "profile", "default"],
        "profile_selection": ["flag_env", "DW_ENV", "default"],
    },
    "canonical_environment": {
        "server_url": "DURABLE_WORKFLOW_SERVER_URL",
        "namespace": "DURABLE_WORKFLOW_NAMESPACE",
        "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
        "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
        "profile": "DW_ENV",
    },
    "auth_material": {
        "token": {"status": "supported", "effective_config_value": "redacted"},
        "mtls": {"status": "reserved"},
        "signed_headers": {"status": "reserved"},
    },
    "effective_config": {
        "required_fields": ["server_url", "namespace", "profile", "auth", "tls", "identity"]
    },
    "redaction": {"never_echo": ["bearer_tokens", "private_keys", "raw_authorization_headers"]},
}

_REQUEST_CONTRACT: Final[Mapping[str, Any]] = {
    "schema": "durable-workflow.v2.control-plane-request.contract",
    "version": 1,
    "operations": {
        "update": {"fields": {"wait_for": {"canonical_values": ["accepted", "completed"]}}},
        "list": {"fields": {"status": {"canonical_values": ["running", "completed", "failed"]}}},
        "start": {
            "fields": {"duplicate_policy": {"canonical_values": ["fail", "use-existing"]}},
            "rejected_fields": [
                "workflow_execution_timeout",
                "workflow_run_timeout",
                "workflow_task_timeout",
                "retry_policy",
                "idempotency_key",
                "request_id",
            ],
        },
    },
}


def _encodings(settings: Settings) -> list[str]:
    return list(compression.ENCODINGS) if settings.compression_enabled else []


def server_capabilities(settings: Settings) -> dict[str, Any]:
    """The ``server_capabilities`` object of the worker plane (server-behaviour 1.5)."""
    return {
        "long_poll_timeout": settings.worker_poll_timeout,
        "supported_workflow_task_commands": list(COMMAND_TYPES),
        "workflow_task_poll_request_idempotency": True,
        "history_page_size_default": settings.history_page_size_default,
        "history_page_size_max": settings.history_page_size_max,
        "query_tasks": True,
        "poll_status": True,
        "activity_retry_policy": True,
        "activity_timeouts": True,
        "child_workflow_retry_policy": True,
        "child_workflow_timeouts": True,
        "parent_close_policy": True,
        "workflow_memo_updates": {"supported": True},
        "update_validation_tasks": True,
        "synchronous_update_validation": {
            "supported": True,
            "acceptance_boundary": "validator_approved",
            "worker_capability": "update_validation_tasks",
            "workflow_contract_field": "update_validators",
            "task_poll": {
                "strategy": "multiplexed",
                "endpoint": "/worker/workflow-tasks/poll",
                "request_field": "task_kinds",
                "response_discriminator": "task.task_kind",
                "task_kinds": ["workflow", "update_validation"],
            },
        },
        "worker_sessions": {
            "supported": True,
            "minimum_protocol_version": "1.18",
            "implementation": "typed_worker_session",
        },
        "sticky_execution": {
            "supported": True,
            "minimum_protocol_version": "1.18",
            "implementation": "bounded_durable_history_cache",
        },
        "non_retryable_failures": True,
        "response_compression": _encodings(settings),
        "history_compression": {
            "supported_encodings": list(compression.ENCODINGS),
            "compression_threshold": HISTORY_COMPRESSION_THRESHOLD,
        },
        "worker_deregistration_fencing": {
            "supported": True,
            "schema": "durable-workflow.v2.worker-deregistration.v1",
            "endpoint": "/worker/registrations/{workerId}/deregister",
            "receipt_retention_seconds": RECEIPT_SECONDS,
        },
    }


def _client_compatibility() -> dict[str, Any]:
    return {
        "schema": "durable-workflow.v2.client-compatibility",
        "version": 1,
        "authority": "protocol_manifests",
        "top_level_version_role": "informational",
        "fail_closed": True,
        "required_protocols": {"control_plane": CONTROL_VERSION, "worker_protocol": WORKER_VERSION},
        "clients": {
            "cli": {"supported_versions": ">=0.1,<3.0"},
            "sdk-python": {"supported_versions": ">=0.4,<3.0"},
        },
    }


async def cluster_info(call: Call) -> Reply:
    """``GET /api/cluster/info``."""
    settings = call.node.settings
    capabilities = server_capabilities(settings)
    return Reply(
        {
            **_provenance(settings, call.principal),
            "server_id": settings.server_id,
            "version": VERSION,
            "default_namespace": settings.default_namespace.lower(),
            "capabilities": {
                "workflow_tasks": True,
                "activity_tasks": True,
                "queries": True,
                "activity_timeouts": True,
                "activity_retry_policy": True,
                "non_retryable_failures": True,
                "history_retention": True,
                "history_export": True,
                "schedules": True,
                "standalone_activities": True,
                "search_attributes": True,
                "bridge_adapter_outcome_contract": True,
                "flows": True,
                "worker_streams": True,
                "payload_codec_envelope": True,
                "payload_codec_envelope_responses": True,
                "payload_codecs": ["avro"],
                "response_compression": _encodings(settings),
            },
            "limits": {
                "max_payload_bytes": settings.max_payload_bytes,
                "max_memo_bytes": settings.max_memo_bytes,
                "max_search_attributes": settings.max_search_attributes,
                "max_search_attribute_key_length": settings.max_search_attribute_key_length,
                "max_search_attribute_value_bytes": settings.max_search_attribute_value_bytes,
                "max_operation_name_length": settings.max_operation_name_length,
                "max_pending_activities": settings.max_pending_activities,
                "max_pending_children": settings.max_pending_children,
            },
            "structural_limits": asdict(call.node.engine.limits),
            "worker_fleet": await worker_fleet(call),
            "task_repair": await task_repair(call),
            "bridge_adapter_outcome_contract": bridges.CONTRACT,
            "client_compatibility": _client_compatibility(),
            "auth_composition_contract": _AUTH_COMPOSITION,
            "control_plane": {
                "version": CONTROL_VERSION,
                "header": "X-Durable-Workflow-Control-Plane-Version",
                "request_contract": _REQUEST_CONTRACT,
            },
            "worker_protocol": {
                "version": WORKER_VERSION,
                "header": "X-Durable-Workflow-Protocol-Version",
                "server_capabilities": capabilities,
            },
            "stream_protocol": {
                "versions": STREAM_VERSIONS,
                "header": "X-Headrace-Stream-Versions",
                "endpoint": "/api/streams",
                "carriers": ["websocket", "http2"],
            },
        }
    )


async def live(call: Call) -> Reply:
    """``GET /api/live``: this process answers, whatever its store does. A probe that restarts asks this."""
    return Reply({"status": "live", "timestamp": iso_seconds(call.node.clock.now_ms())})


def _provenance(settings: Settings, principal: Principal | None) -> dict[str, Any]:
    """What was built into this installation, for administrators, if the operator wants it shown."""
    if not settings.expose_package_provenance or principal is None:
        return {}
    if not principal.full_access and Role.ADMIN not in principal.all_roles:
        return {}
    try:
        text = Path(settings.package_provenance_path).read_bytes()[:_PROVENANCE_BYTES]
    except OSError:
        return {}
    try:
        return {"package_provenance": documents.read(text)}
    except documents.DocumentError:
        return {"package_provenance": {"text": text.decode("utf-8", "replace")}}


async def health(call: Call) -> Reply:
    """``GET /api/health``: whether this process serves and sees its store."""
    ok = await _database(call.node) != "unavailable"
    return Reply(
        {
            "status": "serving" if ok else "degraded",
            "timestamp": iso_seconds(call.node.clock.now_ms()),
            "checks": {"database": "ok" if ok else "unavailable"},
        },
        200 if ok else 503,
    )


async def ready(call: Call) -> Reply:
    """``GET /api/ready``: whether requests should be sent to this node."""
    node = call.node
    found: dict[str, Any] = {}

    async def look(name: str, check: Callable[[NodePort], Awaitable[Any]]) -> None:
        found[name] = await check(node)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, "database", _database)
        nursery.start_soon(look, "namespace", _default_namespace)
        nursery.start_soon(look, "cache", _probe)
    database = found["database"]
    checks: dict[str, dict[str, Any]] = {
        "database": {"status": "ok" if database != "unavailable" else database},
        "migrations": {"status": database},
        "default_namespace": found["namespace"],
        "cache": {"status": found["cache"], "store": "redis"},
        "auth": _auth(node.settings),
    }
    if database == "missing":
        checks["migrations"]["remediation"] = "Start a node, or run the bootstrap command."
    ok = not node.stopping and all(check["status"] == "ok" for check in checks.values())
    return Reply(
        {
            "status": "ready" if ok else "not_ready",
            "timestamp": iso_seconds(node.clock.now_ms()),
            "checks": checks,
        },
        200 if ok else 503,
    )


async def _database(node: NodePort) -> str:
    """``ok``, ``missing`` (the store was never bootstrapped) or ``unavailable``."""
    with trio.move_on_after(PROBE_SECONDS):
        try:
            found = await node.store.call("EXISTS", node.store.keys.cluster(), idempotent=True)
        except StoreError:
            return "unavailable"
        return "ok" if found else "missing"
    return "unavailable"


async def _default_namespace(node: NodePort) -> dict[str, Any]:
    name = node.settings.default_namespace.lower()
    with trio.move_on_after(PROBE_SECONDS):
        try:
            found = await node.namespaces.get(name)
        except StoreError:
            return {"status": "unavailable", "namespace": name}
        if found is not None:
            return {"status": "ok", "namespace": name}
        return {
            "status": "missing",
            "namespace": name,
            "remediation": "Create the namespace, or correct DW_DEFAULT_NAMESPACE.",
        }
    return {"status": "unavailable", "namespace": name}


async def _probe(node: NodePort) -> str:
    """Write, read and delete a random key."""
    key = node.store.keys.probe(str(ULID()))
    with trio.move_on_after(PROBE_SECONDS):
        try:
            await node.store.call("SET", key, "1", "EX", 10, idempotent=True)
            seen = await node.store.call("GET", key, idempotent=True)
            await node.store.call("DEL", key, idempotent=True)
        except StoreError:
            return "unavailable"
        return "ok" if seen == b"1" else "invalid"
    return "unavailable"


def _auth(settings: Settings) -> dict[str, Any]:
    driver = settings.auth_driver
    if settings.auth_provider is not None:  # one that cannot be loaded keeps a node from starting
        return {"status": "ok", "driver": "custom", "provider": settings.auth_provider}
    if driver is AuthDriver.NONE or credentials(settings).usable:
        return {"status": "ok", "driver": driver.value}
    name = "DW_SIGNATURE_KEY" if driver is AuthDriver.SIGNATURE else "DW_AUTH_TOKEN"
    return {
        "status": "missing",
        "driver": driver.value,
        "remediation": f"Set {name} or the keys of the single roles.",
    }
