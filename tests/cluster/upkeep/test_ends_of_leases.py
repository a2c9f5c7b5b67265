"""A lease that nobody would end is found by those who keep the partition, whatever the store lost."""

from __future__ import annotations

from random import Random

import pytest
from structlog.testing import capture_logs

from cluster.ids import TaskKind, partition_of_run
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.store.store import Store
from cluster.upkeep.keeper import Keeper
from cluster.workflows.engine import StartRequest
from tests.cluster.nodes import PartialNode, hold, open_nodes, poll_request
from tests.store_time import store_ms

LATE_MS = 10_000


def keeper_of(node: PartialNode) -> Keeper:
    return Keeper(node.store, node.clock, node.due, Random(1))


async def leased(node: PartialNode, kind: TaskKind) -> WorkflowTask | ActivityTask:
    """A workflow's first task, or its first activity, in the hands of a worker."""
    await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
    task = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
    assert isinstance(task, WorkflowTask)
    if kind is TaskKind.WORKFLOW:
        return task
    commands = [{"type": "schedule_activity", "activity_type": "step"}]
    await node.engine.complete_workflow_task("ns", task.task_id, "w", task.attempt, commands)
    activity = (await node.polls.poll(poll_request(kind=kind))).task
    assert isinstance(activity, ActivityTask)
    return activity


def partition_of(task_id: str) -> int:
    partition = partition_of_run(task_id.rpartition("-")[0])
    assert partition is not None
    return partition


async def ended(store: Store, task_id: str, kind: TaskKind, ago_ms: int) -> int:
    """Let a lease have ended so long ago, in its record and its queue; its place in time is lost."""
    partition, keys = partition_of(task_id), store.keys
    ends = await store_ms(store) - ago_ms
    await store.call("HSET", keys.task(partition, task_id), "x", ends)
    await store.call("ZADD", keys.queue_leases(partition, kind, "ns", "q"), ends, task_id)
    await store.call("ZREM", keys.leases(partition), task_id)
    return ends


@pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])
async def test_a_lease_that_nobody_would_end_is_ended(store: Store, kind: TaskKind) -> None:
    async with open_nodes(store, 1) as (node,):
        task = await leased(node, kind)
        partition = partition_of(task.task_id)
        await ended(store, task.task_id, kind, LATE_MS + 1)
        keeper, held = keeper_of(node), await hold(store, partition)
        assert (await node.due.run(partition)).done == 0
        with capture_logs() as logs:
            await keeper.compact(held)
        assert "leases_mended" in [line["event"] for line in logs]
        assert (await node.due.run(partition)).done == 1
        again = (await node.polls.poll(poll_request(kind=kind))).task
        assert again is not None
        assert (again.task_id, again.attempt) == (task.task_id, task.attempt + 1)
        await keeper.compact(held)
        assert keeper.counters.leases_mended == 1


async def test_leases_that_are_known_are_left_alone(store: Store) -> None:
    """Neither one that goes on, nor one that is over and about to be ended."""
    async with open_nodes(store, 1) as (node,):
        task = await leased(node, TaskKind.WORKFLOW)
        partition, leases = partition_of(task.task_id), store.keys.leases(partition_of(task.task_id))
        keeper, held = keeper_of(node), await hold(store, partition)
        await keeper.compact(held)
        ends = await ended(store, task.task_id, TaskKind.WORKFLOW, LATE_MS + 1)
        await store.call("ZADD", leases, ends, task.task_id)
        await keeper.compact(held)
        assert keeper.counters.leases_mended == 0
        assert int(await store.call("ZSCORE", leases, task.task_id)) == ends


async def test_what_stands_in_time_without_a_lease_that_is_over_goes(store: Store) -> None:
    """It would come up as due for ever, and enough of it would hold up all others."""
    async with open_nodes(store, 1) as (node,):
        task = await leased(node, TaskKind.WORKFLOW)
        partition = partition_of(task.task_id)
        keys = store.keys
        ends = int(await store.call("HGET", keys.task(partition, task.task_id), "x"))
        past = await store_ms(store) - LATE_MS - 1
        other = f"{task.info.run_id}-w9"  # type: ignore[union-attr]
        await store.call("ZADD", keys.leases(partition), past, other, past, task.task_id)
        keeper = keeper_of(node)
        await keeper.compact(await hold(store, partition))
        assert await store.call("ZRANGE", keys.leases(partition), 0, -1, "WITHSCORES") == [
            task.task_id.encode(),
            str(ends).encode(),
        ]
        assert keeper.counters.leases_mended == 2
