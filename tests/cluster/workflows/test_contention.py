"""Many answers to one run at the same moment, on several nodes: each is taken."""

from __future__ import annotations

import trio

from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.store.store import Store
from cluster.workflows.engine import StartRequest
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.waiting import PATIENCE

ACTIVITIES = 120


async def test_many_activities_of_a_run_are_answered_at_once_on_two_nodes(store: Store) -> None:
    async with open_nodes(store) as nodes:
        tasks = await leased_activities(nodes[0])
        refused: list[Exception] = []

        async def answer(node: PartialNode, task: ActivityTask) -> None:
            try:
                await node.engine.complete_activity("ns", task.task_id, task.attempt_id, task.owner, None)
            except Exception as error:
                refused.append(error)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number, task in enumerate(tasks):
                    nursery.start_soon(answer, nodes[number % 2], task)
        assert refused == []
        view = await nodes[0].engine.describe("ns", "crowd")
        assert view.run.state.activities == ()


async def leased_activities(node: PartialNode) -> list[ActivityTask]:
    """Activities of one run, all of them handed out."""
    await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="crowd"))
    request = poll_request("w", kind=TaskKind.WORKFLOW)
    task = (await node.polls.poll(request)).task
    assert isinstance(task, WorkflowTask)
    commands = [{"type": "schedule_activity", "activity_type": "step"} for _ in range(ACTIVITIES)]
    await node.engine.complete_workflow_task("ns", task.task_id, task.owner, task.attempt, commands)
    tasks = []
    for _ in range(ACTIVITIES):
        step = (await node.polls.poll(poll_request("w"))).task
        assert isinstance(step, ActivityTask)
        tasks.append(step)
    return tasks
