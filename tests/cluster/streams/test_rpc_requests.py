"""RPCs with a request id: the same answer, effects once, on whichever node the repetition comes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import trio

from cluster.errors import Refused
from cluster.flows.machine import StopType
from cluster.flows.rpcs import RpcAnswer, RpcTask
from tests.cluster.streams.lab import NAMESPACE, StreamLab, StreamNode
from tests.waiting import eventually

ADDS = {"result": 1, "attributes": {"total": 1}, "publish": [{"channel": "c", "value": 1}]}
TEXT = orjson.dumps(ADDS)


class Broker:
    """Runs handlers at once, and counts them."""

    def __init__(self, *outputs: bytes | Refused) -> None:
        self.outputs = list(outputs)
        self.calls = 0
        self.hold: trio.Event | None = None
        self.began = trio.Event()

    async def call(self, rpc: RpcTask, seconds: float) -> RpcAnswer:
        self.calls += 1
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        self.began.set()
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(output, Refused):
            raise output
        return RpcAnswer("w", output)


async def ask(node: StreamNode, broker: Broker, flow_id: str, **more: Any) -> dict[str, Any]:
    fields = {"seconds": 5.0, "request_id": "r1", **more}
    answer = await node.engine.call_rpc(broker, NAMESPACE, flow_id, fields.pop("name", "add"), b"1", **fields)
    decoded: dict[str, Any] = orjson.loads(orjson.dumps(answer))
    return decoded


async def effects(node: StreamNode, flow_id: str) -> tuple[dict[str, bytes], dict[str, int]]:
    run = await node.engine.read(NAMESPACE, flow_id)
    return run.attributes, run.state.channels


async def refused(node: StreamNode, broker: Broker, flow_id: str, **more: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await ask(node, broker, flow_id, **more)
    return caught.value


@pytest.mark.parametrize("locks", [(), ("total",)])
async def test_a_repetition_gets_the_same_answer_and_does_nothing(
    lab: StreamLab, locks: tuple[str, ...]
) -> None:
    flow_id = await lab[0].start("F", "nobody")
    broker = Broker(TEXT, orjson.dumps({"result": 2}))
    for node in (lab[0], lab[0], lab[1]):
        assert await ask(node, broker, flow_id, locks=locks) == {"result": 1}
    assert broker.calls == 1
    assert await effects(lab[1], flow_id) == ({"total": b"1"}, {"c": 1})
    # Another id, or another RPC, is another request.
    assert await ask(lab[0], broker, flow_id, request_id="r2") == {"result": 2}
    assert await ask(lab[0], broker, flow_id, name="other") == {"result": 2}


async def test_an_rpc_that_only_reads_is_repeated_with_what_it_said(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    await lab[0].engine.stop(NAMESPACE, flow_id, StopType.TERMINATE, "", wait=False)
    broker = Broker(b'{"result": 1}', b'{"result": 2}')
    assert [await ask(node, broker, flow_id) for node in lab.nodes] == [{"result": 1}] * 2


async def test_what_the_handler_refused_is_an_answer(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    failed = Refused("rpc_failed", "no", status=422, failure={"message": "no", "type": "Sorry"})
    broker = Broker(failed, TEXT)
    for node in lab.nodes:
        error = await refused(node, broker, flow_id)
        assert (error.reason, error.message, error.fields) == ("rpc_failed", "no", failed.fields)
    assert broker.calls == 1


@pytest.mark.parametrize("reason", ["rpc_unavailable", "rpc_timed_out", "rpc_worker_lost", "unknown_rpc"])
async def test_what_did_not_come_to_an_answer_may_be_tried_again(lab: StreamLab, reason: str) -> None:
    flow_id = await lab[0].start("F", "nobody")
    broker = Broker(Refused(reason, "", status=503), TEXT)
    assert (await refused(lab[0], broker, flow_id)).reason == reason
    assert await ask(lab[1], broker, flow_id) == {"result": 1}
    assert await effects(lab[1], flow_id) == ({"total": b"1"}, {"c": 1})


async def test_a_repetition_waits_for_the_call_that_is_under_way(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    broker, answers = Broker(TEXT), list[Any]()
    broker.hold = trio.Event()

    async def call(node: StreamNode) -> None:
        answers.append(await ask(node, broker, flow_id))

    async with trio.open_nursery() as nursery:
        for node in (*lab.nodes, *lab.nodes):
            nursery.start_soon(call, node)
        await broker.began.wait()
        await eventually(lambda: sum(node.engine.waits for node in lab.nodes) == 3)
        broker.hold.set()
    assert answers == [{"result": 1}] * 4
    assert broker.calls == 1
    assert sum(node.engine.waits for node in lab.nodes) == 0
    assert await effects(lab[0], flow_id) == ({"total": b"1"}, {"c": 1})


async def test_a_repetition_that_waits_too_long_says_so(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    broker = Broker(TEXT)
    broker.hold = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, lab[0], broker, flow_id)
        await broker.began.wait()
        error = await refused(lab[1], broker, flow_id, seconds=0.1)
        assert (error.reason, error.status) == ("rpc_in_progress", 409)
        broker.hold.set()


async def test_a_caller_that_leaves_gives_the_request_back(lab: StreamLab) -> None:
    flow_id = await lab[0].start("F", "nobody")
    broker = Broker(TEXT)
    broker.hold = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, lab[0], broker, flow_id)
        await broker.began.wait()
        nursery.cancel_scope.cancel()
    broker.hold = None
    assert await ask(lab[1], broker, flow_id) == {"result": 1}


@pytest.mark.parametrize("locks", [(), ("total",)])
async def test_a_call_that_was_thought_dead_does_nothing_any_more(
    lab: StreamLab, locks: tuple[str, ...]
) -> None:
    """Its claim ran out while its node stood still, and a repetition was served meanwhile."""
    flow_id = await lab[0].start("F", "nobody")
    late, second = Broker(TEXT), Broker(TEXT)
    late.hold = trio.Event()
    async with trio.open_nursery() as nursery:
        errors: list[str] = []

        async def call() -> None:
            errors.append((await refused(lab[0], late, flow_id, locks=locks)).reason)

        nursery.start_soon(call)
        await late.began.wait()
        store = lab[1].store
        keys = await store.call("KEYS", f"{store.keys.prefix}:*:once:*")
        assert len(keys) == 1
        await store.call("DEL", keys[0])
        # Its locks would be taken back by their timer.
        assert await ask(lab[1], second, flow_id) == {"result": 1}
        late.hold.set()
    assert errors == ["rpc_timed_out"]
    assert await effects(lab[0], flow_id) == ({"total": b"1"}, {"c": 1})
    run = await lab[0].engine.read(NAMESPACE, flow_id)
    assert run.state.locks == {}
    assert await ask(lab[0], second, flow_id) == {"result": 1}
    assert second.calls == 1
