"""Burials are written again when the store may have forgotten them, also while they are being written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import trio

from cluster.membership.burials import Burials
from cluster.membership.sessions import Burial
from cluster.membership.timing import Timing
from cluster.store.keys import Keys
from tests.waiting import PATIENCE


async def test_a_rewrite_in_the_middle_of_a_write() -> None:
    written: list[str] = []
    enough = trio.Event()

    async def run(_script: str, keys: list[str], _args: list[Any], **_options: bool) -> None:
        written.append(keys[0])
        if len(written) == 2:
            burials.rewrite()
        if len(written) == 6:
            enough.set()
        await trio.lowlevel.checkpoint()

    held = {n: SimpleNamespace(partition=n, nonce=str(n)) for n in range(3)}
    keeper = SimpleNamespace(held=held, on_taken=lambda hook: None)
    store = SimpleNamespace(run=run, keys=Keys())
    burials = Burials(cast(Any, store), Timing(), cast(Any, keeper))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(burials.run)
        burials.learn([Burial("dead~1", 1_000)], 1_000)
        with trio.fail_after(PATIENCE):
            await enough.wait()
        nursery.cancel_scope.cancel()
    assert sorted(written) == sorted([Keys().dead(n) for n in range(3)] * 2)
