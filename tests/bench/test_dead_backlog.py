"""What a mountain of dead work costs others: 200,000 queued steps whose flows are stopped."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import trio

from cluster.errors import StoreError
from cluster.flows.engine import ResultKind, StepResult
from cluster.flows.machine import StopType
from cluster.ids import TaskKind
from cluster.queues.slot_claims import SlotGroup, Want, claim_steps
from cluster.store.keys import QueueName
from tests.bench.reporting import say
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    PARTITIONS,
    StreamLab,
    StreamNode,
    open_stream_lab,
)
from tests.servers import run_server
from tests.stream_client import StreamClient

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

FLOWS = 201
FAN = 999
ROUNDS = 200
MOST = 3.0
"""By how much the median may grow, with room for a busy machine."""


async def test_stopped_flows_slow_nobody_down(tmp_path: Path) -> None:
    with run_server("redis", tmp_path) as server:
        async with (
            open_stream_lab(server.url, "dead") as lab,
            lab[1].worker("w", {"name": "live", "step_types": ["a"]}) as worker,
        ):
            before = await _hand_out_times(lab, worker)
            flows = await _fill(lab[0])
            queued = await _hand_out_times(lab, worker)
            began = trio.current_time()
            for flow_id in flows:
                await lab[0].engine.stop(NAMESPACE, flow_id, StopType.TERMINATE, "", wait=False)
            say("stopping them", f"{trio.current_time() - began:.1f} s, one client, one after the other")
            after = await _hand_out_times(lab, worker)
            say("start to hand-out, median", f"{before * 1000:.2f} ms with nothing else")
            say(f"  beside {FLOWS * FAN:,} queued steps", f"{queued * 1000:.2f} ms")
            say("  once their flows are stopped", f"{after * 1000:.2f} ms")
            assert queued < MOST * before
            assert after < MOST * before


async def _hand_out_times(lab: StreamLab, worker: StreamClient) -> float:
    """Median seconds from asking for a flow on one node to its first task on the other."""
    times = []
    for _ in range(ROUNDS):
        began = trio.current_time()
        await lab[0].start("live", "a")
        task = await worker.next("task")
        times.append(trio.current_time() - began)
        await worker.complete(task, COMPLETE)
    return statistics.median(times)


async def _fill(node: StreamNode) -> list[str]:
    """Flows with FAN queued steps each that nobody serves."""
    flows = [await node.start("dead", "many") for _ in range(FLOWS)]
    queue = QueueName("s", NAMESPACE, "dead")
    permits = {queue: await node.gate.terms(NAMESPACE, TaskKind.STEP, "dead")}
    group = SlotGroup("filler", 50, (Want(queue, frozenset({"many"})),))
    output = {"decision": {"next": [{"step_type": "odd"}] * FAN}}
    left = FLOWS
    while left:
        reply = await claim_steps(
            node.store, node.member.incarnation, list(range(PARTITIONS)), [group], 1, permits
        )
        for claim in reply.claims:
            result = StepResult(
                task_id=claim.task_id,
                attempt=claim.attempt,
                delivery=claim.delivery,
                method="execute",
                worker_id="filler",
                session=node.member.incarnation,
                kind=ResultKind.COMPLETED,
                output=output,
            )
            (verdict,) = await node.engine.finish([result])
            if not verdict.accepted:
                raise StoreError(verdict.message)
            left -= 1
    return flows
