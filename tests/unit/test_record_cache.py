"""What a node may remember of a record, and when it has to ask again (B2)."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing

from cluster.record_cache import RecordCache, change_message
from cluster.store.store import Store
from tests.unit.api.fakes import MemoryStore


class Source:
    """Records that count how often they are read; ``gate`` holds an answer back."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, ...], str] = {("a", "b"): "one"}
        self.reads = 0
        self.gate: trio.Event | None = None
        self.time = 0.0

    async def load(self, *names: str) -> str | None:
        self.reads += 1
        found = self.records.get(names)
        if self.gate is not None:
            await self.gate.wait()
        return found


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def cache(source: Source, store: MemoryStore) -> RecordCache[str]:
    made = RecordCache("thing", source.load, max_age=10, max_entries=2, now=lambda: source.time)
    await made.watch(cast(Store, store))
    return made


async def test_a_known_record_is_read_once(cache: RecordCache[str], source: Source) -> None:
    assert [await cache.get("a", "b") for _ in range(3)] == ["one"] * 3
    assert source.reads == 1


async def test_nothing_is_remembered_before_changes_are_heard(source: Source) -> None:
    unheard = RecordCache("thing", source.load)

    await unheard.get("a", "b")
    await unheard.get("a", "b")

    assert source.reads == 2


async def test_absence_is_not_remembered(cache: RecordCache[str], source: Source) -> None:
    assert await cache.get("x") is None
    source.records["x",] = "new"
    assert await cache.get("x") == "new"


async def test_a_record_is_read_again_after_its_time(cache: RecordCache[str], source: Source) -> None:
    await cache.get("a", "b")
    source.time = 9.9
    await cache.get("a", "b")
    assert source.reads == 1
    source.time = 10
    await cache.get("a", "b")
    assert source.reads == 2


async def test_only_the_named_record_is_forgotten(cache: RecordCache[str], source: Source) -> None:
    source.records["a b", "c"] = "two"
    await cache.get("a", "b")
    await cache.get("a b", "c")

    cache._heard("channel", change_message("thing", "a b", "c").encode())
    cache._heard("channel", change_message("other", "a", "b").encode())
    cache._heard("channel", b"\xff%zz")

    await cache.get("a", "b")
    assert source.reads == 2
    await cache.get("a b", "c")
    assert source.reads == 3


@pytest.mark.parametrize("gap", [False, True], ids=["change", "reconnect"])
async def test_an_answer_that_was_overtaken_is_not_remembered(
    cache: RecordCache[str], source: Source, store: MemoryStore, gap: bool
) -> None:
    source.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.get, "a", "b")
        await trio.testing.wait_all_tasks_blocked()
        source.records["a", "b"] = "two"
        if gap:
            store.reconnect()
        else:
            cache.forget("a", "b")
        source.gate.set()
    source.gate = None

    assert await cache.get("a", "b") == "two"
    assert await cache.get("a", "b") == "two"
    assert source.reads == 2


async def test_memory_is_bounded(cache: RecordCache[str], source: Source) -> None:
    source.records |= {("c",): "c", ("d",): "d"}
    for names in (("a", "b"), ("c",), ("d",), ("c",), ("d",)):
        await cache.get(*names)
    assert source.reads == 3

    await cache.get("a", "b")
    assert source.reads == 4
