"""All scripts on a real Redis Cluster, where a key of another slot is an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio

from cluster.ids import TaskKind
from cluster.queues import claims
from cluster.queues.claims import ClaimReply
from cluster.queues.model import ActivityTask, PollResult, PollStatus, WorkflowTask
from cluster.queues.polls import poll_token
from cluster.session_options import SessionOptions
from cluster.store.store import Store, open_store
from cluster.upkeep.keeper import Keeper, KeeperTimes
from cluster.worker_sessions import Standing
from cluster.workflows.engine import StartRequest
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.records import RunStatus
from tests.cluster.nodes import hold, open_nodes, poll_request
from tests.cluster.queues.lab import Lab
from tests.servers import KINDS, Server, run_cluster
from tests.waiting import eventually


@pytest.fixture(scope="module", params=KINDS)
def cluster_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with run_cluster(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
async def clustered(cluster_server: Server, prefix: str) -> AsyncIterator[Store]:
    async with open_store(f"redis+cluster://127.0.0.1:{cluster_server.port}", prefix=prefix) as store:
        assert store.clustered
        yield store


async def test_a_whole_life_of_workflows(clustered: Store) -> None:
    async with open_nodes(clustered) as (first, second), trio.open_nursery() as nursery:
        results: list[PollResult] = []

        async def poll() -> None:
            results.append(await first.polls.poll(poll_request(kind=TaskKind.WORKFLOW, worker_id="w")))

        nursery.start_soon(poll)
        await eventually(lambda: first.polls.parked == 1)
        started = await second.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        await eventually(lambda: bool(results))
        task = results[0].task
        assert isinstance(task, WorkflowTask)
        assert task.info == started.info
        commands = [
            {"type": "schedule_activity", "activity_type": "step", "start_to_close_timeout": 30},
            {"type": "start_timer", "delay_seconds": 0},
        ]
        await second.engine.complete_workflow_task("ns", task.task_id, "w", task.attempt, commands)
        step = (await first.polls.poll(poll_request())).task
        assert isinstance(step, ActivityTask)
        beat = await first.engine.heartbeat_activity("ns", step.task_id, step.attempt_id, "w", {"at": 1})
        assert beat["can_continue"]
        await second.engine.complete_activity("ns", step.task_id, step.attempt_id, "w", None)
        result = await first.polls.poll(poll_request(kind=TaskKind.WORKFLOW, timeout=0))
        assert isinstance(result.task, WorkflowTask)
        page = await second.engine.workflow_task_history(
            "ns", result.task.task_id, "w", 1, page_size=2, token="MA=="
        )
        assert len(page["history_events"]) == 2
        done = [{"type": "complete_workflow"}]
        await first.engine.complete_workflow_task("ns", result.task.task_id, "w", 1, done)
        view = await second.engine.describe("ns", "one")
        assert view.run.state.status is RunStatus.COMPLETED
        listed = await first.engine.list_runs(
            "ns", workflow_type=None, bucket="completed", query=None, page_size=10, token=None
        )
        assert [row.run.info.workflow_id for row in listed.runs] == ["one"]


async def test_polls_in_every_partition(clustered: Store) -> None:
    lab = Lab(clustered)
    tasks = {await lab.enqueue(f"t{number}", partition=number) for number in range(16)}
    async with open_nodes(clustered) as nodes:
        found: set[str] = set()
        for number in range(16):
            request = poll_request(
                timeout=(0.0, 5.0)[number % 2], poll_request_id=f"p{number}", types=frozenset()
            )
            first = (await nodes[0].polls.poll(request)).task
            again = (await nodes[1].polls.poll(request)).task
            assert isinstance(first, ActivityTask)
            assert again == first
            found.add(first.task_id)
            assert await clustered.call("PTTL", clustered.keys.poll(poll_token(request))) > 0
        assert found == tasks
        empty = await nodes[0].polls.poll(poll_request(timeout=0))
        assert empty.status is PollStatus.EMPTY
    for partition in range(16):
        await lab.audit(partition)


async def test_no_claim_notes_that_a_poll_was_sent(clustered: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note lies in another slot, and what a token holds may lie in any."""
    notes: list[int] = []
    claim = claims.claim

    async def watch(*args: Any, **more: Any) -> ClaimReply:
        notes.extend(waiter.note_ms for waiter in args[4])
        return await claim(*args, **more)

    monkeypatch.setattr(claims, "claim", watch)
    async with open_nodes(clustered, 1) as (node,):
        for number, timeout in enumerate((0.0, 0.5)):
            request = poll_request(poll_request_id=f"p{number}", timeout=timeout)
            assert (await node.polls.poll(request)).status is PollStatus.EMPTY
            assert await clustered.call("PTTL", clustered.keys.poll(poll_token(request))) > 0
    assert notes
    assert set(notes) == {0}


async def test_upkeep(clustered: Store) -> None:
    leases = LeaseTimes(workflow_ms=1)
    async with open_nodes(clustered, leases=leases, peek_seconds=0.05) as (node, other):
        await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        result = await other.polls.poll(poll_request(kind=TaskKind.WORKFLOW))
        assert isinstance(result.task, WorkflowTask)
        again: list[WorkflowTask] = []

        async def lapsed() -> bool:
            found = (await node.polls.poll(poll_request(kind=TaskKind.WORKFLOW, timeout=0))).task
            again.extend([found] if isinstance(found, WorkflowTask) else [])
            return bool(again)

        await eventually(lapsed)
        assert (again[0].task_id, again[0].attempt) == (result.task.task_id, 2)
        keeper = Keeper(clustered, node.clock, node.due, None, KeeperTimes(idle_queue=0))  # type: ignore[arg-type]
        for partition in range(16):
            held = await hold(clustered, partition)
            assert await keeper.resync(held) == 0
            await keeper.compact(held)


async def test_worker_sessions(clustered: Store) -> None:
    holder, session_id = "é {a}:b", "s 1:{x}"
    async with open_nodes(clustered) as (first, second):
        await first.engine.start(StartRequest("ns", "Flow", "q", workflow_id="one"))
        task = (await first.polls.poll(poll_request("w", kind=TaskKind.WORKFLOW))).task
        assert isinstance(task, WorkflowTask)
        command = {
            "type": "schedule_activity",
            "activity_type": "step",
            "worker_session": {"session_id": session_id},
        }
        await first.engine.complete_workflow_task("ns", task.task_id, "w", task.attempt, [command, command])

        taken = await second.sessions.take("ns", holder, SessionOptions(session_id))
        other = (await first.polls.poll(poll_request("w", timeout=0))).task
        one = (await second.polls.poll(poll_request(holder))).task
        full = (await second.polls.poll(poll_request(holder, timeout=0))).task
        assert (taken.standing, other, full) == (Standing.HELD, None, None)
        assert isinstance(one, ActivityTask)
        assert await first.sessions.held("ns", holder) == (session_id,)
        await first.engine.complete_activity("ns", one.task_id, one.attempt_id, holder, None)
        two = (await second.polls.poll(poll_request(holder))).task
        closed = await first.sessions.close("ns", session_id, holder, "done")
        await first.sessions.release_all("ns", "q", closed, session_id)
        assert isinstance(two, ActivityTask)
        assert await second.sessions.held("ns", holder) == ()
