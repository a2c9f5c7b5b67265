"""Names of settings: which variable sets which, and which other names are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cluster.settings.schema import MatchingSettings, Settings


@dataclass(frozen=True, slots=True)
class Name:
    """One setting: its key in the file, its variable (none for ``matching``), its meaning."""

    key: str
    variable: str | None
    secret: bool
    text: str


def _names() -> dict[str, Name]:
    names: dict[str, Name] = {}
    for key, field in Settings.model_fields.items():
        extra: dict[str, Any] = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if key != "matching":
            variable = extra.get("variable") or f"{extra['prefix']}{key.upper()}"
            names[key] = Name(key, variable, bool(extra.get("secret")), field.description or "")
    for field in MatchingSettings.model_fields.values():
        key = f"matching.{field.alias}"
        names[key] = Name(key, None, False, field.description or "")
    return names


BY_KEY: Mapping[str, Name] = MappingProxyType(_names())
BY_VARIABLE: Mapping[str, Name] = MappingProxyType({n.variable: n for n in BY_KEY.values() if n.variable})

CONFIG_VARIABLE = "HEADRACE_CONFIG"

# Old names of an environment written for another server; what DW_X says wins.
LEGACY: Mapping[str, str] = MappingProxyType(
    {
        f"WORKFLOW_SERVER_{variable.removeprefix('DW_')}": variable
        for variable in BY_VARIABLE
        if variable.startswith("DW_") and not variable.startswith("DW_V2_")
    }
    | {
        "WORKFLOW_SERVER_ID": "DW_SERVER_ID",
        "WORKFLOW_TASK_TIMEOUT": "DW_WORKFLOW_TASK_TIMEOUT",
        "ACTIVITY_TASK_TIMEOUT": "DW_ACTIVITY_TASK_TIMEOUT",
        "WORKFLOW_MAX_HISTORY_EVENTS": "DW_MAX_HISTORY_EVENTS",
        "WORKFLOW_HISTORY_RETENTION_DAYS": "DW_HISTORY_RETENTION_DAYS",
        "WORKFLOW_MAX_PAYLOAD_BYTES": "DW_MAX_PAYLOAD_BYTES",
        "WORKFLOW_MAX_MEMO_BYTES": "DW_MAX_MEMO_BYTES",
        "WORKFLOW_MAX_SEARCH_ATTRIBUTES": "DW_MAX_SEARCH_ATTRIBUTES",
        "WORKFLOW_MAX_PENDING_ACTIVITIES": "DW_MAX_PENDING_ACTIVITIES",
        "WORKFLOW_MAX_PENDING_CHILDREN": "DW_MAX_PENDING_CHILDREN",
    }
)

# The dw client reads these; a server started in the same shell must not stumble over them.
CLIENT_VARIABLES = frozenset({"DW_ENV", "DW_CONFIG_HOME", "DW_SERVER_URL"})

_WAKES = "polls are woken, not polled"
_STORE = "all shared state lives in Redis"
_ABSENT = "belongs to a feature this release does not have"

# Accepted so that an environment written for another server starts; they change nothing.
WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "DW_SERVER_KEY": "nothing is encrypted with an application key",
        "DW_WORKER_PROTOCOL_VERSION": "the protocol version is a property of the release",
        "DW_SERIALIZER": "the payload codec is always avro",
        "DW_MAX_TASKS_PER_POLL": "a poll hands out one task",
        "DW_WORKER_POLL_SIGNAL_CHECK_INTERVAL_MS": _WAKES,
        "DW_WAKE_SIGNAL_TTL_SECONDS": _WAKES,
        "DW_POLLING_CACHE_PATH": _STORE,
        "DW_EXPIRED_WORKFLOW_TASK_RECOVERY_SCAN_LIMIT": "expired leases are timers, not scanned for",
        "DW_EXPIRED_WORKFLOW_TASK_RECOVERY_TTL_SECONDS": "expired leases are timers, not scanned for",
        "DW_EXTERNAL_EXECUTOR_CONFIG_PATH": _ABSENT,
        "DW_EXTERNAL_EXECUTOR_CONFIG_OVERLAY": _ABSENT,
    }
    | {f"DW_V2_{name}": _STORE for name in ("MULTI_NODE", "VALIDATE_CACHE_BACKEND", "CACHE_VALIDATION_MODE")}
    | {
        f"DW_V2_{name}": "repair is driven by timers and partition leases"
        for name in (
            "TASK_REPAIR_REDISPATCH_AFTER_SECONDS",
            "TASK_REPAIR_LOOP_THROTTLE_SECONDS",
            "TASK_REPAIR_SCAN_LIMIT",
            "TASK_REPAIR_FAILURE_BACKOFF_MAX_SECONDS",
            "MATCHING_ROLE_QUEUE_WAKE",
            "TASK_DISPATCH_MODE",
        )
    }
    | {"DW_V2_UPDATE_WAIT_POLL_INTERVAL_MS": "whoever waits for an update is told when it is over"}
)
