"""Redis goes away: nobody pretends that a queue is empty, and nothing leaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from urllib.parse import urlsplit

import orjson
import trio
import trio.testing

from cluster.admission.audit import Audit
from cluster.queues.model import PollResult, PollStatus
from cluster.settings import Settings
from cluster.store.store import open_store
from tests.cluster.admission.test_limits_hold import tree
from tests.cluster.admission.world import World
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.cluster.queues.lab import Lab
from tests.faults import FaultProxy, open_proxy
from tests.waiting import eventually

LIMIT = 3


@asynccontextmanager
async def behind_a_proxy(
    url: str, prefix: str, limit: int = LIMIT
) -> AsyncIterator[tuple[PartialNode, FaultProxy, World]]:
    """A node with a limited queue whose connections to Redis can be broken, and a way around."""
    overrides = orjson.dumps(tree(max_active_leases=limit)).decode()
    settings = Settings(task_queue_admission_overrides=overrides)
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    async with (
        open_proxy((parts.hostname, parts.port)) as proxy,
        open_store(url, prefix=prefix, partitions=4) as around,
        open_store(proxy.url, prefix=prefix, partitions=4, call_timeout=0.5) as store,
        open_nodes(store, 1, peek_seconds=0.3, settings=settings) as [node],
    ):
        yield node, proxy, World([], Lab(around), 4)


async def poll(node: PartialNode, seconds: float = 0.0) -> PollResult:
    return await node.polls.poll(poll_request(timeout=seconds))


async def test_a_poll_that_cannot_ask_is_unavailable(redis_url: str, prefix: str) -> None:
    async with behind_a_proxy(redis_url, prefix) as (node, proxy, world):
        await world.add(10)
        assert (await poll(node)).status is PollStatus.LEASED
        proxy.refusing = True
        await proxy.cut()
        for seconds in (0.0, 0.8):
            result = await poll(node, seconds)
            assert (result.status, result.task) == (PollStatus.UNAVAILABLE, None)
        proxy.refusing = False
        assert (await poll(node, 5)).status is PollStatus.LEASED
        assert (await poll(node, 5)).status is PollStatus.LEASED
        result = await poll(node)
        assert result.status is PollStatus.THROTTLED
        assert await world.tickets() == LIMIT == await world.leases()


async def test_a_parked_poll_sits_out_an_outage(redis_url: str, prefix: str) -> None:
    async with behind_a_proxy(redis_url, prefix) as (node, proxy, world):
        results: list[PollResult] = []

        async def park() -> None:
            results.append(await poll(node, 10))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(park)
            await eventually(lambda: node.polls.parked == 1)
            proxy.refusing = True
            await proxy.cut()
            await world.add(1)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert results == []
            proxy.refusing = False
        assert results[0].status is PollStatus.LEASED


async def test_a_poll_whose_last_look_fails_is_unavailable(redis_url: str, prefix: str) -> None:
    async with behind_a_proxy(redis_url, prefix) as (node, proxy, world):
        await world.add(1)
        assert (await poll(node)).status is PollStatus.LEASED
        results: list[PollResult] = []

        async def park() -> None:
            results.append(await poll(node, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(park)
            await eventually(lambda: node.polls.parked == 1)
            proxy.black_hole()
            await eventually(lambda: bool(results))
            proxy.black_hole(False)
        assert results[0].status is PollStatus.UNAVAILABLE


async def test_a_lost_answer_to_a_request_for_tickets_leaks_nothing(redis_url: str, prefix: str) -> None:
    async with behind_a_proxy(redis_url, prefix) as (node, proxy, world):
        await world.add(10)
        assert (await poll(node)).status is PollStatus.LEASED
        # A limit of 3 is what the script gets as its first number, and only this script.
        proxy.lose_reply_to = b"$1\r\n3\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n"
        assert (await poll(node, 5)).status is PollStatus.LEASED
        assert proxy.lost.is_set()
        assert (await poll(node, 5)).status is PollStatus.LEASED
        await eventually(lambda: _settled(world, LIMIT))
        assert (await poll(node)).status is PollStatus.THROTTLED


async def test_a_lost_answer_to_a_claim_keeps_ticket_and_lease_together(redis_url: str, prefix: str) -> None:
    async with behind_a_proxy(redis_url, prefix) as (node, proxy, world):
        await world.add(10)
        assert (await poll(node)).status is PollStatus.LEASED
        proxy.lose_reply_to = prefix.encode() + b":{p00"
        results = [await poll(node, 3) for _ in range(3)]
        assert proxy.lost.is_set()
        assert await world.leases() <= await world.tickets() <= LIMIT
        assert any(result.status is PollStatus.LEASED for result in results)


async def test_a_ticket_whose_drop_was_lost_is_dropped_once_redis_is_back(
    redis_url: str, prefix: str
) -> None:
    async with behind_a_proxy(redis_url, prefix, limit=1) as (node, _, world):
        await world.add(2)
        result = await poll(node)
        assert result.task is not None
        await world.lab.drop(result.task.task_id, 0)
        assert await world.tickets() == 1
        assert await Audit(world.store, node.limits, Random(1)).audit("ns") == 0
        base = world.store.keys.admission("ns")
        for key in (f"{base}:t:a", f"{base}:q:a:q"):
            [ticket] = await world.store.call("ZRANGE", key, 0, 0)
            await world.store.call("ZADD", key, 1, ticket)
        assert await Audit(world.store, node.limits, Random(1)).audit("ns") == 1
        assert (await poll(node, 5)).status is PollStatus.LEASED


async def _settled(world: World, number: int) -> bool:
    return await world.tickets() == number == await world.leases()
