"""That a poll was sent is noted by the claim it is in, else by itself: what it costs, what it survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from cluster.errors import OutcomeUnknown, StoreError
from cluster.ids import TaskKind
from cluster.queues.claims import ClaimWaiter
from cluster.queues.matcher import CLAIM_LIMIT
from cluster.queues.model import PollRequest, PollResult, PollStatus, WorkflowTask
from cluster.queues.polls import SEEN_MS, poll_token
from cluster.settings import Settings
from cluster.store.store import Store, open_store
from cluster.workflows.engine import StartRequest
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.cluster.queues.lab import Lab, queue_name
from tests.cluster.queues.test_matcher import parked, task_of
from tests.servers import run_server
from tests.waiting import PATIENCE, eventually

COUNTED = {"claim", "commit", "peek", "SET", "PUBLISH"}


@contextmanager
def sent_by(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the scripts and commands of polls and commits that a store sends: each is a round trip of its
    own where nothing else is under way.
    """
    counted: Counter[str] = Counter()
    run, call = Store.run, Store.call

    def note(sender: Store, name: object) -> None:
        if sender is store and name in COUNTED:
            counted[str(name)] += 1

    async def count_run(self: Store, script: str, *args: Any, **more: Any) -> Any:
        note(self, script)
        return await run(self, script, *args, **more)

    async def count_call(self: Store, *command: Any, **more: Any) -> Any:
        note(self, command[0])
        return await call(self, *command, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "run", count_run)
        patch.setattr(Store, "call", count_call)
        yield counted


async def note_ms(store: Store, request: PollRequest) -> int:
    """How long it is still known that this poll was sent; negative: it is not."""
    left: int = await store.call("PTTL", store.keys.poll(poll_token(request)))
    return left


def one_lease_at_most(**settings: Any) -> Settings:
    tree = {"*": {"activity_tasks": {"max_active_leases": 1, **settings}}}
    return Settings(task_queue_admission_overrides=orjson.dumps(tree).decode())


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0.0, 5.0])
async def test_a_task_costs_a_claim_and_a_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    tasks = 5
    async with open_nodes(store, 1) as (node,):
        for number in range(tasks):
            await node.engine.start(StartRequest("ns", "Flow", "q", workflow_id=f"wf{number}"))
        with sent_by(store, monkeypatch) as sent:
            for number in range(tasks):
                request = poll_request(kind=TaskKind.WORKFLOW, poll_request_id=f"p{number}", timeout=timeout)
                task = (await node.polls.poll(request)).task
                assert isinstance(task, WorkflowTask)
                await node.engine.complete_workflow_task(
                    "ns", task.task_id, "w", task.attempt, [{"type": "complete_workflow"}]
                )
            assert sent == {"claim": tasks, "commit": tasks}
        assert 0 < await note_ms(store, request) <= timeout * 1000 + SEEN_MS


@pytest.mark.parametrize("poll_request_id", [None, "p1"])
@pytest.mark.parametrize("timeout", [0.0, 5.0])
async def test_a_first_look_that_finds_nothing_is_one_claim(
    store: Store, monkeypatch: pytest.MonkeyPatch, poll_request_id: str | None, timeout: float
) -> None:
    request = poll_request(poll_request_id=poll_request_id, timeout=timeout)
    async with open_nodes(store, 1) as (node,), trio.open_nursery() as nursery:
        with sent_by(store, monkeypatch) as sent:
            if timeout:
                nursery.start_soon(node.polls.poll, request)
                await parked(node)
            else:
                assert (await node.polls.poll(request)).status is PollStatus.EMPTY
            assert sent == {"claim": 1}
        assert (await note_ms(store, request) > 0) == (poll_request_id is not None)
        node.polls.close()


async def test_a_poll_that_parks_without_a_claim_is_noted_by_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = poll_request("second", poll_request_id="p2", timeout=20.0)
    async with open_nodes(store, 1) as (node,), trio.open_nursery() as nursery:
        nursery.start_soon(node.polls.poll, poll_request("first"))
        await parked(node)
        with sent_by(store, monkeypatch) as sent:
            nursery.start_soon(node.polls.poll, request)
            await eventually(lambda: sent == {"SET": 1})
            await parked(node, 2)
        await eventually(lambda: is_noted(store, request))
        assert await note_ms(store, request) <= 20_000 + SEEN_MS
        node.polls.close()


async def is_noted(store: Store, request: PollRequest) -> bool:
    return await note_ms(store, request) > 0


# -- whoever waits is known to have been sent -----------------------------------------------------


async def test_polls_that_limits_hold_back_are_noted(valkey_store: Store) -> None:
    lab = Lab(valkey_store)
    waiting = poll_request("waits", poll_request_id="p1")
    single = poll_request("looks", poll_request_id="p2", timeout=0)
    async with (
        open_nodes(valkey_store, 1, settings=one_lease_at_most()) as (node,),
        trio.open_nursery() as nursery,
    ):
        await lab.enqueue()
        await lab.enqueue()
        task_of(await node.polls.poll(poll_request()))
        nursery.start_soon(node.polls.poll, waiting)
        assert (await node.polls.poll(single)).status is PollStatus.THROTTLED
        assert await is_noted(valkey_store, single)
        await eventually(lambda: is_noted(valkey_store, waiting))
        node.polls.close()


async def test_polls_beyond_the_first_claim_are_noted(valkey_store: Store) -> None:
    number = CLAIM_LIMIT[TaskKind.ACTIVITY] + 6
    requests = [poll_request(f"w{n}", poll_request_id=f"p{n}") for n in range(number)]
    async with open_nodes(valkey_store, 1) as (node,), trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(node.polls.poll, request)
        for request in requests:
            await eventually(lambda request=request: is_noted(valkey_store, request))  # type: ignore[misc]
        node.polls.close()


async def test_polls_of_a_node_that_may_not_act_are_noted(valkey_store: Store) -> None:
    request = poll_request(poll_request_id="p1")
    async with (
        open_nodes(valkey_store, 1, may_act=lambda: False) as (node,),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(node.polls.poll, request)
        await eventually(lambda: is_noted(valkey_store, request))
        node.polls.close()


async def test_a_poll_that_cannot_be_noted_ends_at_once(tmp_path: Path, prefix: str) -> None:
    with run_server("valkey", tmp_path) as server:
        async with (
            open_store(server.url, prefix=prefix, call_timeout=0.2) as store,
            open_nodes(store) as (node, _),
            trio.open_nursery() as nursery,
        ):
            wanted = {"kind": TaskKind.WORKFLOW, "timeout": 60.0}
            nursery.start_soon(node.polls.poll, poll_request("first", **wanted))
            await parked(node)
            server.kill()
            with trio.fail_after(PATIENCE), pytest.raises(StoreError):
                await node.polls.poll(poll_request("second", poll_request_id="p1", **wanted))
            node.polls.close()


# -- the same poll again --------------------------------------------------------------------------


async def test_a_claim_elsewhere_finds_what_a_token_holds_in_another_partition(valkey_store: Store) -> None:
    """The claim that says that the poll was sent before looks only where there is work."""
    lab, request = Lab(valkey_store), poll_request(poll_request_id="p1")
    async with open_nodes(valkey_store) as (first, second), trio.open_nursery() as nursery:
        nursery.start_soon(second.polls.poll, poll_request("other", types=frozenset({"never"})))
        await parked(second)
        held = await lab.enqueue(partition=7)
        assert task_of(await first.polls.poll(request)).task_id == held
        other = await lab.enqueue(partition=3)
        await second.matcher._peek()
        assert task_of(await second.polls.poll(request)).task_id == held
        assert (await lab.record(other, 3))["s"] == "r"
        second.polls.close()


async def test_a_poll_sent_again_gets_what_a_node_claimed_before_it_died(lab: Lab) -> None:
    request = poll_request(poll_request_id="p1")
    task = await lab.enqueue()
    await lab.enqueue(partition=5)
    dead = ClaimWaiter("w", poll_token(request), frozenset(), note_ms=60_000)
    assert [claim.task_id for claim in (await lab.ask([dead])).claims] == [task]
    async with open_nodes(lab.store, 1) as (node,):
        assert task_of(await node.polls.poll(request)).task_id == task


@pytest.mark.parametrize("timeout", [0.0, 5.0])
@pytest.mark.parametrize("sent_before", [False, True])
async def test_the_reply_of_the_first_claim_is_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, timeout: float, sent_before: bool
) -> None:
    """Whether it handed out a task or said that the poll was sent before, there is one lease."""
    request = poll_request(poll_request_id="p1", timeout=timeout)
    run, lost = Store.run, False

    async def lose(self: Store, script: str, *args: Any, **more: Any) -> Any:
        nonlocal lost
        reply = await run(self, script, *args, **more)
        if script == "claim" and not lost:
            lost = True
            raise OutcomeUnknown("the reply was lost")
        return reply

    tasks = [await lab.enqueue(partition=partition) for partition in (2, 9)]
    async with open_nodes(lab.store) as (first, second):
        if sent_before:
            await first.polls.poll(request)
        monkeypatch.setattr(Store, "run", lose)
        task = task_of(await second.polls.poll(request))
        assert lost
    records = [await lab.record(name, partition) for name, partition in zip(tasks, (2, 9), strict=True)]
    assert sorted(record["s"] for record in records) == ["l", "r"]
    assert [record["d"] for record in records] == ["0", "0"]
    assert records[tasks.index(task.task_id)]["s"] == "l"


async def test_two_nodes_asked_at_once_lease_one_task(store: Store) -> None:
    lab, rounds = Lab(store), 24
    results: dict[str, list[PollResult]] = {f"q{number}": [] for number in range(rounds)}

    async def poll(node: PartialNode, queue: str) -> None:
        request = poll_request(queue=queue, poll_request_id="p", timeout=5.0)
        results[queue].append(await node.polls.poll(request))

    async with open_nodes(store) as nodes:
        tasks = {
            queue: [await lab.enqueue(partition=p, queue=queue_name(queue)) for p in (1, 2)]
            for queue in results
        }
        async with trio.open_nursery() as nursery:
            for queue in results:
                for node in nodes:
                    nursery.start_soon(poll, node, queue)

        async def leased(queue: str) -> list[str]:
            pairs = zip(tasks[queue], (1, 2), strict=True)
            return [task for task, partition in pairs if (await lab.record(task, partition))["s"] == "l"]

        for queue, answers in results.items():
            given = {answer.task.task_id for answer in answers if answer.task is not None}
            assert given

            async def settled(queue: str = queue, given: set[str] = given) -> bool:
                held = await leased(queue)
                return len(held) == 1 and held[0] in given

            await eventually(settled)
