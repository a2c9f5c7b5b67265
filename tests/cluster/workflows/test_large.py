"""Everything a worker may say fits into a commit, however large it is (up to the payload limit)."""

from __future__ import annotations

import pytest

from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.store.store import Store
from cluster.workflows.engine import StartRequest
from tests.cluster.nodes import PartialNode, open_nodes, poll_request

LARGE = "x" * (2 * 1024 * 1024 - 1024)


@pytest.mark.parametrize("attempts", [2, 1])
async def test_a_large_failure_follows_large_arguments_and_progress(store: Store, attempts: int) -> None:
    async with open_nodes(store, 1) as (node,):
        task = await leased_activity(node, attempts)
        identity = ("ns", task.task_id, task.attempt_id, task.owner)
        await node.engine.heartbeat_activity(*identity, {"details": LARGE})
        failed = await node.engine.fail_activity(*identity, {"message": LARGE, "type": "Boom"})
        assert failed["recorded"] is True


async def leased_activity(node: PartialNode, attempts: int) -> ActivityTask:
    """An activity with large arguments, handed out."""
    await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="large"))
    task = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
    assert isinstance(task, WorkflowTask)
    command = {
        "type": "schedule_activity",
        "activity_type": "step",
        "arguments": {"codec": "avro", "blob": LARGE},
        "retry_policy": {"max_attempts": attempts, "backoff_seconds": [0]},
    }
    await node.engine.complete_workflow_task("ns", task.task_id, task.owner, task.attempt, [command])
    step = (await node.polls.poll(poll_request())).task
    assert isinstance(step, ActivityTask)
    return step
