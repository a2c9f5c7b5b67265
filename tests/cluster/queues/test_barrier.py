"""The pause after the store was restarted or replaced, and what nodes take back in it (E5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from cluster.admission.gate import Permit
from cluster.errors import Paused
from cluster.ids import TaskKind
from cluster.queues.barrier import KEEP_LEASES, KEEP_SECONDS, Barrier, Held, Reasserted, RecentLeases
from cluster.queues.claims import Claim
from cluster.queues.slot_claims import SlotGroup, StepClaim, Want, claim_steps
from cluster.store.keys import QueueName
from cluster.store.store import Store
from tests.cluster.queues.lab import Lab
from tests.waiting import PATIENCE

STEPS = QueueName(TaskKind.STEP, "ns", "F")
FREE = Permit("ns", TaskKind.STEP, "F", version=0, free=True)


def make_barrier(
    lab: Lab, held: Iterable[Held] = (), *, live: Sequence[str] = ("node~1", "other~2"), pause: float = 0.2
) -> Barrier:
    held = list(held)
    barrier = Barrier(lab.store, session=lambda: lab.session, live=lambda: live, pause_seconds=pause)
    barrier.add(lambda: held)
    return barrier


async def say(barrier: Barrier) -> dict[Reasserted, int]:
    """One pass of a barrier; what became of what the node runs."""
    async with trio.open_nursery() as nursery:
        await nursery.start(barrier.run)
        nursery.cancel_scope.cancel()
    return {state: number for state, number in barrier.statistics().states.items() if number}


async def another_server(lab: Lab, partition: int = 0) -> None:
    """As if the partition had handed out on another server so far."""
    await lab.store.call("HSET", lab.store.keys.generation(partition), "g", "another")


async def snapshot(store: Store, partition: int = 0) -> dict[bytes, bytes]:
    """What a replica has of a partition."""
    found = await store.call("KEYS", f"{store.keys.base(partition)}:*")
    return {key: await store.call("DUMP", key) for key in found}


async def roll_back(store: Store, to: dict[bytes, bytes], partition: int = 0) -> None:
    """A replica that had only this is the primary now."""
    for key in await store.call("KEYS", f"{store.keys.base(partition)}:*"):
        await store.call("DEL", key)
    for key, value in to.items():
        await store.call("RESTORE", key, 0, value)
    await store.call("HSET", store.keys.generation(partition), "g", "another")


def lease(claim: Claim, token: str, owner: str = "w") -> Held:
    return Held(
        claim.partition,
        claim.task_id,
        claim.attempt,
        claim.delivery,
        owner,
        token=token,
        expires_at_ms=claim.expires_at_ms,
        call=claim.call,
    )


async def take_step(lab: Lab) -> StepClaim | None:
    """Claim one step for a slot of worker ``w``."""
    group = SlotGroup("w", 1, (Want(STEPS),))
    reply = await claim_steps(lab.store, lab.session, [0], [group], 1, {STEPS: FREE})
    return reply.claims[0] if reply.claims else None


def on_stream(claim: StepClaim) -> Held:
    return Held(claim.partition, claim.task_id, claim.attempt, claim.delivery, "w", ticket=claim.ticket)


# -- the pause ------------------------------------------------------------------------------------


async def test_a_partition_that_never_handed_out_does_so_at_once(lab: Lab) -> None:
    await lab.enqueue()
    assert await lab.claim() is not None
    assert len((await lab.hash(lab.store.keys.generation(0)))["g"]) == 40


async def test_an_unknown_server_hands_out_nothing(lab: Lab) -> None:
    await lab.enqueue()
    await lab.enqueue(queue=STEPS)
    await another_server(lab)
    before = await lab.audit()
    for claim in (lab.claim, lambda: take_step(lab)):
        with pytest.raises(Paused) as paused:
            await claim()
        assert paused.value.unknown
    assert await lab.audit() == before


async def test_after_a_pause_work_goes_on(lab: Lab) -> None:
    task = await lab.enqueue()
    step = await lab.enqueue(queue=STEPS)
    await another_server(lab)
    assert await say(make_barrier(lab)) == {}
    for claim in (lab.claim, lambda: take_step(lab)):
        with pytest.raises(Paused) as paused:
            await claim()
        assert not paused.value.unknown
    with trio.fail_after(PATIENCE):
        while True:
            try:
                claimed = await lab.claim()
            except Paused:
                await trio.sleep(0.01)
                continue
            break
    assert claimed is not None
    assert claimed.task_id == task
    taken = await take_step(lab)
    assert taken is not None
    assert taken.task_id == step


async def test_the_pause_ends_once_every_live_node_has_spoken(lab: Lab) -> None:
    await lab.enqueue()
    await another_server(lab)
    first = make_barrier(lab, pause=60)
    await say(first)
    with pytest.raises(Paused):
        await lab.claim()
    await say(first)
    with pytest.raises(Paused):
        await lab.claim()
    lab.session = "other~2"
    await say(make_barrier(lab, pause=60))
    assert await lab.claim() is not None


async def test_a_buried_node_says_nothing(lab: Lab) -> None:
    await another_server(lab)
    await lab.store.call("ZADD", lab.store.keys.dead(0), 1, lab.session)
    await say(make_barrier(lab, live=[lab.session]))
    assert (await lab.hash(lab.store.keys.generation(0)))["g"] == "another"


async def test_a_known_server_pauses_nothing(lab: Lab) -> None:
    await lab.enqueue()
    await say(make_barrier(lab, pause=60))
    await say(make_barrier(lab, pause=60))
    assert await lab.claim() is not None


# -- what is taken back ---------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [False, True], ids=["new", "returned"])
async def test_a_lost_lease_is_taken_back(lab: Lab, returned: bool) -> None:
    """The worker may go on, nobody else gets the task, and nothing is left when it is done."""
    task = await lab.enqueue()
    other = await lab.enqueue()
    if returned:
        first = await lab.claim()
        assert first is not None
        await lab.requeue(first)
    replica = await snapshot(lab.store)
    claim = await lab.claim(token="mine")
    assert claim is not None
    assert claim.task_id == task
    leased = await lab.record(task)
    await roll_back(lab.store, replica)

    assert await say(make_barrier(lab, [lease(claim, "mine")], live=[lab.session])) == {Reasserted.TAKEN: 1}
    again = await lab.record(task)
    for varying in ("x", "la", "qi"):
        leased.pop(varying), again.pop(varying)
    assert again == leased
    assert await lab.drain() == [other]
    assert await say(make_barrier(lab, [lease(claim, "mine")], live=[lab.session])) == {Reasserted.KEPT: 1}
    await lab.drop(task)
    await lab.drop(other)
    left = {name.partition(":")[0] for name in await lab.keys()}
    assert left <= {"gen", "q", "cur", "queues", "nq", "ty", "run", "rate"}


async def test_a_lost_step_is_taken_back(lab: Lab) -> None:
    step = await lab.enqueue(queue=STEPS)
    run = lab.store.keys.run(0, step.rpartition("-")[0])
    await lab.store.call("HSET", run, "v", "a flow counts otherwise")
    replica = await snapshot(lab.store)
    claim = await take_step(lab)
    assert claim is not None
    await roll_back(lab.store, replica)
    assert await say(make_barrier(lab, [on_stream(claim)], live=[lab.session])) == {Reasserted.TAKEN: 1}
    record = await lab.record(step)
    assert (record["s"], record["ss"], record["o"]) == ("l", lab.session, "w")
    assert await take_step(lab) is None
    members = await lab.store.call("SMEMBERS", lab.store.keys.handed_out(0, lab.session))
    assert members == [step.encode()]


async def test_what_nobody_takes_back_is_handed_out_under_the_same_number(lab: Lab) -> None:
    await lab.enqueue()
    replica = await snapshot(lab.store)
    first = await lab.claim()
    await roll_back(lab.store, replica)
    await say(make_barrier(lab, live=[lab.session]))
    second = await lab.claim()
    assert first is not None
    assert second is not None
    assert (second.task_id, second.attempt, second.delivery) == (
        first.task_id,
        first.attempt,
        first.delivery,
    )


async def test_what_has_changed_is_lost(lab: Lab) -> None:
    """A later attempt, another owner, a closed or older run, a lease that is over, a task that is gone."""
    claimed: list[Claim] = []
    for number in range(6):
        await lab.enqueue()
        claim = await lab.claim(token=f"t{number}")
        assert claim is not None
        claimed.append(claim)
    later, foreign, closed, older, over, gone = claimed
    await lab.requeue(later, attempt=2)
    for returned in (closed, older, over):
        await lab.requeue(returned)
    await lab.drop(gone.task_id)
    run = lab.store.keys.run(0, closed.task_id.rpartition("-")[0])
    await lab.store.call("HSET", run, "c", 1)
    held = [
        lease(later, "t0"),
        lease(foreign, "not mine"),
        replace(lease(closed, "t2"), delivery=closed.delivery + 1),
        replace(lease(older, "t3"), delivery=older.delivery + 1, version=2),
        replace(lease(over, "t4"), delivery=over.delivery + 1, expires_at_ms=over.leased_at_ms),
        lease(gone, "t5"),
    ]
    before = await lab.audit()
    assert await say(make_barrier(lab, held, live=[lab.session])) == {Reasserted.LOST: 6}
    assert await lab.audit() == before


async def test_many_are_said_in_pieces(lab: Lab) -> None:
    held = [Held(0, f"none-{number}", 1, 0, "w") for number in range(250)]
    await another_server(lab)
    assert await say(make_barrier(lab, held, live=[lab.session], pause=60)) == {Reasserted.LOST: 250}
    await lab.enqueue()
    assert await lab.claim() is not None


async def test_recent_leases_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    recent = RecentLeases()
    recent.add(Held(0, "old", 1, 0, "w", token="t"))
    await trio.sleep(KEEP_SECONDS + 1)
    recent.add(Held(0, "a", 1, 0, "w", token="t"))
    recent.add(Held(0, "a", 2, 0, "w", token="u"))
    assert [(one.task_id, one.attempt) for one in recent.all()] == [("a", 2)]
    recent.drop("a")
    recent.drop("a")
    for number in range(KEEP_LEASES + 10):
        recent.add(Held(0, str(number), 1, 0, "w", token="t"))
    assert len(recent) == KEEP_LEASES
    assert recent.all()[0].task_id == "10"
