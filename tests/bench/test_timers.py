"""Many timers that are due in the same second: how late the last one fires, and that none fires twice."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import count
from math import ceil

import orjson
import pytest
import redis
import trio

from cluster.ids import TaskKind
from cluster.queues.model import WorkflowTask
from cluster.store.keys import Keys
from cluster.store.store import open_store
from cluster.workflows.engine import StartRequest
from tests.bench.figures import percentile, say
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.cluster_processes import Cluster
from tests.servers import Server
from tests.waiting import eventually

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("durability", ["memory"], indirect=True),
]

WORKFLOWS = 10_000
REHEARSED = 500
"""Workflows by which this machine's pace is found; their timers are far away."""
MARGIN = 2.0
FAR_SECONDS = 3_600
AT_ONCE = 64
GIVE_UP_SECONDS = 60.0

Job = Callable[[], Awaitable[None]]


async def test_timers_due_in_the_same_second(two_nodes: Cluster, server: Server) -> None:
    """The timers are set without HTTP, by a third node that keeps no partitions; two nodes fire them."""
    keys = Keys()
    async with open_store(server.url, prefix=keys.prefix) as store, open_nodes(store, 1) as (node,):
        await _prepare(node, "rehearsal", REHEARSED)
        began = time.time()
        await _set_timers(node, "rehearsal", REHEARSED, began + FAR_SECONDS)
        pace = (time.time() - began) / REHEARSED
        await _prepare(node, "real", WORKFLOWS)
        due = ceil(time.time() + 5 + pace * WORKFLOWS * MARGIN)
        await _set_timers(node, "real", WORKFLOWS, due)
    with server.client() as client:
        assert _waiting(client, keys) == REHEARSED + WORKFLOWS, "this machine became too slow meanwhile"
        await trio.sleep(due - time.time())
        await eventually(lambda: _waiting(client, keys) == REHEARSED, GIVE_UP_SECONDS)
        fired = _fired(client, keys)
    assert sorted(map(len, fired)) == [0] * REHEARSED + [1] * WORKFLOWS
    late = [at - due for times in fired for at in times]
    p50, last = percentile(late, 0.5), max(late)
    say(f"{WORKFLOWS:,} timers of one second", f"p50 {p50:.1f} s, last {last:.1f} s after it began")


async def _prepare(node: PartialNode, queue: str, workflows: int) -> None:
    numbers = iter(range(workflows))

    async def job() -> None:
        for number in numbers:
            await node.engine.start(StartRequest("default", "t", queue, workflow_id=f"{queue}{number}"))

    await _side_by_side(job)


async def _set_timers(node: PartialNode, queue: str, workflows: int, due: float) -> None:
    """Answer the first task of each workflow with a timer due within the second after ``due``."""
    numbers = count()

    async def job() -> None:
        while next(numbers) < workflows:
            request = poll_request(kind=TaskKind.WORKFLOW, namespace="default", queue=queue)
            task = (await node.polls.poll(request)).task
            assert isinstance(task, WorkflowTask)
            timer = {"type": "start_timer", "delay_seconds": max(1, ceil(due - time.time()))}
            await node.engine.complete_workflow_task(
                "default", task.task_id, task.owner, task.attempt, [timer]
            )

    await _side_by_side(job)


async def _side_by_side(job: Job) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(job)


def _waiting(client: redis.Redis, keys: Keys) -> int:
    """Timers that are set, in all partitions."""
    pipe = client.pipeline(transaction=False)
    for partition in range(keys.partitions):
        pipe.zcard(keys.timers(partition))
    return sum(pipe.execute())


def _fired(client: redis.Redis, keys: Keys) -> list[list[float]]:
    """Per run the times at which its timers fired, in seconds."""
    runs = []
    for partition in range(keys.partitions):
        for key in client.scan_iter(keys.history(partition, "*"), count=1_000):
            events = map(orjson.loads, client.lrange(key, 0, -1))
            times = [event["recorded_at"] for event in events if event["event_type"] == "TimerFired"]
            runs.append([datetime.fromisoformat(at).timestamp() for at in times])
    return runs
