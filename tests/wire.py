"""A worker and client that speak the wire protocol directly, without the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx

from cluster import payloads
from tests.waiting import LONG_PATIENCE, eventually

HEADERS = {
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Namespace": "default",
}


def envelope(value: object) -> dict[str, str]:
    """``value`` as it travels."""
    payload = payloads.encode(value)
    return {"codec": payload.codec, "blob": payload.blob}


def schedule(activity_type: str, queue: str, *arguments: object, **options: object) -> dict[str, Any]:
    """A schedule_activity command."""
    return {
        "type": "schedule_activity",
        "activity_type": activity_type,
        "arguments": envelope(list(arguments)),
        "queue": queue,
        **options,
    }


def complete(result: object = None) -> dict[str, Any]:
    """A complete_workflow command."""
    return {"type": "complete_workflow", "result": envelope(result)}


class Wire:
    """One connection pool to one address. Every method returns the JSON body of a good answer."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        return _body(await self.client.get(f"/api{path}", params=query))

    async def post(self, path: str, body: dict[str, Any], timeout: float = 30.0) -> dict[str, Any]:
        return _body(await self.client.post(f"/api{path}", json=body, timeout=timeout))

    async def start(self, workflow_type: str, queue: str, workflow_id: str, **more: Any) -> dict[str, Any]:
        body = {"workflow_type": workflow_type, "task_queue": queue, "workflow_id": workflow_id, **more}
        return await self.post("/workflows", body)

    async def register(
        self, worker: str, queue: str, *, workflows: Sequence[str] = (), activities: Sequence[str] = ()
    ) -> dict[str, Any]:
        return await self.post(
            "/worker/register",
            {
                "worker_id": worker,
                "task_queue": queue,
                "runtime": "python",
                "supported_workflow_types": list(workflows),
                "supported_activity_types": list(activities),
            },
        )

    async def poll(
        self, kind: str, worker: str, queue: str, *, seconds: int = 10, **more: Any
    ) -> dict[str, Any] | None:
        """A long poll for a ``workflow`` or an ``activity`` task; None when there was none."""
        body = {
            "worker_id": worker,
            "task_queue": queue,
            "timeout_seconds": seconds,
            "poll_request_id": uuid4().hex,
            **more,
        }
        answer = await self.post(f"/worker/{kind}-tasks/poll", body, timeout=seconds + 15)
        task: dict[str, Any] | None = answer["task"]
        return task

    async def task(self, kind: str, worker: str, queue: str, **more: Any) -> dict[str, Any]:
        """A poll that must bring a task."""
        task = await self.poll(kind, worker, queue, **more)
        assert task is not None, f"no {kind} task on {queue}"
        return task

    async def complete_workflow_task(self, task: dict[str, Any], *commands: dict[str, Any]) -> dict[str, Any]:
        return await self.post(
            f"/worker/workflow-tasks/{task['task_id']}/complete",
            {
                "lease_owner": task["lease_owner"],
                "workflow_task_attempt": task["workflow_task_attempt"],
                "commands": list(commands),
            },
        )

    async def complete_activity(self, task: dict[str, Any], result: object = None) -> dict[str, Any]:
        return await self.post(
            f"/worker/activity-tasks/{task['task_id']}/complete",
            {
                "lease_owner": task["lease_owner"],
                "activity_attempt_id": task["activity_attempt_id"],
                "result": envelope(result),
            },
        )

    async def fail_activity(self, task: dict[str, Any], message: str) -> dict[str, Any]:
        return await self.post(
            f"/worker/activity-tasks/{task['task_id']}/fail",
            {
                "lease_owner": task["lease_owner"],
                "activity_attempt_id": task["activity_attempt_id"],
                "failure": {"message": message, "type": "Boom"},
            },
        )

    async def describe(self, workflow_id: str) -> dict[str, Any]:
        return await self.get(f"/workflows/{workflow_id}")

    async def until_completed(self, workflow_id: str, within: float = LONG_PATIENCE) -> None:
        """Wait until the newest run has completed."""

        async def completed() -> bool:
            status: str = (await self.describe(workflow_id))["status"]
            return status == "completed"

        await eventually(completed, within)

    async def history(self, workflow_id: str, run_id: str | None = None) -> list[dict[str, Any]]:
        """All events of a run (None: the newest)."""
        run = run_id or (await self.describe(workflow_id))["run_id"]
        events: list[dict[str, Any]] = []
        token: str | None = ""
        while token is not None:
            query = {"next_page_token": token} if token else {}
            page = await self.get(f"/workflows/{workflow_id}/runs/{run}/history", page_size=1000, **query)
            events += page["events"]
            token = page["next_page_token"]
        return events


def _body(response: httpx.Response) -> dict[str, Any]:
    assert response.is_success, f"{response.request.url}: {response.status_code} {response.text[:500]}"
    body: dict[str, Any] = response.json()
    return body


@asynccontextmanager
async def open_wire(url: str) -> AsyncIterator[Wire]:
    """A Wire to ``url``."""
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=2000)
    async with httpx.AsyncClient(
        base_url=url, headers=HEADERS, timeout=30, limits=limits, trust_env=False
    ) as client:
        yield Wire(client)


TERMINAL = frozenset(
    {"WorkflowCompleted", "WorkflowFailed", "WorkflowTimedOut", "WorkflowCancelled", "WorkflowTerminated"}
)


def check_history(events: list[dict[str, Any]]) -> None:
    """A closed run's history has no gap and exactly one terminal event, its last."""
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    terminal = [event["event_type"] for event in events if event["event_type"] in TERMINAL]
    assert len(terminal) == 1, terminal
    assert events[-1]["event_type"] in TERMINAL


async def metric(wire: Wire, name: str) -> float:
    """The sum of a metric over its labels."""
    response = await wire.client.get("/metrics")
    found = [line for line in response.text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    assert found, f"no metric {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)
