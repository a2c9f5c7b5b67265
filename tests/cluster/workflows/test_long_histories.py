"""A run whose history has become too long fails, on a real store (``DW_MAX_HISTORY_EVENTS``)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from cluster.ids import TaskKind, partition_of_run
from cluster.queues.model import WorkflowTask
from cluster.settings import Settings
from cluster.store.store import Store
from cluster.workflows.engine import StartRequest
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.waiting import eventually

LIMIT = 20


async def answer(node: PartialNode, *commands: dict[str, Any]) -> str:
    """Complete the next workflow task; returns its run."""
    task = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task
    assert isinstance(task, WorkflowTask)
    await node.engine.complete_workflow_task("ns", task.task_id, "w", task.attempt, list(commands))
    return task.info.run_id


def timers(count: int, seconds: int = 3600) -> list[dict[str, Any]]:
    return [{"type": "start_timer", "delay_seconds": seconds}] * count


CHILD = {
    "type": "start_child_workflow",
    "workflow_type": "Child",
    "queue": "other",
    "parent_close_policy": "terminate",
}


@pytest.mark.parametrize("leased", [False, True])
async def test_a_run_fails_once_its_history_is_too_long(store: Store, leased: bool) -> None:
    """Also when a worker holds its next workflow task; its end is one, and its child meets its policy."""
    async with open_nodes(store, 2, settings=Settings(max_history_events=LIMIT)) as nodes:
        node = nodes[0]
        await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="long"))
        with capture_logs() as logs:
            run_id = await answer(node, CHILD, *timers(LIMIT - 6), *timers(1, 0))
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["history_grew_long"]
        partition = partition_of_run(run_id)
        assert partition is not None
        await node.due.run(partition)
        assert await status(node) == ("waiting", None)
        await answer(node, *timers(4), *timers(1, 0))
        assert (await length(node)) > LIMIT
        if leased:
            await node.engine.timer_due(*await first_due(store, partition))
            assert (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW))).task is not None

        async def is_over() -> bool:
            async with trio.open_nursery() as nursery:
                for other in nodes:
                    nursery.start_soon(other.due.run, partition)
            return await status(node) == ("failed", "history_limit_exceeded")

        await eventually(is_over)
        page = await node.engine.history("ns", "long", run_id, page_size=1000, token=None)
        ends = [event for event in page.events if b'"WorkflowFailed"' in event]
        assert len(ends) == 1
        assert b'"configured_limit":20' in ends[0]
        await eventually(lambda: closes_its_child(node, partition))


async def test_a_run_that_continues_as_new_in_time_goes_on(store: Store) -> None:
    async with open_nodes(store, 1, settings=Settings(max_history_events=LIMIT)) as (node,):
        await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="long"))
        await answer(node, *timers(LIMIT), {"type": "continue_as_new"})
        assert await status(node) == ("pending", None)
        assert (await length(node)) < LIMIT


async def status(node: PartialNode) -> tuple[str, str | None]:
    state = (await node.engine.describe("ns", "long")).run.state
    return state.status.value, state.closed_reason


async def length(node: PartialNode) -> int:
    return (await node.engine.describe("ns", "long")).run.state.history_length


async def first_due(store: Store, partition: int) -> tuple[str, int]:
    """The timer that is due and is not that of the whole run."""
    rows = await store.call("ZRANGE", store.keys.timers(partition), 0, -1, "WITHSCORES")
    due = {rows[i].decode(): int(float(rows[i + 1])) for i in range(0, len(rows), 2)}
    return min(((n, ms) for n, ms in due.items() if not n.endswith(" r")), key=lambda row: row[1])


async def closes_its_child(node: PartialNode, partition: int) -> bool:
    await node.due.run(partition)
    page = await node.engine.list_runs(
        "ns", workflow_type="Child", bucket=None, query=None, page_size=10, token=None
    )
    return [view.run.state.closed_reason for view in page.runs] == ["terminated"]
