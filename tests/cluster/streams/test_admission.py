"""Limits hold for steps: a flow type is a queue, and no way to end an attempt leaks its ticket (D1 to D5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from cluster.admission import tickets
from cluster.admission.audit import Audit
from cluster.flows.machine import StopType
from cluster.ids import TaskKind
from cluster.store.keys import encode
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    PARTITIONS,
    StreamLab,
    go_to,
    held,
    next_task,
    open_stream_lab,
)
from tests.store_time import early_in_a_minute
from tests.stream_client import Frame, StreamClient
from tests.waiting import eventually

SOON = {"execute": {"retry": {"initial_interval_seconds": 0.05, "maximum_attempts": 2}}}
LIMIT = 2
LOOKS = 0.5
"""Seconds between looks: of two nodes that reach for the last permit at once both may find it taken."""


def limits(key: str = "F", **fields: Any) -> dict[str, Any]:
    return {key: {"step_tasks": fields or {"max_active_leases": LIMIT}}}


@asynccontextmanager
async def limited_lab(url: str, prefix: str, **fields: Any) -> AsyncIterator[StreamLab]:
    async with open_stream_lab(url, prefix, limits=limits(**fields), peek_seconds=LOOKS) as lab:
        yield lab


async def ticket_count(lab: StreamLab, flow_type: str | None = None) -> int:
    base = lab[0].store.keys.admission(NAMESPACE)
    key = f"{base}:t:s" if flow_type is None else f"{base}:q:s:{encode(flow_type)}"
    number: int = await lab[0].store.call("ZCARD", key)
    return number


async def lease_count(lab: StreamLab, flow_type: str = "F") -> int:
    keys, total = lab[0].store.keys, 0
    for partition in range(PARTITIONS):
        total += await lab[0].store.call(
            "ZCARD", keys.queue_leases(partition, TaskKind.STEP, NAMESPACE, flow_type)
        )
    return total


async def nothing_is_held(lab: StreamLab) -> None:
    """Leases, tickets, and what names tickets in the partitions are gone."""

    async def gone() -> bool:
        keys, store = lab[0].store.keys, lab[0].store
        named = [await store.call("EXISTS", f"{keys.base(p)}:tk") for p in range(PARTITIONS)]
        return (await ticket_count(lab), await lease_count(lab), any(named)) == (0, 0, False)

    await eventually(gone)


async def test_no_more_steps_than_the_limit_are_handed_out_over_two_nodes(
    valkey_url: str, prefix: str
) -> None:
    async with (
        limited_lab(valkey_url, prefix) as lab,
        lab[0].worker("w1", "F", slots=4) as w1,
        lab[1].worker("w2", "F", slots=4) as w2,
    ):
        for _ in range(8):
            await lab[0].start("F")
        running: list[tuple[StreamClient, Frame]] = []
        for done in range(8):
            while len(running) < min(LIMIT, 8 - done):
                running.append(await next_task(w1, w2))
            assert await lease_count(lab) == len(running) <= LIMIT
            assert await ticket_count(lab, "F") >= len(running)
            worker, task = running.pop(0)
            assert (await worker.complete(task, COMPLETE))["accepted"]
        await nothing_is_held(lab)


async def test_more_than_the_limit_stays_in_the_queue(valkey_url: str, prefix: str) -> None:
    """Also when the slots of both nodes ask again and again (the peeks of the lab are a second apart)."""
    async with (
        limited_lab(valkey_url, prefix) as lab,
        lab[0].worker("w1", "F", slots=4) as w1,
        lab[1].worker("w2", "F", slots=4) as w2,
    ):
        for _ in range(6):
            await lab[0].start("F")
        first, second = await next_task(w1, w2), await next_task(w1, w2)
        for _ in range(3):
            for node in lab.nodes:
                node.hub.matcher._permits.look_again()
            # Something always stirs in two nodes; what they would do wrong they do at once.
            with trio.move_on_after(0.1):
                await trio.testing.wait_all_tasks_blocked(0.02)
            assert await lease_count(lab) == LIMIT
        assert not [f for w in (w1, w2) for f in w.frames if f["type"] == "task"]
        await first[0].complete(first[1], COMPLETE)
        third = await next_task(w1, w2)
        assert await lease_count(lab) == LIMIT
        for worker, task in (second, third):
            await worker.complete(task, COMPLETE)


async def test_a_chain_of_steps_of_one_worker_stays_within_the_limit(valkey_url: str, prefix: str) -> None:
    """What is sticky to a worker is admitted like everything else."""
    async with (
        limited_lab(valkey_url, prefix, max_active_leases=1) as lab,
        lab[0].worker("w1", "F", slots=3) as w1,
    ):
        for _ in range(2):
            await lab[0].start("F")
        for turn in range(6):
            task = await w1.next("task")
            assert await lease_count(lab) == 1
            await w1.complete(task, go_to("b") if turn < 4 else COMPLETE)
        await nothing_is_held(lab)


async def test_a_namespace_limit_counts_all_flow_types(valkey_url: str, prefix: str) -> None:
    fields = {"key": f"{NAMESPACE}:*", "max_active_leases_per_namespace": 3}
    async with (
        limited_lab(valkey_url, prefix, **fields) as lab,
        lab[0].worker("w1", "F", "G", slots=4) as w1,
        lab[1].worker("w2", "G", slots=4) as w2,
    ):
        for flow_type in ("F", "G", "G", "F", "G"):
            await lab[0].start(flow_type)
        running = [await next_task(w1, w2) for _ in range(3)]
        await eventually(lambda: _is(ticket_count(lab), 3))
        assert await lease_count(lab, "F") + await lease_count(lab, "G") == 3
        for worker, task in running:
            await worker.complete(task, COMPLETE)
        for _ in range(2):
            worker, task = await next_task(w1, w2)
            await worker.complete(task, COMPLETE)
        await nothing_is_held(lab)


async def _is(number: Awaitable[int], wanted: int) -> bool:
    return await number == wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"max_dispatches_per_minute": 3},
        {"key": "*", "max_dispatches_per_minute_per_namespace": 3},
        {"key": "*", "budget_group": "api", "max_dispatches_per_minute_per_budget_group": 3},
    ],
)
async def test_so_many_dispatches_a_minute(valkey_url: str, prefix: str, fields: dict[str, Any]) -> None:
    async with (
        limited_lab(valkey_url, prefix, **fields) as lab,
        lab[0].worker("w1", "F", slots=2) as w1,
        lab[1].worker("w2", "F", slots=2) as w2,
    ):
        await early_in_a_minute(lab[0].store)
        for _ in range(5):
            await lab[0].start("F")
        for _ in range(3):
            worker, task = await next_task(w1, w2)
            await worker.complete(task, COMPLETE)
        await lab[0].hub.matcher._peek()
        await w1.quiet(0.1)
        assert not [f for f in w2.frames if f["type"] == "task"]
        assert await ticket_count(lab) == 0, "without a lease limit there are no tickets"
        assert lab[0].hub.matcher._permits.refused


Ending = Callable[[StreamLab, StreamClient, Frame], Awaitable[None]]


async def _complete(_: StreamLab, worker: StreamClient, task: Frame) -> None:
    await worker.complete(task, COMPLETE)


async def _fail(_: StreamLab, worker: StreamClient, task: Frame) -> None:
    failure = {"message": "no", "type": "Error", "non_retryable": True}
    place = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
    await worker.send({"type": "output", **place, "failure": failure})


async def _reset(_: StreamLab, worker: StreamClient, task: Frame) -> None:
    await worker.send({"type": "reset", "slot": task["slot"]})


async def _half_close(_: StreamLab, worker: StreamClient, task: Frame) -> None:
    await worker.send({"type": "half_close", "slot": task["slot"]})


async def _decline(_: StreamLab, worker: StreamClient, task: Frame) -> None:
    place = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
    await worker.send({"type": "decline", **place, "reason": "unsupported"})


async def _stop(lab: StreamLab, _: StreamClient, task: Frame) -> None:
    await lab[1].engine.stop(NAMESPACE, task["task"]["flow_id"], StopType.TERMINATE, "", wait=False)


async def _disconnect(_: StreamLab, worker: StreamClient, task: Frame) -> None:
    await worker.carrier.aclose()


async def _time_out(lab: StreamLab, _: StreamClient, task: Frame) -> None:
    """The flow's own timeout is over at once."""


@pytest.mark.parametrize(
    "end", [_complete, _fail, _reset, _half_close, _decline, _stop, _disconnect, _time_out]
)
async def test_whatever_ends_an_attempt_frees_its_place(valkey_url: str, prefix: str, end: Ending) -> None:
    async with (
        limited_lab(valkey_url, prefix, max_active_leases=1) as lab,
        lab[0].worker("w1", "F", slots=1) as w1,
    ):
        more: dict[str, Any] = {"timeout_ms": 300} if end is _time_out else {}
        flow_id = await lab[0].start("F", options=SOON, **more)
        task = await w1.next("task")
        await lab[0].start("F")
        assert await ticket_count(lab) == 1
        await end(lab, w1, task)
        async with lab[1].worker("w2", "F", slots=1) as w2:
            seen: set[str] = set()
            while len(seen) < (1 if end in (_complete, _fail, _stop, _time_out) else 2):
                worker, again = await next_task(w1, w2)
                assert await lease_count(lab) == 1 == await ticket_count(lab)
                seen.add(again["task"]["flow_id"])
                assert (await worker.complete(again, COMPLETE))["accepted"]
            assert (flow_id in seen) == (end not in (_complete, _fail, _stop, _time_out))
            await nothing_is_held(lab)


async def test_limits_that_are_set_while_steps_run_count_them(valkey_url: str, prefix: str) -> None:
    """D3: existing hand-outs get tickets before anything new is admitted."""
    async with (
        open_stream_lab(valkey_url, prefix) as lab,
        lab[0].worker("w1", "F", slots=3) as w1,
        lab[1].worker("w2", "F", slots=3) as w2,
    ):
        for _ in range(2):
            await lab[0].start("F")
        running = [await next_task(w1, w2) for _ in range(2)]
        tree = {f"{NAMESPACE}:F": {"step_tasks": {"max_active_leases": LIMIT}}}
        await lab[0].gate.change_limits(NAMESPACE, lambda _: tree)
        assert await ticket_count(lab) == 2
        for _ in range(2):
            await lab[1].start("F")
        await w1.quiet(0.2)
        assert await lease_count(lab) == LIMIT
        for worker, task in running:
            await worker.complete(task, COMPLETE)
        for _ in range(2):
            worker, task = await next_task(w1, w2)
            await worker.complete(task, COMPLETE)
        await nothing_is_held(lab)


async def test_the_audit_keeps_tickets_of_running_steps_and_drops_those_of_dead_nodes(
    valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "AUDIT_AFTER_MS", 0)
    async with limited_lab(valkey_url, prefix) as lab, lab[0].worker("w1", "F", slots=2) as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        # As a node that dies between the ticket and its claim.
        book = await lab[1].gate._limits.book(NAMESPACE)
        names = tickets.new_tickets(1)
        await tickets.admit(
            lab[1].store,
            NAMESPACE,
            "F",
            book.of(TaskKind.STEP, "F"),
            version=book.version,
            node="gone",
            wanted=1,
            tickets=names,
            needed=True,
        )
        assert await ticket_count(lab) == 2
        audit = Audit(lab[0].store, lab[0].gate._limits, Random(1))
        assert await audit.audit(NAMESPACE) == 1
        assert await ticket_count(lab) == 1
        await w1.complete(task, COMPLETE)
        await nothing_is_held(lab)


async def test_a_node_that_dies_gives_up_its_places(valkey_url: str, prefix: str) -> None:
    """Its steps are failed by whoever holds the partition, and that frees them."""
    async with limited_lab(valkey_url, prefix) as lab, lab[1].worker("w2", "F", slots=2) as w2:
        async with lab[0].worker("w1", "F", slots=2) as w1:
            for _ in range(2):
                await lab[0].start("F", options=SOON)
            # w2 may have been first: what it has goes on.
            mine = [await next_task(w1, w2) for _ in range(2)]
            lab[0].hub.results._nursery = None  # nothing that it settles arrives any more
        for worker, task in mine:
            if worker is w2:
                await w2.complete(task, COMPLETE)
        dead = lab[0].member.incarnation
        store = lab[1].store
        for partition in range(PARTITIONS):
            await store.call("ZADD", store.keys.dead(partition), 1, dead)
        async with trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                nursery.start_soon(lab[1].hub.orphanage.housekeep, held(partition))
            for _ in range(sum(worker is w1 for worker, _ in mine)):
                task = await w2.next("task")
                assert await lease_count(lab) <= LIMIT
                await w2.complete(task, COMPLETE)
            await nothing_is_held(lab)
            nursery.cancel_scope.cancel()
