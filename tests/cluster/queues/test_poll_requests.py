"""``poll_request_id``: a poll that is sent again gets what it was given, and only once."""

from __future__ import annotations

from random import Random

import pytest
import trio

from cluster.ids import parse_task_id, partition_of_run
from cluster.queues.model import PollResult, PollStatus
from cluster.queues.polls import GRACE_SECONDS, poll_token
from cluster.record_cache import change_message
from cluster.store.store import Store
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.cluster.queues.lab import Lab
from tests.cluster.queues.test_matcher import parked, task_of
from tests.waiting import LONG_PATIENCE, PATIENCE, eventually


@pytest.mark.parametrize("timeout", [0.0, 5.0])
@pytest.mark.parametrize("again", [0, 1])
async def test_the_same_attempt_comes_again_on_any_node(lab: Lab, again: int, timeout: float) -> None:
    await lab.enqueue(partition=7)
    await lab.enqueue(partition=7)
    request = poll_request(poll_request_id="p1", timeout=timeout)
    async with open_nodes(lab.store) as nodes:
        first = task_of(await nodes[0].polls.poll(request))
        second = task_of(await nodes[again].polls.poll(request))
        assert second == first
        other = task_of(await nodes[again].polls.poll(poll_request(poll_request_id="p2", timeout=timeout)))
        assert other.task_id != first.task_id
    assert (await lab.record(first.task_id, 7))["d"] == "0"


async def test_after_the_task_is_done_the_same_poll_gets_a_fresh_one(lab: Lab) -> None:
    request = poll_request(poll_request_id="p1")
    async with open_nodes(lab.store) as nodes:
        await lab.enqueue()
        first = task_of(await nodes[0].polls.poll(request))
        await lab.drop(first.task_id)
        await lab.enqueue()
        second = task_of(await nodes[1].polls.poll(request))
        assert second.task_id != first.task_id


async def test_two_at_once_on_a_node_share_one_answer(valkey_store: Store) -> None:
    lab, request = Lab(valkey_store), poll_request(poll_request_id="p1")
    results: list[PollResult] = []
    async with open_nodes(valkey_store) as (node, _), trio.open_nursery() as nursery:

        async def poll() -> None:
            results.append(await node.polls.poll(request))

        for _ in range(3):
            nursery.start_soon(poll)
        await parked(node)
        await lab.enqueue()
        await lab.enqueue()
        await eventually(lambda: len(results) == 3)
        assert results[0] == results[1] == results[2]


async def test_when_the_first_of_two_leaves_the_other_goes_on(valkey_store: Store) -> None:
    lab, request = Lab(valkey_store), poll_request(poll_request_id="p1")
    results: list[PollResult] = []
    async with open_nodes(valkey_store) as (node, _), trio.open_nursery() as nursery:

        async def poll() -> None:
            results.append(await node.polls.poll(request))

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as first:
                first.start_soon(poll)
                await parked(node)
                nursery.start_soon(poll)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await parked(node)
        task = await lab.enqueue()
        await eventually(lambda: bool(results))
        assert task_of(results[0]).task_id == task


async def test_a_newer_poll_elsewhere_takes_over(valkey_store: Store) -> None:
    lab, request = Lab(valkey_store), poll_request(poll_request_id="p1")
    results: dict[str, PollResult] = {}
    async with open_nodes(valkey_store) as nodes, trio.open_nursery() as nursery:

        async def poll(node: PartialNode) -> None:
            results[node.name] = await node.polls.poll(request)

        nursery.start_soon(poll, nodes[0])
        await parked(nodes[0])
        nursery.start_soon(poll, nodes[1])
        await eventually(lambda: nodes[0].name in results)
        assert results[nodes[0].name].status is PollStatus.EMPTY
        await parked(nodes[1])
        task = await lab.enqueue()
        await eventually(lambda: nodes[1].name in results)
        assert task_of(results[nodes[1].name]).task_id == task


async def test_an_answer_that_crossed_the_takeover_is_given_back(valkey_store: Store) -> None:
    """The older poll was answered after the newer one had looked for its lease."""
    lab, request = Lab(valkey_store), poll_request(poll_request_id="p1")
    await lab.enqueue()
    async with open_nodes(valkey_store) as nodes:
        lost = task_of(await nodes[0].polls.poll(request))
        channel = valkey_store.keys.changed_channel()
        await valkey_store.call("PUBLISH", channel, f"poll {poll_token(request)} {nodes[1].name}")
        found = task_of(await nodes[1].polls.poll(poll_request()))
        assert (found.task_id, found.attempt) == (lost.task_id, lost.attempt)
        assert found.attempt_id != lost.attempt_id


async def test_an_answer_that_the_newer_poll_found_stays_its(valkey_store: Store) -> None:
    lab, request = Lab(valkey_store), poll_request(poll_request_id="p1")
    await lab.enqueue()
    async with open_nodes(valkey_store) as nodes:
        first = task_of(await nodes[0].polls.poll(request))
        assert task_of(await nodes[1].polls.poll(request)) == first
        await trio.sleep(GRACE_SECONDS + 0.1)
        assert nodes[0].matcher.statistics().returned == 0
        record = await lab.record(first.task_id)
        assert (record["s"], record["d"]) == ("l", "0")


async def test_impatient_workers_that_repeat_everywhere_lose_nothing(valkey_store: Store) -> None:
    lab, random, total = Lab(valkey_store), Random(11), 150
    done: list[str] = []

    async def feed() -> None:
        for _ in range(total):
            await lab.enqueue(partition=random.randrange(16))
            await trio.sleep(random.choice([0, 0.001, 0.004]))

    async def work(nodes: list[PartialNode], name: str) -> None:
        number = 0
        while len(done) < total:
            number += 1
            result = None
            while result is None and len(done) < total:
                request = poll_request(name, poll_request_id=f"p{number}", timeout=0.3)
                # Who gives up hangs up some time later, when the next request is on its way.
                with trio.move_on_after(random.choice([0.001, 0.003, 0.01, 1.0])):
                    answer = await random.choice(nodes).polls.poll(request)
                    result = answer if answer.task is not None else None
            if result is not None:
                task = task_of(result)
                parsed = parse_task_id(task.task_id)
                assert parsed is not None
                await lab.drop(task.task_id, partition_of_run(parsed.run_id) or 0)
                done.append(task.task_id)

    async with open_nodes(valkey_store, 3) as nodes:
        with trio.fail_after(LONG_PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed)
                for number in range(6):
                    nursery.start_soon(work, nodes, f"w{number}")
    assert len(set(done)) == total


@pytest.mark.parametrize("current", ["second", None], ids=["began anew", "left"])
async def test_the_earlier_polls_of_a_worker_end_on_every_node(lab: Lab, current: str | None) -> None:
    """Or its next task would be given to a process that no longer listens."""

    async def registration(_namespace: str, _worker_id: str) -> str | None:
        return current

    async with open_nodes(lab.store, registration=registration) as nodes:
        store = lab.store
        results: list[PollResult] = []

        async def wait(registration: str) -> None:
            request = poll_request(poll_request_id=registration, registration=registration, timeout=30.0)
            results.append(await nodes[1].polls.poll(request))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, "first")
                if current is not None:
                    nursery.start_soon(wait, current)
                await eventually(lambda: nodes[1].polls.parked == (1 if current is None else 2))
                request = poll_request()
                message = change_message("worker", request.namespace, request.worker_id)
                await store.call("PUBLISH", store.keys.changed_channel(), message)
                await eventually(lambda: len(results) == 1)
                assert results == [PollResult(PollStatus.EMPTY)]
                assert nodes[1].polls.parked == (0 if current is None else 1)
                await lab.enqueue()
                if current is None:
                    results.append(await nodes[0].polls.poll(poll_request()))
        assert task_of(results[1]).attempt == 1
