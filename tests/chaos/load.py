"""Workflows started and followed through failures, over the wire."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import httpx
import trio

from tests.wire import Wire, check_history

STEPS = 3
IN_FLIGHT = 16


async def insist(job: object, *arguments: object, within: float = 60.0) -> httpx.Response:
    """Repeat a request until a server answers it; a refusal (4xx) is an answer."""
    assert callable(job)
    with trio.fail_after(within):
        while True:
            try:
                response: httpx.Response = await job(*arguments)
                if response.status_code < 500:
                    return response
            except httpx.TransportError:
                pass
            await trio.sleep(0.05)


async def start_all(wire: Wire, queue: str, ids: list[str], seconds: float = 0.0) -> None:
    """Start a ``steps`` workflow for each id; each start is repeated until one is acknowledged."""
    limit = trio.CapacityLimiter(IN_FLIGHT)

    async def start(workflow_id: str) -> None:
        body = {
            "workflow_type": "steps",
            "task_queue": queue,
            "workflow_id": workflow_id,
            "input": [STEPS, seconds],
            "duplicate_policy": "use-existing",
        }
        async with limit:
            response = await insist(lambda: wire.client.post("/api/workflows", json=body))
        # 409: it has run to its end between the lost first answer and the repetition.
        assert response.status_code in (200, 201, 409), response.text

    async with trio.open_nursery() as nursery:
        for workflow_id in ids:
            nursery.start_soon(start, workflow_id)


async def wait_all(wire: Wire, ids: list[str], within: float) -> None:
    """Wait until each workflow has completed with the right result."""
    limit = trio.CapacityLimiter(IN_FLIGHT)
    statuses: dict[str, str] = {}

    async def look(workflow_id: str) -> None:
        async with limit:
            body = (await insist(lambda: wire.client.get(f"/api/workflows/{workflow_id}"))).json()
        statuses[workflow_id] = body["status"]
        if body["is_terminal"]:
            assert (body["status"], body["output"]) == ("completed", list(range(STEPS))), body
            open_ids.discard(workflow_id)

    open_ids = set(ids)
    with trio.move_on_after(within):
        while open_ids:
            async with trio.open_nursery() as nursery:
                for workflow_id in list(open_ids):
                    nursery.start_soon(look, workflow_id)
            await trio.sleep(0.1)
    assert not open_ids, {workflow_id: statuses.get(workflow_id) for workflow_id in sorted(open_ids)}


async def check_histories(wire: Wire, ids: list[str]) -> None:
    """Every history is gapless, ends once, and has each step exactly once."""
    for workflow_id in ids:
        events = await wire.history(workflow_id)
        check_history(events)
        kinds = Counter(event["event_type"] for event in events)
        assert kinds["ActivityScheduled"] == kinds["ActivityCompleted"] == STEPS, kinds


def check_attempts(events: Path, least: int) -> None:
    """No attempt id was handed to a worker twice."""
    attempts = Counter(json.loads(line)["attempt_id"] for line in events.read_text().splitlines())
    assert len(attempts) >= least
    assert attempts.most_common(1)[0][1] == 1, attempts.most_common(3)
