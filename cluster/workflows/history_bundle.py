"""The export of a run's history: one document that can be verified far from here (sdk-wire 5.3)."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import orjson

from cluster.times import iso_us
from cluster.workflows.events import EventType
from cluster.workflows.records import Run

SCHEMA: Final = "durable-workflow.v2.history-export"
CANONICAL: Final = "json-recursive-ksort-v1"

_ACTIVITY_STATUS: Final = {
    EventType.ACTIVITY_SCHEDULED: "pending",
    EventType.ACTIVITY_STARTED: "running",
    EventType.ACTIVITY_RETRY_SCHEDULED: "pending",
    EventType.ACTIVITY_COMPLETED: "completed",
    EventType.ACTIVITY_FAILED: "failed",
    EventType.ACTIVITY_TIMED_OUT: "failed",
}
_TIMER_STATUS: Final = {EventType.TIMER_SCHEDULED: "pending", EventType.TIMER_FIRED: "fired"}


def export(run: Run, events: list[bytes], now_us: int) -> dict[str, Any]:
    """The bundle of a run whose events are ``events`` in stored form."""
    info, state = run.info, run.state
    history = [orjson.loads(event) for event in events]
    bundle: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": 1,
        "exported_at": iso_us(now_us),
        "workflow": {
            "instance_id": info.workflow_id,
            "run_id": info.run_id,
            "run_number": info.run_number,
            "workflow_type": info.workflow_type,
            "namespace": info.namespace,
            "task_queue": info.task_queue,
            "business_key": info.business_key,
            "status": state.status.value,
            "closed_reason": state.closed_reason,
            "payload_codec": info.payload_codec,
            "started_at": iso_us(info.started_at_us),
            "closed_at": iso_us(state.closed_at_us) if state.closed_at_us else None,
            "last_history_sequence": len(history),
        },
        "payloads": {},
        "history_events": [
            {
                "id": event["id"],
                "sequence": event["sequence"],
                "type": event["event_type"],
                "recorded_at": event["recorded_at"],
                "payload": event["payload"],
            }
            for event in history
        ],
        "commands": [],
        "signals": [],
        "updates": [],
        "tasks": [],
        "activities": _latest(history, _ACTIVITY_STATUS, "activity_execution_id", "activity_type"),
        "timers": _latest(history, _TIMER_STATUS, "timer_id", "delay_seconds"),
        "failures": [],
        "links": {},
        "redaction": {"applied": False, "paths": []},
        "codec_schemas": {},
        "payload_manifest": {"entries": []},
    }
    bundle["integrity"] = {
        "canonicalization": CANONICAL,
        "checksum_algorithm": "sha256",
        "checksum": checksum(bundle),
    }
    return bundle


def checksum(bundle: dict[str, Any]) -> str:
    """SHA-256 of the bundle without ``integrity``: keys sorted at every depth, compact, ASCII."""
    covered = {name: value for name, value in bundle.items() if name != "integrity"}
    canonical = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _latest(
    history: list[dict[str, Any]], statuses: dict[EventType, str], identity: str, kept: str
) -> list[dict[str, Any]]:
    """Items of one kind in the order they were opened, with the status their last event gives."""
    found: dict[str, dict[str, Any]] = {}
    for event in history:
        status = statuses.get(event["event_type"])
        if status is None:
            continue
        payload = event["payload"]
        item = found.setdefault(
            payload[identity], {identity: payload[identity], "sequence": payload.get("sequence")}
        )
        if kept in payload:
            item[kept] = payload[kept]
        item["status"] = status
    return list(found.values())
