"""RPCs look for slots and never queue: R60 to R65, R47, F6."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import trio

from cluster.errors import Refused
from tests.cluster.nodes import NEVER
from tests.cluster.streams.lab import COMPLETE, NAMESPACE, StreamLab, StreamNode, next_task, open_stream_lab
from tests.stream_client import Frame, StreamClient
from tests.waiting import LONG_PATIENCE, PATIENCE, eventually


async def rpc(
    node: StreamNode, flow_id: str, name: str = "peek", seconds: float = PATIENCE
) -> dict[str, Any]:
    answer = await node.engine.call_rpc(node.rpc, NAMESPACE, flow_id, name, b"7", seconds=seconds)
    decoded: dict[str, Any] = orjson.loads(orjson.dumps(answer))
    return decoded


@asynccontextmanager
async def calling(node: StreamNode, flow_id: str, **more: Any) -> AsyncIterator[dict[str, Any]]:
    """An RPC in the background; its answer is in the dict after the block."""
    answer: dict[str, Any] = {}

    async def call() -> None:
        answer.update(await rpc(node, flow_id, **more))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        yield answer


async def answer(worker: StreamClient, task: Frame, value: Any = 42) -> None:
    assert (task["task"]["kind"], task["task"]["input"]) == ("rpc", 7)
    assert (await worker.complete(task, {"result": value}))["accepted"]


async def refused(node: StreamNode, flow_id: str, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        await rpc(node, flow_id, **more)
    return caught.value.reason


async def test_lost_words_of_who_serves_what_lose_no_rpc(
    lab: StreamLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nodes tell of their workers is stale or gone; the slot is found all the same, at once."""
    flow_id = await lab[0].start("F", "a")
    async with lab[1].worker("w1", "F") as w1:
        await w1.complete(await w1.next("task"), {"decision": {"dead_end": True}})
        store = lab[0].store
        for node in lab.nodes:

            async def says_nothing(_summary: object) -> None:
                return None

            monkeypatch.setattr(node.hub.served, "tell", says_nothing)
        await store.call("DEL", store.keys.served())
        for partition in range(store.keys.partitions):
            await store.call("DEL", store.keys.present(partition, NAMESPACE, "w1"))
        async with calling(lab[0], flow_id) as answered:
            await answer(w1, await w1.next("task", within=1.0))
    assert answered == {"result": 42}


@pytest.mark.parametrize("origin", [0, 1])
async def test_a_free_slot_on_any_node_serves_it(lab: StreamLab, origin: int) -> None:
    flow_id = await lab[0].start("F", "nobody")
    async with (
        lab[1].worker("w1", {"name": "F", "step_types": ["a"]}) as w1,
        calling(lab[origin], flow_id) as answered,
    ):
        await answer(w1, await w1.next("task"))
    assert answered == {"result": 42}


async def test_r61_nobody_takes_it(valkey_url: str, prefix: str) -> None:
    async with open_stream_lab(valkey_url, prefix, sticky_wait=0.1, dispatch_wait=1.0) as lab:
        flow_id = await lab[0].start("F")
        began = trio.current_time()
        assert await refused(lab[0], flow_id, seconds=NEVER) == "rpc_unavailable"
        assert trio.current_time() - began > 0.9


async def test_r62_never_past_the_deadline(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F")
    with trio.fail_after(PATIENCE):
        assert await refused(lab[0], flow_id, seconds=0.3) == "rpc_unavailable"


async def test_a_handler_that_takes_too_long(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    async with lab[1].worker("w1", {"name": "F", "step_types": []}) as w1:
        assert await refused(lab[0], flow_id, seconds=2) == "rpc_timed_out"
        await w1.next("task")


@pytest.mark.parametrize("origin", [0, 1])
async def test_the_handler_is_told_that_nobody_waits_any_more(lab: StreamLab, origin: int) -> None:
    """Else one that hangs keeps its slot for ever."""
    flow_id = await lab[0].start("F", "nobody")
    async with lab[1].worker("w1", {"name": "F", "step_types": []}) as w1:
        assert await refused(lab[origin], flow_id, seconds=2) == "rpc_timed_out"
        task = await w1.next("task")
        attempt_id = task["task"]["attempt_id"]
        cancel = await w1.next("cancel", slot=task["slot"], attempt_id=attempt_id)
        assert cancel["reason"] == "rpc_timed_out"
        await w1.complete(task, {"result": "late"})
        # The slot is as good as before, and what runs on it next is not cancelled.
        async with calling(lab[origin], flow_id) as answered:
            await answer(w1, await w1.next("task"))
        assert answered == {"result": 42}
        assert all(frame["type"] != "cancel" for frame in w1.frames)


@pytest.mark.parametrize("node", [0, 1])
async def test_r63_a_freed_slot_serves_rpcs_before_steps(lab: StreamLab, node: int) -> None:
    async with lab[node].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        await lab[0].start("F")
        async with calling(lab[0], flow_id) as answered:
            await w1.quiet(0.2)
            await w1.complete(task, COMPLETE)
            following = await w1.next("task")
            await answer(w1, following)
        assert answered == {"result": 42}
        assert (await w1.next("task"))["task"]["kind"] == "step"


async def test_r64_r65_reserved_slots_serve_rpcs_and_nothing_else(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=1, rpc_slots=1) as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        await lab[0].start("F")
        await w1.quiet(0.2)
        async with calling(lab[1], flow_id):
            following = await w1.next("task")
            assert (task["slot"], following["slot"]) == (1, 2)
            await answer(w1, following)
        await w1.quiet(0.2)


async def test_the_worker_that_knows_the_flow_is_preferred(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1, lab[1].worker("w2", "F", slots=4) as w2:
        flow_id = await lab[0].start("F")
        first, task = await next_task(w1, w2)
        await first.complete(task, {"decision": {"next": [{"step_type": "b", "options": {"wait_for": {}}}]}})
        task = await first.next("task")
        wait = {"conditions": {"mode": "all", "items": [{"id": "c", "channel": "never"}]}}
        await first.complete(task, wait)
        for origin in (0, 1, 0, 1):
            async with calling(lab[origin], flow_id):
                served, task = await next_task(w1, w2)
                assert served is first
                await answer(served, task)


async def test_a_busy_preferred_worker_is_waited_for_only_so_long(valkey_url: str, prefix: str) -> None:
    async with (
        open_stream_lab(valkey_url, prefix, sticky_wait=0.6) as lab,
        lab[0].worker("w1", "F") as w1,
    ):
        flow_id = await lab[0].start("F")
        await w1.complete(await w1.next("task"), {"decision": {"next": [{"step_type": "b"}]}})
        await w1.next("task")
        async with lab[1].worker("w2", {"name": "F", "step_types": ["z"]}) as w2:
            began = trio.current_time()
            async with calling(lab[0], flow_id):
                await answer(w2, await w2.next("task"))
            assert trio.current_time() - began > 0.5


async def test_r47_declined_by_one_and_served_by_another(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    listed = {"name": "F", "step_types": ["a"]}
    async with lab[0].worker("old", listed) as old, calling(lab[0], flow_id) as answered:
        task = await old.next("task")
        async with lab[1].worker("new", listed) as new:
            fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
            await old.send({"type": "decline", **fields, "reason": "unsupported"})
            await answer(new, await new.next("task"), "new")
    assert answered == {"result": "new"}


async def test_r47_known_to_nobody_is_a_named_error_at_once(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    listed = {"name": "F", "step_types": ["a"], "rpc_names": ["other"]}
    async with lab[0].worker("w1", listed), lab[1].worker("w2", listed):
        for origin in (0, 1):
            with trio.fail_after(PATIENCE):
                assert await refused(lab[origin], flow_id, seconds=NEVER) == "unknown_rpc"


async def test_a_worker_lost_in_the_middle(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    async with (
        lab[1].worker("w1", {"name": "F", "step_types": []}) as w1,
        trio.open_nursery() as nursery,
    ):
        reasons: list[str] = []

        async def call() -> None:
            reasons.append(await refused(lab[0], flow_id))

        nursery.start_soon(call)
        await w1.next("task")
        await w1.drop()
    assert reasons == ["rpc_worker_lost"]


async def test_the_handlers_own_error(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    async with (
        lab[1].worker("w1", {"name": "F", "step_types": []}) as w1,
        trio.open_nursery() as nursery,
    ):
        reasons: list[str] = []

        async def call() -> None:
            reasons.append(await refused(lab[0], flow_id))

        nursery.start_soon(call)
        task = await w1.next("task")
        fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await w1.send({"type": "output", **fields, "failure": {"message": "no", "type": "Sorry"}})
    assert reasons == ["rpc_failed"]


async def test_f6_reserved_slots_that_are_not_granted_become_free(lab: StreamLab) -> None:
    """Many calls at once from both nodes; every one is served and no slot stays reserved."""
    flow_id = await lab[0].start("F", "nobody")
    listed = {"name": "F", "step_types": []}
    async with lab[0].worker("w1", listed, slots=2) as w1, lab[1].worker("w2", listed, slots=2) as w2:
        answered: list[dict[str, Any]] = []

        async def call(node: StreamNode) -> None:
            answered.append(await rpc(node, flow_id))
            if len(answered) == 30:
                nursery.cancel_scope.cancel()

        async def serve(worker: StreamClient) -> None:
            while True:
                await answer(worker, await worker.next("task"))

        with trio.fail_after(LONG_PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, w1)
                nursery.start_soon(serve, w2)
                for number in range(30):
                    nursery.start_soon(call, lab[number % 2])
        await eventually(lambda: [node.hub.matcher.statistics().free for node in lab.nodes] == [2, 2])
