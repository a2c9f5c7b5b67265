"""Many queued Steps in a short time: flows whose first step begins many others, which nobody takes yet."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import uuid4

import trio

from tests.bench.raw import connect
from tests.bench.stream_load import slot_workers
from tests.waiting import eventually

SPLIT, WORK = "split", "run"
WIDTH = 100
"""Steps of a flow."""
SENDERS = 16


async def queue_steps(url: str, flow_type: str, steps: int, payload: str = "") -> None:
    """Queue ``steps`` steps of ``flow_type`` with the input ``[0, 1, payload]``; a multiple of WIDTH.

    The worker that splits registers for that step only, so the others wait for one that takes them.
    """
    flows, order, prefix = steps // WIDTH, count(), uuid4().hex
    begun = 0
    all_begun = trio.Event()
    one = {"step_type": WORK, "input": [0.0, 1, payload]}

    def split(_task: dict[str, Any]) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        if begun == flows:
            all_begun.set()
        return {"decision": {"next": [one] * WIDTH}}

    async def send() -> None:
        async with connect(url) as connection:
            while (number := next(order)) < flows:
                flow_id = f"{prefix}-{number}"
                body = {"flow_type": flow_type, "flow_id": flow_id, "start_step": SPLIT}
                await connection.post("/flows", body)

    async with slot_workers(url, flow_type, 2, 8, 0, lambda _flow: None, split, [SPLIT]) as workers:
        async with trio.open_nursery() as nursery:
            for _ in range(SENDERS):
                nursery.start_soon(send)
        await all_begun.wait()
        await eventually(lambda: sum(worker.done for worker in workers) == flows, 60)
