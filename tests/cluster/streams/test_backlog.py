"""What autoscaling and alerts rest on: R86 to R94, 2.12."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest

from cluster.upkeep.keeper import UpkeepCounters
from cluster.upkeep.step_backlog import StepBacklog
from nodes.streams.metrics import StreamCollector
from tests.cluster.streams.lab import COMPLETE, PARTITIONS, StreamLab, held
from tests.waiting import eventually


async def look(lab: StreamLab, node: int = 1) -> StepBacklog:
    """The backlog as a node sees it that holds all partitions."""
    backlog = lab[node].hub.backlog
    for partition in range(PARTITIONS):
        await backlog.look(partition)
    return backlog


async def test_entries_age_and_reasons(lab: StreamLab) -> None:
    backlog = await look(lab)
    assert (backlog.entries, backlog.oldest_ms, sum(backlog.unserved().values())) == (0, None, 0)
    before_ms = lab[0].clock.now_ms()
    for number in range(6):
        await lab[number % 2].start("F", "a")
    await lab[0].start("G", "x")
    backlog = await look(lab)
    assert backlog.entries == 7
    assert backlog.oldest_ms is not None
    assert abs(backlog.oldest_ms - before_ms) < 500
    assert backlog.unserved() == {"no_worker": 2, "no_supporting_worker": 0}
    async with (
        lab[0].worker("w1", {"name": "G", "step_types": ["other"]}),
        lab[0].worker("w2", "F") as w2,
    ):
        task = await w2.next("task")

        async def reasons() -> bool:
            found = (await look(lab)).unserved()
            return found == {"no_worker": 0, "no_supporting_worker": 1}

        await eventually(reasons)
        assert backlog.entries == 6
        await w2.complete(task, COMPLETE)
        for _ in range(5):
            await w2.complete(await w2.next("task"), COMPLETE)
        assert (await look(lab)).entries == 1


async def test_r88_r89_a_partition_counts_once_it_was_looked_at_whole_its_age_at_once(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        await lab[0].start("F", f"type-{number}")
    store = lab[1].store
    run, cut = store.run, trio.Event()

    async def in_two_pages(name: str, keys: Any, arguments: list[Any], **more: Any) -> Any:
        if name != "backlog":
            return await run(name, keys, arguments, **more)
        if arguments[2] == b"0":
            now, _, rows = await run(name, keys, arguments, **more)
            return now, b"7", rows
        await cut.wait()
        return b"0", b"0", []

    monkeypatch.setattr(store, "run", in_two_pages)
    backlog = lab[1].hub.backlog
    async with trio.open_nursery() as nursery:
        for partition in range(PARTITIONS):
            nursery.start_soon(backlog.look, partition)
        await eventually(lambda: backlog.oldest_ms is not None)
        assert backlog.entries == 0
        cut.set()
    assert backlog.entries == 30


async def test_a_returned_step_keeps_its_age(lab: StreamLab) -> None:
    """A7."""
    await lab[0].start("F", "a")
    oldest_ms = (await look(lab)).oldest_ms
    async with lab[0].worker("w1", "F") as w1:
        await w1.next("task")
        assert (await look(lab)).oldest_ms is None
        await w1.send({"type": "half_close", "slot": 1})
        await w1.next("closed")
        assert (await look(lab)).oldest_ms == oldest_ms


async def test_steps_that_wait_for_a_worker_are_no_backlog_but_count(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        await w1.complete(task, {"decision": {"next": [{"step_type": "b"}, {"step_type": "b"}]}})
        await w1.next("task")
        backlog = await look(lab)
        assert (backlog.entries, backlog.sticky) == (1, 1)


@pytest.mark.parametrize("prefix_of_metrics", ["headrace", "own"])
async def test_metrics_have_the_documented_names(lab: StreamLab, prefix_of_metrics: str) -> None:
    registry = CollectorRegistry()
    upkeep = UpkeepCounters(heads_restored=2, heads_incomplete=1)
    registry.register(StreamCollector(lab[0].hub, upkeep, lab[0].clock, prefix_of_metrics))
    await lab[0].start("F")
    await trio.sleep(0.01)
    await look(lab, 0)
    lines = dict(
        line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#"
    )
    p = prefix_of_metrics
    assert float(lines[f"{p}_step_task_queue_entries"]) == 1
    assert 0 < float(lines[f"{p}_step_task_queue_oldest_age_seconds"]) < 5
    assert float(lines[f"{p}_matching_queued_tasks"]) == 0
    assert float(lines[f'{p}_matching_unserved_task_queues{{reason="no_worker"}}']) == 1
    assert float(lines[f'{p}_matching_unserved_task_queues{{reason="no_supporting_worker"}}']) == 0
    assert float(lines[f"{p}_matching_heads_restored_refs_total"]) == 2
    assert float(lines[f"{p}_matching_heads_incomplete_scans_total"]) == 1
    assert float(lines[f"{p}_step_task_queue_incomplete_seeks_total"]) == 0
    assert float(lines[f'{p}_stream_steps_declined_total{{reason="legacy_no_capacity"}}']) == 0


async def test_r94_a_partition_that_is_lost_is_counted_no_more(lab: StreamLab) -> None:
    await lab[0].start("F")
    backlog = lab[1].hub.backlog
    async with trio.open_nursery() as nursery:
        for partition in range(PARTITIONS):
            nursery.start_soon(backlog.housekeep, held(partition))
        await eventually(lambda: backlog.entries == 1)
        nursery.cancel_scope.cancel()
    assert (backlog.entries, backlog.oldest_ms) == (0, None)
