"""Schedules fire once, whoever fires them, and never twice (B4, F1)."""

from __future__ import annotations

import pytest
import trio

from cluster.schedules import storage
from cluster.schedules.names import fire_timer, freed_timer
from cluster.schedules.records import Action, Overlap
from cluster.schedules.storage import Snapshot
from cluster.store.store import Store
from cluster.workflows.records import RunStatus
from tests.cluster.schedules.lab import (
    NAMESPACE,
    FiringNode,
    create_due,
    fire_events,
    firing_nodes,
    home,
    runs_of,
    timers_of,
)
from tests.waiting import eventually


async def test_two_nodes_fire_one_occurrence_once(store: Store) -> None:
    nodes = await firing_nodes(store)
    await create_due(nodes[0])
    due_ms = (await nodes[0].schedules.describe(NAMESPACE, "s")).state.next_due_ms
    assert due_ms is not None
    async with trio.open_nursery() as nursery:
        for node in nodes * 10:
            nursery.start_soon(node.schedules.fire, fire_timer(NAMESPACE, "s"), due_ms)
    (event,) = await fire_events(nodes[0])
    assert await runs_of(store, home(store)) == [event.run_id]
    state = (await nodes[0].schedules.describe(NAMESPACE, "s")).state
    assert state.fires_count == 1
    assert state.next_due_ms is not None
    assert state.next_due_ms > due_ms
    assert state.latest_workflow_id == event.workflow_id


async def test_many_due_schedules_are_all_fired_once(store: Store) -> None:
    nodes = await firing_nodes(store)
    names = [f"s{number}" for number in range(150)]
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(create_due, nodes[0], name)
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.do_everything_due)
    for name in names:
        assert len(await fire_events(nodes[0], name)) == 1
    started = [run for p in range(store.keys.partitions) for run in await runs_of(store, p)]
    assert len(started) == len(names)
    assert all(node.due.failures == 0 for node in nodes)


async def test_what_was_missed_fires_once_and_late(store: Store) -> None:
    (node,) = await firing_nodes(store, 1)
    await create_due(node)
    await node.do_everything_due()
    await node.do_everything_due()
    (event,) = await fire_events(node)
    state = (await node.schedules.describe(NAMESPACE, "s")).state
    assert state.next_due_ms is not None
    assert state.next_due_ms > node.clock.now_ms()
    assert event.recorded_at_ms > state.next_due_ms - 24 * 3_600_000


async def test_a_schedule_that_changed_meanwhile_is_not_fired_by_its_old_timer(store: Store) -> None:
    (node,) = await firing_nodes(store, 1)
    await create_due(node)
    due_ms = (await node.schedules.describe(NAMESPACE, "s")).state.next_due_ms
    assert due_ms is not None
    await node.schedules.pause(NAMESPACE, "s", None, {})
    await node.schedules.fire(fire_timer(NAMESPACE, "s"), due_ms)
    assert await fire_events(node) == []
    await node.schedules.delete(NAMESPACE, "s", {})
    await node.schedules.fire(fire_timer(NAMESPACE, "s"), due_ms)
    assert await timers_of(store, home(store)) == []


async def test_a_timer_without_a_schedule_goes_away(store: Store) -> None:
    (node,) = await firing_nodes(store, 1)
    for timer in (fire_timer(NAMESPACE, "none"), freed_timer(NAMESPACE, "none")):
        key = store.keys.timers(home(store, "none"))
        await store.call("ZADD", key, 5, timer)
        await node.do_everything_due()
        assert await timers_of(store, home(store, "none")) == []
    assert node.due.failures == 0


async def test_pausing_and_firing_at_once_leaves_one_of_both(store: Store) -> None:
    nodes = await firing_nodes(store)
    await create_due(nodes[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nodes[0].do_everything_due)
        nursery.start_soon(nodes[1].schedules.pause, NAMESPACE, "s", None, {})
    state = (await nodes[0].schedules.describe(NAMESPACE, "s")).state
    fired = await fire_events(nodes[0])
    assert (state.fires_count, state.next_due_ms) == (len(fired), None)
    assert len(fired) <= 1
    events, _ = await nodes[0].schedules.history(NAMESPACE, "s", after=0, limit=100)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_triggers_at_once_keep_within_the_limit(store: Store) -> None:
    nodes = await firing_nodes(store)
    await create_due(nodes[0], max_runs=3)
    outcomes: list[str] = []

    async def trigger(node: FiringNode) -> None:
        try:
            outcomes.append((await node.schedules.trigger(NAMESPACE, "s", None, {}))["outcome"])
        except Exception as error:  # the schedule ends with its last run
            outcomes.append(getattr(error, "reason", "?"))

    async with trio.open_nursery() as nursery:
        for node in nodes * 4:
            nursery.start_soon(trigger, node)
    assert outcomes.count("triggered") == 3
    assert set(outcomes) == {"triggered", "schedule_not_found"}
    assert len(await runs_of(store, home(store))) == 3


async def test_a_fire_does_not_wait_for_a_run_that_has_just_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous run closes between the look and the commit: nobody would wake what waits then."""
    (node,) = await firing_nodes(store, 1)
    await create_due(node, overlap_policy=Overlap.BUFFER_ALL)
    first = await node.schedules.trigger(NAMESPACE, "s", None, {})
    stale = await storage.load(store, NAMESPACE, "s")
    assert stale is not None
    assert stale.open
    run = store.keys.run(home(store), first["run_id"])
    await store.call("HSET", run, "c", str(RunStatus.COMPLETED))
    seen = [stale]
    fresh = storage.load

    async def load(*args: object, **options: object) -> Snapshot | None:
        return seen.pop() if seen else await fresh(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "load", load)
    second = await node.schedules.trigger(NAMESPACE, "s", None, {})
    assert not seen
    assert second["outcome"] == "triggered"


async def test_two_nodes_drain_what_waits_once(store: Store) -> None:
    nodes = await firing_nodes(store)
    await create_due(nodes[0], overlap_policy=Overlap.BUFFER_ALL)
    first = await nodes[0].schedules.trigger(NAMESPACE, "s", None, {})
    for _ in range(2):
        assert (await nodes[1].schedules.trigger(NAMESPACE, "s", None, {}))["outcome"] == "buffered"
    await store.call("HSET", store.keys.run(home(store), first["run_id"]), "c", "completed")
    await store.call("ZADD", store.keys.timers(home(store)), 5, freed_timer(NAMESPACE, "s"))
    async with trio.open_nursery() as nursery:
        for node in nodes * 3:
            nursery.start_soon(node.schedules.freed, freed_timer(NAMESPACE, "s"), 5)
    state = (await nodes[0].schedules.describe(NAMESPACE, "s")).state
    assert (state.fires_count, len(state.buffered)) == (2, 1)


async def test_the_close_of_a_scheduled_run_frees_its_schedule(store: Store) -> None:
    (node,) = await firing_nodes(store, 1)
    action = Action(workflow_type="report", run_timeout_seconds=1)
    await create_due(node, overlap_policy=Overlap.BUFFER_ONE, action=action)
    first = await node.schedules.trigger(NAMESPACE, "s", None, {})
    assert (await node.schedules.trigger(NAMESPACE, "s", None, {}))["outcome"] == "buffered"

    async def second_started() -> bool:
        await node.do_everything_due()
        return (await node.schedules.describe(NAMESPACE, "s")).state.fires_count == 2

    await eventually(second_started)
    assert (await node.engine.describe(NAMESPACE, first["workflow_id"])).run.state.status.closed
    assert (await fire_events(node))[1].payload["outcome"] == "drained"


async def test_nothing_is_left_of_a_deleted_schedule_after_its_retention(store: Store) -> None:
    (node,) = await firing_nodes(store, 1)
    await create_due(node)
    await node.schedules.delete(NAMESPACE, "s", {})
    partition = home(store)
    for key in (
        store.keys.schedule(partition, NAMESPACE, "s"),
        store.keys.schedule_history(partition, NAMESPACE, "s"),
    ):
        assert await store.call("PTTL", key) > 0
    await create_due(node)
    assert await store.call("PTTL", store.keys.schedule(partition, NAMESPACE, "s")) == -1
    events, _ = await node.schedules.history(NAMESPACE, "s", after=0, limit=10)
    assert [event.sequence for event in events] == [1, 2, 3]


async def test_history_keeps_the_newest_events(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HISTORY_KEPT", 5)
    (node,) = await firing_nodes(store, 1)
    await create_due(node)
    for _ in range(9):
        await node.schedules.trigger(NAMESPACE, "s", None, {})
    events, more = await node.schedules.history(NAMESPACE, "s", after=0, limit=3)
    assert ([event.sequence for event in events], more) == ([6, 7, 8], True)
    events, more = await node.schedules.history(NAMESPACE, "s", after=8, limit=3)
    assert ([event.sequence for event in events], more) == ([9, 10], False)
    assert await node.schedules.history(NAMESPACE, "s", after=99, limit=3) == ([], False)
