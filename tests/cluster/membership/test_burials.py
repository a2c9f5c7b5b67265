"""What happens to burials when something changes while they are written (E1)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from cluster.membership.burials import Burials
from cluster.membership.partitions import PartitionKeeper
from cluster.membership.sessions import Burial
from cluster.membership.timing import Timing
from cluster.store.store import Store
from tests.waiting import PATIENCE

PARTITIONS = 3


class Recorder:
    """Stands for the store: notes each write, and lets something happen during the first."""

    def __init__(self) -> None:
        self.written: list[tuple[int, list[str]]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.keys = SimpleNamespace(dead=lambda partition: partition)

    async def run(self, _script: str, keys: list[int], arguments: list[Any], *, idempotent: bool) -> None:
        assert idempotent
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        await trio.lowlevel.checkpoint()
        self.written.append((keys[0], arguments[2::2]))


@pytest.fixture
def store() -> Recorder:
    return Recorder()


@pytest.fixture
def burials(store: Recorder) -> Burials:
    held = {n: SimpleNamespace(partition=n, nonce=f"t{n}") for n in range(PARTITIONS)}
    keeper = SimpleNamespace(held=held, on_taken=lambda _hook: None)
    return Burials(cast(Store, store), Timing(), cast(PartitionKeeper, keeper))


async def told_once(burials: Burials) -> str:
    """Run until a burial is told."""
    send, receive = trio.open_memory_channel[str](10)
    burials.on_buried(send.send_nowait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(burials.run)
        with trio.fail_after(PATIENCE):
            name = await receive.receive()
        nursery.cancel_scope.cancel()
    assert receive.statistics().current_buffer_used == 0
    return name


async def test_a_rewrite_during_a_write_writes_all_again_before_it_is_told(
    burials: Burials, store: Recorder
) -> None:
    store.meanwhile = burials.rewrite
    burials.learn([Burial("a~1", 1_000)], 1_000)
    assert await told_once(burials) == "a~1"
    everywhere = [(partition, ["a~1"]) for partition in range(PARTITIONS)]
    assert sorted(store.written) == sorted([*everywhere, *everywhere])


async def test_a_burial_that_is_forgotten_during_a_write_does_no_harm(
    burials: Burials, store: Recorder
) -> None:
    day = 10 * int(Timing().memory * 1000)
    store.meanwhile = lambda: burials.learn([], day)
    burials.learn([Burial("a~1", 1_000)], 1_000)
    assert await told_once(burials) == "a~1"
    assert len(store.written) == PARTITIONS
    assert burials.known == 0
