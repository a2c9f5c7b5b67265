"""A run and its events, as engines give them to routes, and a poll for its tasks."""

from __future__ import annotations

from typing import Any

import orjson

from cluster import payloads
from cluster.workflows.records import RunInfo
from tests.unit.api.fakes import Answer, Client

US = 1_800_000_000_123_456
INFO = RunInfo(
    namespace="default",
    workflow_id="w1",
    run_id="R1",
    workflow_type="greeter",
    task_queue="jobs",
    input=payloads.encode(["world"]),
    started_at_us=US,
    execution_deadline_ms=US // 1000,
)
CLAIM = {"lease_owner": "w", "workflow_task_attempt": 1}


def event(ordinal: int) -> bytes:
    """The event with this number."""
    return orjson.dumps(
        {
            "id": f"R1-e{ordinal}",
            "sequence": ordinal,
            "event_type": "WorkflowStarted",
            "payload": {"n": ordinal},
            "recorded_at": "2027-01-15T08:00:00.123456Z",
            "workflow_task_id": None,
            "workflow_command_id": None,
        }
    )


async def poll(client: Client, kind: str, **fields: Any) -> Answer:
    """Register a worker and let it ask for a task of this kind."""
    register = {
        "worker_id": "w",
        "task_queue": "jobs",
        "runtime": "python",
        "supported_workflow_types": ["a"],
    }
    await client.worker("POST", "register", register)
    return await client.worker(
        "POST", f"{kind}-tasks/poll", {"worker_id": "w", "task_queue": "jobs"} | fields
    )
