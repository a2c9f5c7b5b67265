"""The demo's client process: starts one workflow and waits for its result.

Each event is one JSON line on standard output: ``{"event": "started", "name": run id}`` and then
``{"event": "result", "name": result as JSON}``.
"""

from __future__ import annotations

import asyncio
import json
import sys

from durable_workflow import Client

from nodes.cli.demo.worker import TASK_QUEUE, WORKFLOW_TYPE, tell
from nodes.cli.processes import end_with_parent

RESULT_SECONDS = 50.0


async def order(url: str, workflow_id: str) -> None:
    """Start the workflow and tell its result."""
    async with Client(url) as client:
        handle = await client.start_workflow(
            workflow_type=WORKFLOW_TYPE, task_queue=TASK_QUEUE, workflow_id=workflow_id, input=[workflow_id]
        )
        tell("started", handle.run_id or "")
        result = await client.get_result(handle, poll_interval=0.2, timeout=RESULT_SECONDS)
        tell("result", json.dumps(result))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[3]))
    asyncio.run(order(sys.argv[1], sys.argv[2]))
