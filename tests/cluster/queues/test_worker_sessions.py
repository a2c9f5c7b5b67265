"""Activities of a worker session go to the worker that holds it, whoever claims them first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from cluster.errors import StoreUnavailable
from cluster.ids import TaskKind
from cluster.queues.model import ActivityTask, PollStatus, WorkflowTask
from cluster.queues.session_gate import SessionGate
from cluster.session_options import SessionOptions
from cluster.store.store import Store
from cluster.worker_sessions import Standing, WorkerSession, WorkerSessions
from cluster.workflows.engine import StartRequest
from cluster.workflows.planning import LeaseTimes
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.waiting import PATIENCE, eventually

LEASE_MS = 60_000


@pytest.fixture
async def nodes(store: Store) -> AsyncIterator[list[PartialNode]]:
    leases = LeaseTimes(activity_ms=LEASE_MS)
    async with open_nodes(store, 2, leases=leases, peek_seconds=0.2) as opened:
        yield opened


def session(session_id: str = "s", **fields: Any) -> dict[str, Any]:
    return {"session_id": session_id, "max_concurrent_activities": 10, **fields}


async def schedule(node: PartialNode, workflow_id: str, *wires: dict[str, Any], build: str = "") -> str:
    """A run with one activity for each of the given sessions ({}: none)."""
    started = await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id=workflow_id, marker=build))
    request = poll_request("decider", kind=TaskKind.WORKFLOW, timeout=5.0, marker=build)
    task = (await node.polls.poll(request)).task
    assert isinstance(task, WorkflowTask)
    commands = [
        {"type": "schedule_activity", "activity_type": "act", **({"worker_session": wire} if wire else {})}
        for wire in wires
    ]
    await node.engine.complete_workflow_task("ns", task.task_id, "decider", task.attempt, commands)
    return started.info.run_id


async def take(node: PartialNode, worker: str, **fields: Any) -> ActivityTask | None:
    """What the node has for the worker by now; with a ``timeout``, also what it has not heard of yet."""
    task = (await node.polls.poll(poll_request(worker, **{"timeout": 0, **fields}))).task
    assert task is None or isinstance(task, ActivityTask)
    return task


async def complete(node: PartialNode, task: ActivityTask) -> None:
    await node.engine.complete_activity("ns", task.task_id, task.attempt_id, task.owner, None)


async def hold(node: PartialNode, worker: str, **fields: Any) -> WorkerSession:
    return await node.sessions.take("ns", worker, SessionOptions.of_command(session(**fields)))


async def events(node: PartialNode, workflow_id: str, run_id: str) -> str:
    page = await node.engine.history("ns", workflow_id, run_id, page_size=100, token=None)
    return b"\n".join(page.events).decode()


async def test_the_first_claimer_acquires_and_all_others_wait(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await schedule(first, "w1", session(), session(), session(), {})

    mine = await take(first, "a")
    assert mine is not None
    others = [await take(second, "b") for _ in range(2)]
    rest = [await take(second, "a"), await take(first, "a"), await take(first, "a")]

    assert [task is not None for task in others] == [True, False], "only the task without a session"
    assert [task is not None for task in rest] == [True, True, False]
    assert b'"worker_session":{"session_id":"s"' in mine.body
    assert others[0] is not None
    assert b"worker_session" not in others[0].body


async def test_parked_polls_of_the_holder_look_for_the_tasks_of_its_session(nodes: list[PartialNode]) -> None:
    first, second = nodes
    found: list[ActivityTask | None] = []
    async with trio.open_nursery() as nursery:

        async def park() -> None:
            found.append(await take(second, "a", timeout=20))

        nursery.start_soon(park)
        await eventually(lambda: second.polls.parked == 1)
        await hold(first, "a")
        # "b" claims it first and leaves it to the holder, whose poll waits on the other node.
        await schedule(first, "w1", session())
        assert await take(first, "b") is None or found
    assert found[0] is not None
    assert found[0].owner == "a"


async def test_two_workers_that_claim_at_once_share_nothing(nodes: list[PartialNode]) -> None:
    await schedule(nodes[0], "w1", *[session() for _ in range(8)])
    taken: list[ActivityTask] = []
    async with trio.open_nursery() as nursery:

        async def work(node: PartialNode, worker: str) -> None:
            while (task := await take(node, worker)) is not None:
                taken.append(task)

        for number in range(4):
            nursery.start_soon(work, nodes[number % 2], f"w{number}")
    owner = taken[0].owner
    await eventually_all(nodes, owner, taken, 8)
    assert {task.owner for task in taken} == {owner}
    assert len({task.task_id for task in taken}) == 8


async def eventually_all(
    nodes: list[PartialNode], owner: str, taken: list[ActivityTask], wanted: int
) -> None:
    while len(taken) < wanted:
        task = await take(nodes[0], owner, timeout=15)
        assert task is not None
        taken.append(task)


async def test_no_more_activities_run_at_once_than_the_session_allows(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await schedule(first, "w1", *[session(max_concurrent_activities=1) for _ in range(3)])
    done = 0
    while done < 3:
        task = await take(first, "a", timeout=5)
        assert task is not None
        assert [await take(second, "a"), await take(second, "b")] == [None, None]
        await complete(second, task)
        done += 1


async def test_room_that_comes_just_before_a_task_is_set_aside_is_seen(
    nodes: list[PartialNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    one = session(max_concurrent_activities=1)
    await schedule(first, "w1", one, one)
    running = await take(first, "a")
    assert running is not None
    set_aside = SessionGate._set_aside
    done: list[ActivityTask] = []

    async def complete_first(*arguments: Any) -> None:
        if not done:
            done.append(running)
            await complete(second, running)
        await set_aside(*arguments)

    monkeypatch.setattr(SessionGate, "_set_aside", complete_first)
    assert await take(first, "a") is not None
    assert done == [running]


async def test_a_build_s_tasks_stay_with_its_build(nodes: list[PartialNode]) -> None:
    first, _ = nodes
    await hold(first, "a")
    await schedule(first, "w1", session(), build="v1")
    assert await take(first, "a") is None
    assert await take(first, "b", marker="v1") is None, "set aside for the holder"
    assert await take(first, "a") is None, "which is of another build"
    assert await take(first, "a", marker="v1") is not None


async def test_a_closed_session_is_free_at_once(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await hold(first, "a")
    await schedule(first, "w1", session())
    assert await take(second, "b") is None
    closed = await first.sessions.close("ns", "s", "a", "done")
    await first.sessions.release_all("ns", "q", closed, "s")
    again = await first.sessions.close("ns", "s", "a", "done")
    assert [closed.standing, again.standing] == [Standing.CLOSED, Standing.CLOSED]
    assert await take(second, "b", timeout=PATIENCE) is not None
    assert (await first.sessions.close("ns", "s", "a", "x")).standing is Standing.TAKEN


async def test_the_session_of_a_silent_worker_is_taken_over(store: Store, nodes: list[PartialNode]) -> None:
    first, second = nodes
    await hold(first, "a", lease_seconds=60)
    await schedule(first, "w1", session())
    assert await take(second, "b") is None
    await lapse(store)
    for partition in range(store.keys.partitions):
        await first.sessions.release("ns", "q", "s", partition, "h", 10)
    task = await take(second, "b")
    assert task is not None
    assert await first.sessions.held("ns", "b") == ("s",)
    renewed = await first.sessions.renew("ns", "s", "a", 60)
    assert (renewed.standing, renewed.worker_id) == (Standing.TAKEN, "b")


async def lapse(store: Store) -> None:
    """The holder has been silent for longer than its lease."""
    await store.call("HSET", store.keys.worker_session("ses", "ns", "s"), "lease", 1)


async def test_what_was_set_aside_returns_by_itself(store: Store, nodes: list[PartialNode]) -> None:
    first, second = nodes
    await hold(first, "a", lease_seconds=1)
    await schedule(first, "w1", session())
    assert await take(second, "b") is None
    await lapse(store)
    armed = [p for p in range(store.keys.partitions) if await store.call("ZCARD", store.keys.timers(p))]
    partition = armed[0]
    timer, due_ms = await store.call("ZRANGE", store.keys.timers(partition), 0, 0, "WITHSCORES")
    assert timer.startswith(b"sticky ")
    await eventually(lambda: first.clock.now_ms() > int(float(due_ms)))
    await first.due.run(partition)
    assert await take(second, "b", timeout=PATIENCE) is not None
    assert await store.call("ZCARD", store.keys.timers(partition)) == 0


async def test_a_session_that_may_not_be_taken_over_fails_its_activities(
    store: Store, nodes: list[PartialNode]
) -> None:
    first, second = nodes
    options: dict[str, Any] = {"allow_reacquire_after_failure": False}
    await hold(first, "a", **options)
    run_id = await schedule(first, "w1", session(**options))
    await lapse(store)
    assert await take(second, "b") is None
    history = await events(first, "w1", run_id)
    assert "ActivityFailed" in history
    assert "WorkerSessionLost" in history
    # Its own worker may come back to it.
    assert (await first.sessions.renew("ns", "s", "a", 60)).standing is Standing.HELD


async def test_a_task_waits_for_a_session_that_it_may_not_create(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await schedule(first, "w1", session(create_if_missing=False))
    assert [await take(first, "a"), await take(second, "b")] == [None, None]
    found = await hold(first, "b")
    await first.sessions.release_all("ns", "q", found, "s")
    assert found.new
    assert await take(first, "a") is None
    assert await take(second, "b", timeout=PATIENCE) is not None


async def test_a_worker_holds_as_many_sessions_as_it_may(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await schedule(first, "w1", session("s1"), session("s2"))
    assert await take(first, "a", most_sessions=1) is not None
    assert await take(first, "a", most_sessions=1) is None
    assert await first.sessions.held("ns", "a") == ("s1",)
    created = await second.sessions.take("ns", "a", SessionOptions("s2"), most=1)
    assert created.standing is Standing.CROWDED


async def test_a_session_ends_with_its_ttl(store: Store, nodes: list[PartialNode]) -> None:
    first, _ = nodes
    held = await hold(first, "a", lease_seconds=60, ttl_seconds=30)
    assert held.lease_expires_at_ms == held.ttl_expires_at_ms
    await store.call("HSET", store.keys.worker_session("ses", "ns", "s"), "ttl", 1)
    assert (await first.sessions.renew("ns", "s", "a", 60)).standing is Standing.MISSING
    assert (await hold(first, "b", allow_reacquire_after_failure=False)).standing is Standing.HELD


async def test_signs_of_life_renew(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await schedule(first, "w1", session(lease_seconds=60, max_concurrent_activities=1), session())
    task = await take(first, "a")
    assert task is not None
    before = (await hold(first, "b")).lease_expires_at_ms
    await first.engine.heartbeat_activity("ns", task.task_id, task.attempt_id, "a", {})
    after = (await hold(first, "b")).lease_expires_at_ms
    assert after >= before
    assert await take(second, "a") is None, "its only place is still taken"


async def test_a_task_that_cannot_be_asked_for_goes_back(
    nodes: list[PartialNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    await schedule(first, "w1", session())

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(WorkerSessions, "take", away)
        with pytest.raises(StoreUnavailable):
            await take(first, "a")
    task = await take(second, "b", timeout=5)
    assert task is not None
    assert task.owner == "b"


async def test_a_repeated_poll_gets_the_same_task_of_a_session(nodes: list[PartialNode]) -> None:
    first, second = nodes
    await schedule(first, "w1", session(max_concurrent_activities=1))
    once = await take(first, "a", poll_request_id="p")
    again = await take(second, "a", poll_request_id="p")
    assert once is not None
    assert again is not None
    assert again.attempt_id == once.attempt_id


async def test_polls_without_sessions_ask_for_none(nodes: list[PartialNode]) -> None:
    first, _ = nodes
    await schedule(first, "w1", {}, {})
    assert await take(first, "a") is not None
    before = first.store.statistics().pipe.commands
    assert await take(first, "a") is not None
    assert first.store.statistics().pipe.commands - before == 1, "the claim"
    assert (await first.polls.poll(poll_request("a", timeout=0))).status is PollStatus.EMPTY
