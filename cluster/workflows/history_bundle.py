"""The export of a run's history: one document that can be verified far from here (sdk-wire 5.3)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import orjson

from cluster.times import iso_us
from cluster.workflows import bundle_sections as sections
from cluster.workflows.failures import envelope
from cluster.workflows.records import Lease, Payload, Run

SCHEMA: Final = "durable-workflow.v2.history-export"
CANONICAL: Final = "json-recursive-ksort-v1"

_NOT_ASCII: Final = re.compile("[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything kept of a run: ``events`` in stored form and order, ``commands`` by id as they were
    logged, ``workflow_task`` the record of its open workflow task (state "" when there is none).
    """

    run: Run
    workflow_task: Lease
    events: list[bytes]
    commands: dict[str, dict[str, Any]]


def export(record: RunRecord, now_us: int) -> dict[str, Any]:
    """The bundle of a run."""
    run = record.run
    history = [orjson.loads(event) for event in record.events]
    bundle: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": 1,
        "exported_at": iso_us(now_us),
        "workflow": _workflow(run, len(history)),
        "payloads": {
            "codec": run.info.payload_codec,
            "arguments": _payload(run.info.input),
            "output": _payload(run.state.output),
        },
        "history_events": [
            {
                "id": event["id"],
                "sequence": event["sequence"],
                "type": event["event_type"],
                "recorded_at": event["recorded_at"],
                "workflow_task_id": event["workflow_task_id"],
                "workflow_command_id": event["workflow_command_id"],
                "payload": event["payload"],
            }
            for event in history
        ],
        "commands": sections.commands(run, history, record.commands),
        "signals": sections.signals(history),
        "updates": sections.updates(history),
        "tasks": sections.tasks(run, history, record.workflow_task),
        "activities": sections.activities(run, history),
        "timers": sections.timers(run, history),
        "failures": sections.failures(run, history),
        "links": sections.links(run, history),
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


def _workflow(run: Run, events: int) -> dict[str, Any]:
    info, state = run.info, run.state
    return {
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
        "search_attributes": info.search_attributes,
        "started_at": iso_us(info.started_at_us),
        "closed_at": iso_us(state.closed_at_us) if state.closed_at_us else None,
        "last_history_sequence": events,
    }


def _payload(payload: Payload | None) -> dict[str, Any] | None:
    return None if payload is None else envelope(payload)


def checksum(bundle: dict[str, Any]) -> str:
    """SHA-256 of the canonical text of the bundle without ``integrity``."""
    covered = {name: value for name, value in bundle.items() if name != "integrity"}
    return hashlib.sha256(_canonical(covered).encode()).hexdigest()


def _canonical(value: Any) -> str:
    """JSON with keys sorted at every depth, compact, in ASCII, with numbers as PHP writes them."""
    match value:
        case dict():
            members = (f"{_text(name)}:{_canonical(value[name])}" for name in sorted(value))
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_canonical, value)) + "]"
        case str():
            return _text(value)
        case float():
            return _number(value)
        case _:
            return json.dumps(value)


def _text(text: str) -> str:
    # Not ensure_ascii: that escapes DEL too, which the form leaves as it is.
    return _NOT_ASCII.sub(_escaped, json.dumps(text, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _number(value: float) -> str:
    """The shortest digits that give ``value``: with a fraction up to 10^16, else like ``1.0e+25``."""
    if not math.isfinite(value):
        raise ValueError("a history holds no infinite number")
    digits, _, exponent = repr(value).partition("e")
    power = int(exponent or 0)
    if not exponent or -4 <= power < 17:
        fixed = format(Decimal(repr(value)), "f")
        return fixed if "." in fixed else f"{fixed}.0"
    return f"{digits if '.' in digits else f'{digits}.0'}e{power:+d}"
