"""Routes of worker registration and liveness (server-behaviour 4.1, 4.2; sdk-wire 2.1 to 2.3)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen
from pydantic import Field, StringConstraints

from cluster.errors import StoreError
from cluster.settings.schema import Settings
from cluster.workers import Announcement
from cluster.workflows.retention import show
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, ShortText, Trimmed
from nodes.api.routes import Reply
from nodes.api.system import retention_cutoff_ms

_MAX_TYPES = 2_000
_MAX_SLOTS = 1_000_000
_LONGEST_INTERVAL = 3_600
_MAX_VITALS = 64

_Types = Annotated[list[ShortText] | None, MaxLen(_MAX_TYPES)]
_Slots = Annotated[Annotated[int, Ge(1), Le(_MAX_SLOTS)] | None, Integer]
_Fingerprint = Annotated[str, MaxLen(255)]
_Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$"), Trimmed]


class Runtime(StrEnum):
    """Runtimes a worker may name."""

    PHP = "php"
    PYTHON = "python"
    RUST = "rust"
    TYPESCRIPT = "typescript"
    GO = "go"
    JAVA = "java"
    EXTERNAL = "external"


class _Register(Fields):
    worker_id: OptionalText = None
    task_queue: ShortText
    runtime: Annotated[Runtime, Trimmed]
    sdk_version: Annotated[Annotated[str, MaxLen(64)] | None, Trimmed] = None
    build_id: OptionalText = None
    supported_workflow_types: _Types = None
    supported_activity_types: _Types = None
    workflow_definition_fingerprints: Annotated[
        dict[str, _Fingerprint | None] | None, Field(max_length=_MAX_TYPES)
    ] = None
    max_concurrent_workflow_tasks: _Slots = None
    max_concurrent_activity_tasks: _Slots = None
    max_concurrent_worker_sessions: _Slots = None
    capabilities: Any = None
    workflow_command_contracts: Any = None
    heartbeat_interval_seconds: Any = None
    task_slots: Any = None
    process_metrics: Any = None


class _Heartbeat(Fields):
    worker_id: ShortText
    task_slots: Any = None
    process_metrics: Any = None


class _Deregister(Fields):
    registration_token: _Token


def _cadence(settings: Settings) -> dict[str, int]:
    """How often a worker should report, and after which silence it counts as stale (seconds)."""
    stale_after = max(1, settings.worker_stale_after_seconds)
    return {"heartbeat_interval_seconds": max(1, stale_after // 3), "stale_after_seconds": stale_after}


def _capabilities(given: Any) -> tuple[str, ...]:
    """Capability names a newer or older client may send; anything else is ignored."""
    if not isinstance(given, list):
        return ()
    return tuple(name for name in given[:64] if isinstance(name, str) and len(name) <= 64)


def _contracts(given: Any) -> dict[str, Any]:
    """Command contracts by workflow type; entries that are no objects are ignored."""
    if not isinstance(given, dict):
        return {}
    return {name: contract for name, contract in given.items() if isinstance(contract, dict)}


def _vitals(task_slots: Any, process_metrics: Any) -> dict[str, Any]:
    """Numbers and short texts about the process; anything else in them is ignored."""
    given = {"task_slots": task_slots, "process_metrics": process_metrics}
    return {name: _scalars(value) for name, value in given.items() if isinstance(value, dict)}


def _scalars(given: dict[str, Any]) -> dict[str, Any]:
    pairs = list(given.items())[:_MAX_VITALS]
    return {
        name: value
        for name, value in pairs
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 255)
    }


def _interval(given: Any) -> int | None:
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return given if is_number and 0 < given <= _LONGEST_INTERVAL else None


async def register(call: Call) -> Reply:
    """``POST /api/worker/register``."""
    body = call.fields(_Register)
    types = body.supported_workflow_types
    registration = await call.node.workers.register(
        Announcement(
            namespace=call.namespace,
            worker_id=body.worker_id,
            task_queue=body.task_queue,
            runtime=body.runtime.value,
            sdk_version=body.sdk_version,
            build_id=body.build_id,
            workflow_types=None if types is None else tuple(types),
            activity_types=tuple(body.supported_activity_types or ()),
            fingerprints=body.workflow_definition_fingerprints,
            max_concurrent_workflow_tasks=body.max_concurrent_workflow_tasks or 100,
            max_concurrent_activity_tasks=body.max_concurrent_activity_tasks or 100,
            max_concurrent_worker_sessions=body.max_concurrent_worker_sessions or 10,
            capabilities=_capabilities(body.capabilities),
            command_contracts=_contracts(body.workflow_command_contracts),
            heartbeat_interval_seconds=_interval(body.heartbeat_interval_seconds),
            vitals=_vitals(body.task_slots, body.process_metrics),
        )
    )
    return Reply(
        {
            "worker_id": registration.worker_id,
            "registered": True,
            "registration_token": registration.token,
            **_cadence(call.node.settings),
        },
        201,
    )


async def heartbeat(call: Call) -> Reply:
    """``POST /api/worker/heartbeat``."""
    body = call.fields(_Heartbeat)
    worker_id = body.worker_id
    await call.node.workers.heartbeat(
        call.namespace, worker_id, _vitals(body.task_slots, body.process_metrics)
    )
    return Reply(
        {
            "worker_id": worker_id,
            "acknowledged": True,
            "retention": await _prune_a_little(call),
            **_cadence(call.node.settings),
        }
    )


async def _prune_a_little(call: Call) -> dict[str, Any]:
    """Heartbeats remove an expired run now and then; that must not make one fail."""
    try:
        _, cutoff_ms = await retention_cutoff_ms(call)
        results = await call.node.retention.take_turn(call.namespace, cutoff_ms)
    except StoreError:
        results = None
    counts = show(results or [])
    return {"throttled": results is None, **counts}


async def deregister(call: Call) -> Reply:
    """``POST /api/worker/registrations/{worker_id}/deregister``: fenced and repeatable."""
    token = call.fields(_Deregister).registration_token
    return await _deregister(call, token)


async def remove(call: Call) -> Reply:
    """``DELETE /api/worker/registrations/{worker_id}``: unfenced."""
    return await _deregister(call, None)


async def _deregister(call: Call, token: str | None) -> Reply:
    receipt = await call.node.workers.deregister(
        call.namespace, call.parameters["worker_id"], token, call.node.engine.release_workflow_tasks
    )
    body: dict[str, Any] = {
        "worker_id": receipt.worker_id,
        "outcome": "deregistered",
        "recovered_workflow_task_count": receipt.recovered_workflow_task_count,
    }
    if token is not None:
        body["registration_token"] = token
    return Reply(body)
