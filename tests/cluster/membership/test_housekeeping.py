"""Housekeepers start, fail, come back and stop, each on its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import trio
import trio.testing

from cluster.errors import StoreUnavailable
from cluster.membership.fence import Fence
from cluster.membership.housekeeping import HeldPartition, Housekeeping


def held(partition: int = 3, nonce: str = "n1", clock: Callable[[], float] = lambda: 0.0) -> HeldPartition:
    session, lease = Fence(6.0, clock), Fence(2.5, clock)
    session.renewed(0.0)
    lease.renewed(0.0)
    return HeldPartition(partition, "node~1", nonce, 7, session, lease)


def test_acts_only_while_session_and_lease_are_certain() -> None:
    now = [0.0]
    tenure = held(clock=lambda: now[0])
    assert tenure.may_act()
    now[0] = 2.5
    assert not tenure.may_act()
    tenure.lease.renewed(2.5)
    assert tenure.may_act()
    tenure.session.drop()
    assert not tenure.may_act()


@pytest.mark.parametrize("error", [ValueError("broken"), StoreUnavailable("away")])
async def test_a_failed_one_starts_again_and_hurts_no_other(
    autojump_clock: trio.testing.MockClock, error: Exception
) -> None:
    starts: list[tuple[int, float]] = []

    async def housekeep(tenure: HeldPartition) -> None:
        starts.append((tenure.partition, trio.current_time()))
        if tenure.partition == 1:
            raise error
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        housekeeping = Housekeeping(housekeep, nursery)
        housekeeping.start(held(1))
        housekeeping.start(held(2))
        await trio.sleep(60)
        assert [partition for partition, _ in starts].count(2) == 1
        times = [at for partition, at in starts if partition == 1]
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
        assert pauses[:3] == [0.1, 0.2, 0.4]
        assert set(pauses[6:]) == {5.0}
        assert housekeeping.failures == len(times)
        await housekeeping.stop_all()
        assert not housekeeping.is_running(1)
        assert not housekeeping.is_running(2)


async def test_one_that_returns_is_started_again(autojump_clock: trio.testing.MockClock) -> None:
    starts = 0

    async def housekeep(tenure: HeldPartition) -> None:
        nonlocal starts
        starts += 1

    async with trio.open_nursery() as nursery:
        housekeeping = Housekeeping(housekeep, nursery)
        housekeeping.start(held())
        await trio.sleep(1)
        await housekeeping.stop_all()
    assert starts > 1


async def test_the_next_tenure_waits_until_the_last_one_has_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: list[str] = []

    async def housekeep(tenure: HeldPartition) -> None:
        log.append(f"{tenure.nonce} starts")
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            log.append(f"{tenure.nonce} ends")

    async with trio.open_nursery() as nursery:
        finished: list[int] = []
        housekeeping = Housekeeping(housekeep, nursery, lambda: finished.append(1))
        housekeeping.start(held(nonce="n1"))
        await trio.testing.wait_all_tasks_blocked()
        housekeeping.stop(3)
        housekeeping.start(held(nonce="n2"))
        assert housekeeping.is_running(3)
        await trio.sleep(2)
        assert log == ["n1 starts", "n1 ends", "n2 starts"]
        assert len(finished) == 1
        await housekeeping.stop_all()


async def test_an_error_while_being_stopped_is_kept_inside(autojump_clock: trio.testing.MockClock) -> None:
    async def housekeep(tenure: HeldPartition) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("broken on the way out")

    async with trio.open_nursery() as nursery:
        housekeeping = Housekeeping(housekeep, nursery)
        housekeeping.start(held())
        await trio.testing.wait_all_tasks_blocked()
        await housekeeping.stop_all()
        assert housekeeping.failures == 1


async def test_stopped_before_it_started(autojump_clock: trio.testing.MockClock) -> None:
    async def housekeep(tenure: HeldPartition) -> None:
        raise AssertionError("must not run")

    async with trio.open_nursery() as nursery:
        housekeeping = Housekeeping(housekeep, nursery)
        housekeeping.start(held())
        housekeeping.stop(3)
        housekeeping.stop(4)
        await housekeeping.stop_all()
        assert housekeeping.failures == 0
