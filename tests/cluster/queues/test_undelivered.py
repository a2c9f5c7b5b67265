"""A task whose answer could not be sent is soon handed out again, and nobody else's lease is touched."""

from __future__ import annotations

import pytest

from cluster.errors import Refused
from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.store.store import Store
from cluster.workflows.engine import StartRequest
from tests.cluster.nodes import open_nodes, poll_request


async def test_undelivered_tasks_come_again(store: Store) -> None:
    wanted = poll_request(kind=TaskKind.WORKFLOW)
    async with open_nodes(store) as (one, two):
        await one.engine.start(StartRequest("ns", "Flow", "q", workflow_id="again"))
        lost = (await one.polls.poll(wanted)).task
        assert isinstance(lost, WorkflowTask)
        one.polls.undelivered(lost)
        task = (await two.polls.poll(wanted)).task
        assert isinstance(task, WorkflowTask)
        assert (task.task_id, task.attempt) == (lost.task_id, lost.attempt)

        # It comes too late: the task is somebody else's by now.
        one.polls.undelivered(lost)
        command = {"type": "schedule_activity", "activity_type": "step"}
        await two.engine.complete_workflow_task("ns", task.task_id, task.owner, task.attempt, [command])

        step = (await one.polls.poll(poll_request())).task
        assert isinstance(step, ActivityTask)
        one.polls.undelivered(step)
        again = (await two.polls.poll(poll_request())).task
        assert isinstance(again, ActivityTask)
        assert again.attempt == step.attempt
        with pytest.raises(Refused, match="over"):
            await one.engine.complete_activity("ns", step.task_id, step.attempt_id, step.owner, None)
        done = await two.engine.complete_activity("ns", again.task_id, again.attempt_id, again.owner, None)
        assert done["recorded"] is True
