"""Unsupported names: R40 to R47."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    StreamLab,
    attempt,
    go_to,
    next_task,
    open_stream_lab,
)
from tests.stream_client import Frame, StreamClient
from tests.waiting import eventually

ONCE = {"execute": {"retry": {"maximum_attempts": 1}}}

LOOKS = 0.05
"""Seconds between looks: nobody is told of a step that comes to stand behind one which is left out."""


@pytest.fixture
async def looking_lab(valkey_url: str, prefix: str) -> AsyncIterator[StreamLab]:
    async with open_stream_lab(valkey_url, prefix, peek_seconds=LOOKS) as lab:
        yield lab


async def _gone(lab: StreamLab, key: str) -> bool:
    return not await lab[0].store.call("EXISTS", key)


async def decline(worker: StreamClient, task: Frame) -> None:
    fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
    await worker.send({"type": "decline", **fields, "reason": "unsupported"})
    assert (await worker.next("confirmed"))["accepted"]


async def test_r40_r41_a_declined_step_goes_to_another_worker_unconsumed(lab: StreamLab) -> None:
    async with lab[0].worker("old", "F") as old:
        await lab[0].start("F", "x", options=ONCE)
        task = await old.next("task")
        async with lab[1].worker("new", "F") as new:
            await decline(old, task)
            again = await new.next("task")
            assert attempt(again) == (1, 1)
            assert (await new.complete(again, COMPLETE))["accepted"]


async def test_r40_also_when_the_flow_was_sticky_to_it(lab: StreamLab) -> None:
    async with lab[0].worker("old", "F") as old:
        await lab[0].start("F", "a")
        task = await old.next("task")
        async with lab[1].worker("new", "F") as new:
            await old.complete(task, go_to("x"))
            await decline(old, await old.next("task"))
            assert (await new.next("task"))["task"]["step_type"] == "x"


async def test_r42_what_was_declined_is_offered_no_more_on_any_node(lab: StreamLab) -> None:
    async with lab[0].worker("old", "F") as old, lab[1].worker("old", "F") as elsewhere:
        await lab[0].start("F", "x")
        first, task = await next_task(old, elsewhere)
        await decline(first, task)
        await eventually(lambda: len(lab[0].hub.declines) == len(lab[1].hub.declines) == 1)
        await lab[1].start("F", "x")
        await old.quiet(0.4)
        await elsewhere.quiet(0.1)


async def test_r44_forgotten_with_the_last_stream_only(looking_lab: StreamLab) -> None:
    lab = looking_lab
    async with lab[0].worker("old", "F") as old:
        await lab[0].start("F", "x")
        await decline(old, await old.next("task"))
        async with lab[1].worker("old", "F") as again:
            await again.quiet(0.4)
    assert len(lab[0].hub.declines) == len(lab[1].hub.declines) == 0
    keys = lab[0].store.keys
    await eventually(partial(_gone, lab, keys.connected(NAMESPACE, "old")))
    assert await _gone(lab, keys.unsupported(NAMESPACE, "old"))
    async with lab[1].worker("old", "F") as fresh:
        # The task itself leaves the worker out; another one of the type does not.
        await lab[1].start("F", "x")
        await fresh.next("task")


async def test_r46_an_old_process_s_entry_excludes_the_new_one_of_the_same_id(looking_lab: StreamLab) -> None:
    """Documented: who pins the id of a worker has to change it with every start."""
    lab = looking_lab
    async with lab[0].worker("pinned", "F") as old:
        await lab[0].start("F", "x")
        await decline(old, await old.next("task"))
        async with lab[1].worker("pinned", "F") as upgraded:
            await lab[1].start("F", "x")
            await old.drop()
            await upgraded.quiet(0.4)
            # It can be seen why: everybody who is connected lacks the type.
            known = await lab[0].store.call("SCARD", lab[0].store.keys.unsupported(NAMESPACE, "pinned"))
            assert known == 1
    async with lab[1].worker("pinned", "F") as alone:
        await alone.next("task")


async def test_r43_r45_an_evicted_entry_is_offered_again_after_a_completed_step(
    valkey_url: str, prefix: str
) -> None:
    async with (
        open_stream_lab(valkey_url, prefix, 1, unsupported_type_cache_entries=2) as lab,
        lab[0].worker("old", "F") as old,
    ):
        for name in ("x", "y", "z"):
            await lab[0].start("F", name)
            await decline(old, await old.next("task"))
        assert (len(lab[0].hub.declines), lab[0].hub.declines.evicted) == (2, 1)
        await lab[0].start("F", "x")
        await old.quiet(0.4)
        await lab[0].start("F", "a")
        await old.complete(await old.next("task"), COMPLETE)
        assert (await old.next("task"))["task"]["step_type"] == "x"
        await old.quiet(0.2)


async def test_r47_a_step_nobody_supports_waits_in_its_queue(lab: StreamLab) -> None:
    async with lab[0].worker("old", "F") as old:
        flow_id = await lab[0].start("F", "x", options=ONCE)
        await decline(old, await old.next("task"))
        await old.quiet(0.3)
    async with lab[1].worker("new", "F") as new:
        task = await new.next("task")
        assert (task["task"]["flow_id"], attempt(task)[0]) == (flow_id, 1)
