"""Nothing leaks when a node dies, and nothing is counted that is not there."""

from __future__ import annotations

from random import Random

import pytest
import trio

from cluster.admission import tickets
from cluster.admission.audit import Audit, auditing_partition
from cluster.admission.counting import Counting
from cluster.admission.limits import LimitName
from cluster.ids import TaskKind
from tests.cluster.admission.test_limits_hold import taken, tree
from tests.cluster.admission.world import ACTIVITY, World, open_world
from tests.cluster.nodes import hold
from tests.store_time import store_ms
from tests.waiting import eventually

LIMITED = tree(max_active_leases=5)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets may be audited at once."""
    monkeypatch.setattr(tickets, "AUDIT_AFTER_MS", 0)


def audit_of(world: World) -> Audit:
    return Audit(world.store, world.members[0].limits, Random(1))


@pytest.mark.usefixtures("hasty")
async def test_a_ticket_that_was_taken_but_never_used_is_dropped(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, members=2, overrides=LIMITED) as world:
        gate = world.members[1].gate
        first = await gate.ask("ns", ACTIVITY, "q", 3)
        assert first.number == 3
        await world.members[1].crash()
        await world.add(5)
        claims = [await world.members[0].poll() for _ in range(3)]
        assert [claim is None for claim in claims] == [False, False, True]
        assert await world.tickets() == 5
        audit = audit_of(world)
        assert await audit.audit("ns") == 3
        assert await world.tickets() == 2 == await world.tickets(queue="q")
        assert await audit.audit("ns") == 0


@pytest.mark.usefixtures("hasty")
async def test_who_takes_a_partition_audits_it_at_once(redis_url: str, prefix: str) -> None:
    """Where a node dies every few seconds, nobody holds a partition for as long as audits are apart."""
    async with open_world(redis_url, prefix, members=2, overrides=LIMITED) as world:
        await world.members[1].gate.ask("ns", ACTIVITY, "q", 5)
        await world.members[1].crash()
        audit = Audit(world.store, world.members[0].limits, Random(1), every=3600)
        partition = auditing_partition("ns", world.store.keys.partitions)
        held = await hold(world.store, partition)

        async def free() -> bool:
            return await world.tickets() == 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit.housekeep, held)
            await eventually(free)
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("hasty")
async def test_the_ticket_of_a_lease_that_ended_unheard_is_dropped(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, members=2, overrides=LIMITED) as world:
        await world.add(4)
        claims = await taken(world, 4)
        assert await audit_of(world).audit("ns") == 0
        await world.members[1].crash()
        # The store of the world belongs to no node: nobody hears that these leases end.
        for claim in claims[:3]:
            await world.lab.drop(claim.task_id, claim.partition)
        assert await world.tickets() == 4
        assert await audit_of(world).audit("ns") == 3
        assert await world.tickets() == 1


async def test_young_tickets_are_left_alone(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, overrides=LIMITED) as world:
        await world.members[0].gate.ask("ns", ACTIVITY, "q", 3)
        assert await audit_of(world).audit("ns") == 0
        assert await world.tickets() == 3


@pytest.mark.usefixtures("hasty")
async def test_a_lease_that_has_run_out_keeps_no_ticket_and_no_heartbeat_revives_it(
    redis_url: str, prefix: str
) -> None:
    async with open_world(redis_url, prefix, overrides=LIMITED) as world:
        await world.add(1, lease_ms=1)
        [claim] = await taken(world, 1)
        await eventually(lambda: _lapsed(world))
        assert await audit_of(world).audit("ns") == 1
        await world.lab.extend(claim.task_id, 60_000, claim.partition)
        record = await world.lab.record(claim.task_id, claim.partition)
        assert int(record["x"]) == claim.expires_at_ms


async def _lapsed(world: World) -> bool:
    now = await store_ms(world.store)
    base = world.store.keys.base(0)
    [_, expiry] = await world.store.call("ZRANGE", f"{base}:leases", 0, 0, "WITHSCORES")
    return int(float(expiry)) < now


async def test_leases_made_before_counting_began_are_counted(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, members=3) as world:
        await world.add(400)
        for _ in range(10):
            for member in world.members:
                for _ in range(10):
                    assert await member.poll() is not None
        assert await world.tickets() == 0
        await world.members[0].limits.replace("ns", lambda _: tree(key="ns:q", max_active_leases=302))
        assert len(await taken(world, 6)) == 2
        assert await world.tickets() == 302 == await world.leases()


async def test_two_nodes_begin_at_once_and_one_does_it(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix) as world:
        await world.add(20)
        await taken(world, 20)
        one, other = Counting(world.store), Counting(world.store)
        results = [await counting.begin("ns", ACTIVITY) for counting in (one, other)]
        assert results == [True, True]
        assert await world.tickets() == 20
        assert await world.members[0].gate.ask("ns", TaskKind.WORKFLOW, "q", 0)


async def test_counting_ends_when_nobody_needs_it_and_claims_are_free_again(
    redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.admission.counting.UNUSED_MS", 0)
    async with open_world(redis_url, prefix, members=2) as world:
        await world.add(30)
        here, there = world.members
        await here.limits.replace("ns", lambda _: tree(key="ns:q", max_active_leases=3))
        claims = await taken(world, 6)
        assert len(claims) == 3
        await here.limits.replace("ns", lambda _: {})
        assert len(await taken(world, 2)) == 2
        assert await audit_of(world).audit("ns") == 0
        assert len(await taken(world, 6)) == 6
        before = there.store.statistics().pipe.commands
        assert await there.poll() is not None
        assert there.store.statistics().pipe.commands - before == 1
        for claim in claims:
            await world.finish(claim)
        await eventually(lambda: _no_tickets(world))


async def _no_tickets(world: World) -> bool:
    """But for those that were taken while only one of the nodes knew that counting had ended."""
    return await world.tickets() <= 2


async def test_a_node_without_the_limit_still_takes_tickets(redis_url: str, prefix: str) -> None:
    """Environments may differ while settings are rolled out: leases are counted all the same."""
    async with (
        open_world(redis_url, prefix, overrides=tree(max_active_leases=4)) as strict,
        open_world(redis_url, prefix) as lax,
    ):
        await strict.add(10)
        assert len(await taken(strict, 2)) == 2
        assert len(await taken(lax, 3)) == 3
        assert await strict.tickets() == 5
        assert await taken(strict, 2) == []
        standing = (await strict.members[0].gate.ask("ns", ACTIVITY, "q", 0)).standing
        assert standing is not None
        assert standing.count(LimitName.QUEUE_LEASES) == 5


async def test_an_announcement_that_was_cut_short_is_completed(redis_url: str, prefix: str) -> None:
    async with open_world(redis_url, prefix, members=2) as world:
        await world.members[0].limits.replace("ns", lambda _: tree(key="ns:q", max_active_leases=3))
        terms = world.store.keys.terms("ns")
        await world.store.call("HDEL", terms, "told")
        for partition in range(world.partitions):
            await world.store.call("DEL", f"{world.store.keys.base(partition)}:adm")
        await Audit(world.store, world.members[1].limits, Random(1)).audit("ns")
        assert await world.store.call("HGET", terms, "told") == b"1"
        for partition in range(world.partitions):
            known = await world.lab.hash(f"{world.store.keys.base(partition)}:adm")
            assert known["a:ns:v"] == "1"


async def test_terms_that_a_failover_took_back_catch_up_with_the_partitions(
    redis_url: str, prefix: str
) -> None:
    async with open_world(redis_url, prefix) as world:
        await world.add(4)
        assert await world.members[0].poll() is not None
        for partition in range(world.partitions):
            await world.store.call("HSET", f"{world.store.keys.base(partition)}:adm", "a:ns:v", 7)
        assert await world.members[0].poll() is not None
        assert await world.members[0].poll(5) is not None
        assert await world.store.call("HGET", world.store.keys.terms("ns"), "v") == b"7"


async def test_a_partition_that_insists_on_tickets_gets_them(redis_url: str, prefix: str) -> None:
    """The namespace's slot forgot that leases are counted, a partition did not."""
    async with open_world(redis_url, prefix) as world:
        await world.add(4)
        assert await world.members[0].poll() is not None
        for partition in range(world.partitions):
            await world.store.call("HSET", f"{world.store.keys.base(partition)}:adm", "a:ns:m", "lost")
        assert await world.members[0].poll(5) is not None
        assert await world.tickets() == 2 == await world.leases()
