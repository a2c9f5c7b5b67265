"""Turns: one after the other, nobody in a circle, nothing left behind."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from cluster.flows.turns import Turns
from tests.waiting import PATIENCE


async def test_one_after_the_other_in_order() -> None:
    turns = Turns()
    order: list[str] = []

    async def take(name: str, *runs: str) -> None:
        async with turns.of(runs):
            order.append(f"{name} in")
            await wait_all_tasks_blocked()
            order.append(f"{name} out")

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(take, name, "x")
            await wait_all_tasks_blocked()
    assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]
    assert len(turns) == 0


async def test_nobody_waits_in_a_circle() -> None:
    turns = Turns()
    done: list[int] = []

    async def take(*runs: str) -> None:
        for _ in range(20):
            async with turns.of(runs):
                await trio.lowlevel.checkpoint()
        done.append(1)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for runs in (("x", "y"), ("y", "x"), ("y", "z", "y"), ("z", "x")):
                nursery.start_soon(take, *runs)
    assert (len(done), len(turns)) == (4, 0)


async def test_who_gives_up_leaves_nothing() -> None:
    turns = Turns()
    async with turns.of(["x"]):
        with trio.move_on_after(0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_hold, turns)
        assert len(turns) == 1
    assert len(turns) == 0


async def _hold(turns: Turns) -> None:
    async with turns.of(["w", "x"]):
        raise AssertionError("it is held by somebody else")
