"""The cluster record is written once and then binds everybody."""

from __future__ import annotations

import pytest
import structlog
import trio

from cluster.bootstrap import SCHEMA, ClusterRecord, bootstrap
from cluster.errors import StartupError
from cluster.store.store import Store, open_store


async def test_the_first_node_decides(store: Store) -> None:
    seconds, _ = await store.call("TIME")
    record = await bootstrap(store, 8)
    assert record.created
    assert (record.schema, record.partitions, record.prefix) == (SCHEMA, 8, store.keys.prefix)
    assert abs(record.created_at_ms - int(seconds) * 1000) < 10_000
    again = await bootstrap(store, 8)
    assert again == ClusterRecord(SCHEMA, 8, store.keys.prefix, record.created_at_ms)


async def test_nodes_that_start_together_agree(redis_url: str, prefix: str) -> None:
    records: list[ClusterRecord] = []

    async def start(wanted: int) -> None:
        async with open_store(redis_url, prefix=prefix) as store:
            try:
                records.append(await bootstrap(store, wanted))
            except StartupError:
                records.append(await bootstrap(store, None))

    async with trio.open_nursery() as nursery:
        for index in range(8):
            nursery.start_soon(start, 4 + index % 4)
    assert len({(record.partitions, record.created_at_ms) for record in records}) == 1
    assert sum(record.created for record in records) <= 1


async def test_exactly_one_of_eight_creates_it(redis_url: str, prefix: str) -> None:
    records: list[ClusterRecord] = []

    async def start() -> None:
        async with open_store(redis_url, prefix=prefix) as store:
            records.append(await bootstrap(store, None))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(start)
    assert sorted(record.created for record in records) == [False] * 7 + [True]
    assert {record.partitions for record in records} == {16}


async def test_a_default_yields_to_the_record_with_a_warning(store: Store) -> None:
    await bootstrap(store, 8)
    with structlog.testing.capture_logs() as logs:
        assert (await bootstrap(store, None)).partitions == 8
    assert [(line["log_level"], line["partitions"]) for line in logs] == [("warning", 8)]


async def test_an_explicit_other_count_is_refused_in_one_line(store: Store) -> None:
    await bootstrap(store, 8)
    with pytest.raises(StartupError, match=r"8 partitions, which cannot change.*it says 16") as refusal:
        await bootstrap(store, 16)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("wanted", [0, -1, 1025])
async def test_an_impossible_count_is_refused(store: Store, wanted: int) -> None:
    with pytest.raises(StartupError, match="between 1 and 1024"):
        await bootstrap(store, wanted)
    assert await store.call("EXISTS", store.keys.cluster()) == 0


async def test_a_newer_schema_is_refused(store: Store) -> None:
    await bootstrap(store, None)
    await store.call("HSET", store.keys.cluster(), "schema", SCHEMA + 1)
    with pytest.raises(StartupError, match="newer build"):
        await bootstrap(store, None)


@pytest.mark.parametrize("partitions", ["", "many", "0"])
async def test_a_damaged_record_is_refused(store: Store, partitions: str) -> None:
    await bootstrap(store, None)
    await store.call("HSET", store.keys.cluster(), "partitions", partitions)
    with pytest.raises(StartupError, match="damaged"):
        await bootstrap(store, None)


@pytest.mark.parametrize("schema", ["0", "-1", "one"])
async def test_a_schema_that_never_was_is_refused(store: Store, schema: str) -> None:
    await bootstrap(store, None)
    await store.call("HSET", store.keys.cluster(), "schema", schema)
    with pytest.raises(StartupError, match="damaged"):
        await bootstrap(store, None)
