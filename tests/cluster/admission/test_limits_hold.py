"""Each limit, one at a time, through the matcher."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import trio

from cluster.ids import TaskKind
from cluster.queues.claims import Claim
from cluster.queues.model import PollStatus
from cluster.settings import Settings
from cluster.store.store import open_store
from tests.cluster.admission.world import ACTIVITY, WORKFLOW, Member, World, open_world
from tests.cluster.nodes import PartialNode, open_nodes, poll_request
from tests.cluster.queues.lab import Lab
from tests.store_time import early_in_a_minute
from tests.waiting import eventually

SECTION = {ACTIVITY: "activity_tasks", WORKFLOW: "workflow_tasks"}


def tree(kind: TaskKind = ACTIVITY, key: str = "*", **fields: Any) -> dict[str, Any]:
    return {key: {SECTION[kind]: fields}}


async def taken(world: World, tries: int, **where: Any) -> list[Claim]:
    """What ``tries`` polls, one after the other and round the nodes, get."""
    found = []
    for index in range(tries):
        claim = await world.members[index % len(world.members)].poll(**where)
        if claim is not None:
            found.append(claim)
    return found


@pytest.mark.parametrize("kind", [ACTIVITY, WORKFLOW])
async def test_a_queue_has_so_many_leases_and_not_one_more(
    redis_url: str, prefix: str, kind: TaskKind
) -> None:
    overrides = tree(kind, max_active_leases=3)
    async with open_world(redis_url, prefix, members=2, overrides=overrides) as world:
        await world.add(10, kind=kind)
        claims = await taken(world, 6, kind=kind)
        assert len(claims) == 3 == await world.tickets(kind=kind)
        assert await world.members[0].poll(kind=TaskKind.ACTIVITY if kind is WORKFLOW else WORKFLOW) is None
        await world.finish(claims[0], world.members[1])
        await eventually(lambda: _is(world.tickets(kind=kind), 2))
        assert len(await taken(world, 3, kind=kind)) == 1


async def _is(number: Any, wanted: int) -> bool:
    found: int = await number
    return found == wanted


async def test_a_namespace_counts_all_its_queues_and_no_other(redis_url: str, prefix: str) -> None:
    overrides = tree(key="ns:*", max_active_leases_per_namespace=3)
    async with open_world(redis_url, prefix, members=2, overrides=overrides) as world:
        for queue in ("a", "b"):
            await world.add(3, queue=queue)
            await world.add(3, queue=queue, namespace="other")
        first = await taken(world, 2, queue="a") + await taken(world, 3, queue="b")
        assert len(first) == 3
        assert await taken(world, 2, queue="a") == []
        assert len(await taken(world, 3, queue="a", namespace="other")) == 3
        assert await world.tickets("other") == 0


async def test_a_namespace_limit_under_one_queue_counts_the_leases_of_all(
    redis_url: str, prefix: str
) -> None:
    overrides = tree(key="ns:a", max_active_leases_per_namespace=2)
    async with open_world(redis_url, prefix, overrides=overrides) as world:
        await world.add(3, queue="a")
        await world.add(3, queue="b")
        assert len(await taken(world, 3, queue="b")) == 3
        assert await taken(world, 1, queue="a") == []


@pytest.mark.parametrize(
    ("fields", "queues", "counted"),
    [
        ({"max_dispatches_per_minute": 4}, ("a",), {"q:a": 4, "n": 0}),
        ({"max_dispatches_per_minute_per_namespace": 4}, ("a", "b"), {"n": 4}),
        (
            {"budget_group": "api x", "max_dispatches_per_minute_per_budget_group": 4},
            ("a", "b", "c"),
            {"g:api%20x": 4, "n": 0},
        ),
    ],
)
async def test_so_many_dispatches_a_minute(
    redis_url: str, prefix: str, fields: dict[str, Any], queues: tuple[str, ...], counted: dict[str, int]
) -> None:
    async with open_world(redis_url, prefix, members=2, overrides=tree(**fields)) as world:
        await early_in_a_minute(world.store)
        for queue in queues:
            await world.add(6, queue=queue)
        claims: list[Claim] = []
        for _ in range(4):
            for queue in queues:
                claims += await taken(world, 1, queue=queue)
        assert len(claims) == 4
        for claim in claims:
            await world.finish(claim)
        assert await taken(world, 2, queue=queues[0]) == []
        for field, number in counted.items():
            assert await world.dispatched(field) == number
        assert await world.tickets() == 0, "without a lease limit there are no tickets"


async def test_without_limits_nothing_is_asked(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix) as world:
        await world.add(2)
        assert await world.members[0].poll() is not None
        before = world.members[0].store.statistics().pipe.commands
        assert await world.members[0].poll() is not None
        assert world.members[0].store.statistics().pipe.commands - before <= 1
        assert not await world.store.call("KEYS", f"{world.store.keys.admission('ns')}*")


async def test_a_parked_poll_gets_its_task_when_a_lease_ends_elsewhere(redis_url: str, prefix: str) -> None:
    overrides = tree(max_active_leases=1)
    async with open_world(redis_url, prefix, members=2, peek_seconds=60, overrides=overrides) as world:
        await world.add(2)
        [first] = await taken(world, 1)
        got: list[Claim | None] = []

        async def park(member: Member) -> None:
            got.append(await member.poll(60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(park, world.members[1])
            await eventually(lambda: waits_for_room(world))
            assert got == []
            await world.finish(first, world.members[0])
            await eventually(lambda: bool(got))
        assert got[0] is not None


async def waits_for_room(world: World) -> bool:
    return bool(await world.store.call("KEYS", f"{world.store.keys.admission('ns')}:w:*"))


async def test_a_ticket_of_an_empty_queue_is_not_taken(redis_url: str, prefix: str) -> None:
    overrides = tree(max_active_leases_per_namespace=1)
    async with (
        open_world(redis_url, prefix, members=2, overrides=overrides) as world,
        trio.open_nursery() as n,
    ):
        for _ in range(10):
            n.start_soon(world.members[0].poll, 30)
        await eventually(lambda: world.members[0].matcher.statistics().parked == 10)
        await world.add(20, queue="busy")
        for _ in range(20):
            claim = await world.members[1].poll(5, queue="busy")
            assert claim is not None
            await world.finish(claim, world.members[1])
        n.cancel_scope.cancel()


async def test_a_returned_task_brings_its_ticket_back(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, overrides=tree(max_active_leases=1)) as world:
        await world.add(2)
        [claim] = await taken(world, 1)
        await world.members[0].matcher.give_back(claim, "w")
        await eventually(lambda: _is(world.tickets(), 0))
        assert len(await taken(world, 2)) == 1


async def test_the_version_of_the_limits_fences_claims_everywhere(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, members=2, peek_seconds=60) as world:
        await world.add(10)
        assert len(await taken(world, 4)) == 4
        here, there = world.members
        there.limits.forget = lambda namespace: None  # type: ignore[method-assign]
        await here.limits.replace("ns", lambda _: tree(key="ns:q", max_active_leases=5))
        claims = await taken(world, 6)
        assert len(claims) == 1
        assert await world.tickets() == 5 == await world.leases()


async def test_a_used_up_queue_is_throttled_even_when_nothing_is_ready(redis_url: str, prefix: str) -> None:
    """D11: limits come first; and once there is room, an empty queue is empty."""
    settings = Settings(task_queue_admission_overrides=orjson.dumps(tree(max_active_leases=1)).decode())
    async with (
        open_store(redis_url, prefix=prefix, partitions=4) as store,
        open_nodes(store, 1, peek_seconds=0.3, settings=settings) as [node],
    ):
        lab = Lab(store)
        assert (await node.polls.poll(poll_request(timeout=0))).status is PollStatus.EMPTY
        task = await lab.enqueue()
        assert (await node.polls.poll(poll_request(timeout=0))).status is PollStatus.LEASED
        for seconds in (0, 0.2):
            result = await node.polls.poll(poll_request(timeout=seconds))
            assert result.status is PollStatus.THROTTLED
            assert result.throttle is not None
            assert (result.throttle.maximum, result.throttle.count) == (1, 1)
            assert result.retry_after is None
        await lab.drop(task)
        await eventually(lambda: _empty(node))


async def _empty(node: PartialNode) -> bool:
    return (await node.polls.poll(poll_request(timeout=0))).status is PollStatus.EMPTY
