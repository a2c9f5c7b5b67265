"""Parked polls on several nodes: woken without polling, never forgotten, never served twice."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest
import trio

from cluster.errors import StoreError
from cluster.queues.matcher import ENDED_AT_ONCE
from cluster.queues.model import ActivityTask, PollResult, PollStatus
from cluster.store.store import Store, open_store
from cluster.store.transaction import Transaction
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.cluster.queues.lab import Lab, queue_name
from tests.servers import run_server
from tests.waiting import PATIENCE, eventually


def task_of(result: PollResult) -> ActivityTask:
    assert result.status is PollStatus.LEASED
    assert isinstance(result.task, ActivityTask)
    return result.task


async def parked(node: PartialNode, number: int = 1) -> None:
    """Wait until polls are parked here and everything was looked through once."""
    await eventually(
        lambda: node.polls.parked == number and not any(q.serving for q in node.matcher._queues.values())
    )


async def test_a_parked_poll_is_woken_by_work_from_elsewhere(lab: Lab) -> None:
    async with open_nodes(lab.store) as (node, _), trio.open_nursery() as nursery:
        results: list[PollResult] = []

        async def poll() -> None:
            results.append(await node.polls.poll(poll_request()))

        nursery.start_soon(poll)
        await parked(node)
        with trio.fail_after(PATIENCE):
            task = await lab.enqueue(partition=9)
            await eventually(lambda: bool(results))
        assert task_of(results[0]).task_id == task


async def test_a_parked_poll_costs_nothing(valkey_store: Store) -> None:
    async with open_nodes(valkey_store, 1) as (node,), trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(node.polls.poll, poll_request(f"w{number}"))
        await parked(node, 50)
        before = valkey_store.statistics().pipe.commands
        await trio.sleep(0.3)
        # What a node asks for now and then does not grow with the number of its polls.
        assert valkey_store.statistics().pipe.commands - before <= 5
        node.polls.close()


async def test_a_closing_node_ends_its_polls_some_at_a_time(valkey_store: Store) -> None:
    """Thousands of answers in one turn would let its session end before it has left."""
    async with open_nodes(valkey_store, 1) as (node,), trio.open_nursery() as nursery:
        for number in range(3 * ENDED_AT_ONCE):
            nursery.start_soon(node.polls.poll, poll_request(f"w{number}"))
        await parked(node, 3 * ENDED_AT_ONCE)
        node.polls.close()
        await trio.lowlevel.checkpoint()
        assert node.polls.parked >= ENDED_AT_ONCE
        await eventually(lambda: node.polls.parked == 0)


async def test_work_of_many_types_without_workers_keeps_nobody_busy(valkey_store: Store) -> None:
    lab = Lab(valkey_store)
    for number in range(100):
        await lab.enqueue(f"nobody{number}")
    async with open_nodes(valkey_store, 1) as (node,), trio.open_nursery() as nursery:
        nursery.start_soon(node.polls.poll, poll_request(types=frozenset({"wanted"})))
        await parked(node)
        assert node.matcher.statistics().claims <= 2
        await lab.enqueue("wanted")
        await eventually(lambda: node.polls.parked == 0)


async def test_builds_are_not_mixed_up_in_one_claim(valkey_store: Store) -> None:
    lab = Lab(valkey_store)
    async with open_nodes(valkey_store, 1) as (node,), trio.open_nursery() as nursery:
        results: dict[str, PollResult] = {}

        async def poll(marker: str) -> None:
            results[marker] = await node.polls.poll(poll_request(f"w{marker}", marker=marker))

        for marker in ("", "b1", "b2"):
            nursery.start_soon(poll, marker)
        await parked(node, 3)
        stamped = await lab.enqueue(queue=queue_name(marker="b2"))
        await eventually(lambda: bool(results))
        plain = await lab.enqueue(), await lab.enqueue()
        await eventually(lambda: len(results) == 3)
        assert task_of(results["b2"]).task_id == stamped
        assert {task_of(results[""]).task_id, task_of(results["b1"]).task_id} == set(plain)


@pytest.mark.parametrize("peek_seconds", [1e6, 0.3])
async def test_no_wake_is_lost_under_hammering(store: Store, peek_seconds: float) -> None:
    lab, random, total = Lab(store), Random(5), 400
    types = ["a", "b", "c"]
    kept: set[str] = set()
    hand_outs: list[str] = []

    async def feed() -> None:
        for _ in range(total // 8):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(enqueue)
            await trio.sleep(random.choice([0, 0, 0.002, 0.01]))

    async def enqueue() -> None:
        await lab.enqueue(random.choice(types), partition=random.randrange(16))

    async def work(node: PartialNode, name: str) -> None:
        while len(kept) < total:
            wanted = frozenset(random.sample(types, random.randrange(4)))
            patience = random.choice([0.001, 0.003, 0.01, 0.2])
            with trio.move_on_after(random.choice([0.002, 0.005, 1.0])):
                request = poll_request(name, types=wanted, timeout=patience)
                result = await node.polls.poll(request)
                if result.task is not None:
                    task = task_of(result)
                    hand_outs.append(task.attempt_id)
                    kept.add(task.task_id)

    async with open_nodes(store, 3, peek_seconds=peek_seconds) as nodes:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed)
                for number in range(12):
                    nursery.start_soon(work, nodes[number % 3], f"w{number}")
        assert len(kept) == total
        assert len(hand_outs) == len(set(hand_outs)) == total
        assert [node.matcher.statistics().wakes_missed for node in nodes] == [0, 0, 0]


@pytest.mark.parametrize("timeout", [0.0, 10.0])
async def test_a_poll_that_leaves_at_any_moment_loses_no_task(valkey_store: Store, timeout: float) -> None:
    lab = Lab(valkey_store)
    task_id = await lab.enqueue(partition=3)
    delivery, left = 0, 0
    async with open_nodes(valkey_store, 2) as nodes:
        for step in range(60):
            node = nodes[step % 2]
            with trio.move_on_after(step * 0.0001) as scope:
                result = await node.polls.poll(poll_request(timeout=timeout, poll_request_id=f"p{step}"))
            if not scope.cancelled_caught:
                task = task_of(result)
                assert task.task_id == task_id
                delivery = int(task.attempt_id.rpartition(".")[2])
                assert (await lab.record(task_id, 3))["d"] == str(delivery)
                await give_back(lab, task_id, delivery)
            else:
                left += 1
                await eventually(lambda: ready(lab, task_id))
        with trio.fail_after(PATIENCE):
            last = task_of(await nodes[0].polls.poll(poll_request("last")))
        assert last.task_id == task_id
        assert last.attempt == 1
    assert left > 0
    await lab.audit(3)


async def ready(lab: Lab, task_id: str) -> bool:
    return (await lab.record(task_id, 3))["s"] == "r"


async def give_back(lab: Lab, task_id: str, delivery: int) -> None:
    tx = Transaction(3)
    tx.requeue(task_id, 1, delivery + 1)
    await lab.store.commit(tx)


async def test_closing_answers_all_parked_polls_at_once(valkey_store: Store) -> None:
    async with open_nodes(valkey_store, 1) as (node,):
        results: list[PollResult] = []

        async def poll(number: int) -> None:
            results.append(await node.polls.poll(poll_request(f"w{number}", timeout=60)))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(poll, number)
                await parked(node, 20)
                node.polls.close()
        assert [result.status for result in results] == [PollStatus.EMPTY] * 20
        assert (await node.polls.poll(poll_request())).status is PollStatus.EMPTY


async def test_a_node_that_may_not_act_hands_out_nothing(valkey_store: Store) -> None:
    lab, acting = Lab(valkey_store), [False]
    await lab.enqueue()
    async with open_nodes(valkey_store, 1, may_act=lambda: acting[0]) as (node,):
        with pytest.raises(StoreError):
            await node.polls.poll(poll_request(timeout=0))
        assert (await node.polls.poll(poll_request(timeout=0.05))).task is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.polls.poll, poll_request())
            await eventually(lambda: node.polls.parked == 1)
            acting[0] = True


@pytest.mark.parametrize("how", ["freeze", "crash"])
async def test_a_parked_poll_is_served_after_an_outage(tmp_path: Path, prefix: str, how: str) -> None:
    with run_server("valkey", tmp_path) as server:
        async with open_store(server.url, prefix=prefix) as store, open_nodes(store) as (node, _):
            results: list[PollResult] = []

            async def poll() -> None:
                results.append(await node.polls.poll(poll_request(timeout=30)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await parked(node)
                if how == "freeze":
                    server.signal(signal.SIGSTOP)
                    await trio.sleep(0.3)
                    server.signal(signal.SIGCONT)
                else:
                    server.kill()
                    await trio.to_thread.run_sync(server.start)
                async with open_store(server.url, prefix=prefix) as other:
                    task = await Lab(other).enqueue()
                await eventually(lambda: bool(results))
            assert task_of(results[0]).task_id == task


async def test_a_poll_that_could_not_be_asked_for_says_so(tmp_path: Path, prefix: str) -> None:
    with run_server("valkey", tmp_path) as server:
        async with (
            open_store(server.url, prefix=prefix, call_timeout=0.2) as store,
            open_nodes(store) as (node, _),
            trio.open_nursery() as nursery,
        ):
            outcomes: list[StoreError | PollResult] = []

            async def poll(timeout: float) -> None:
                try:
                    outcomes.append(await node.polls.poll(poll_request(timeout=timeout)))
                except StoreError as error:
                    outcomes.append(error)

            nursery.start_soon(poll, 1.0)
            await parked(node)
            server.kill()
            node.matcher._on_reconnect()
            await eventually(lambda: bool(outcomes))
            assert isinstance(outcomes[0], StoreError)
            await poll(0)
            assert isinstance(outcomes[1], StoreError)
