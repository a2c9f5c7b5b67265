"""Registration and its limits: R18 to R26, and the life of connections: R82, R83."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from nodes.streams.codec import ProtocolError
from tests.cluster.streams.lab import COMPLETE, NAMESPACE, StreamLab, StreamNode, attempt, open_stream_lab
from tests.stream_client import Frame, StreamClient
from tests.waiting import eventually

TOO_LONG = "é" * 257
LONGEST = "é" * 256


async def greet(node: StreamNode, **changes: Any) -> Frame:
    """The answer to a hello."""
    hello = {"type": "hello", "worker_id": "w", "flow_types": [{"name": "F"}], "task_limit": 2}
    async with node.connect() as client:
        await client.send({**hello, "reserved_rpc_slots": 0, **changes})
        answer = await client.take(lambda frame: frame["type"] in ("welcome", "rejected"))
        if answer["type"] == "rejected":
            assert (answer["slot"], answer["permanent"]) == (None, True)
            await client.wait_ended()
        return answer


def flows(count: int = 1, **first: Any) -> list[Frame]:
    return [{"name": "F0", **first}, *({"name": f"F{number}"} for number in range(1, count))]


@pytest.mark.parametrize(
    ("changes", "fine"),
    [
        ({"worker_id": LONGEST}, True),
        ({"worker_id": TOO_LONG}, False),
        ({"worker_id": ""}, False),
        ({"flow_types": flows(256)}, True),
        ({"flow_types": flows(257)}, False),
        ({"flow_types": []}, False),
        ({"flow_types": flows(2, name="F1")}, False),
        ({"flow_types": flows(name=LONGEST)}, True),
        ({"flow_types": flows(name=TOO_LONG)}, False),
        ({"flow_types": flows(step_types=[LONGEST], rpc_names=[LONGEST])}, True),
        ({"flow_types": flows(step_types=[TOO_LONG])}, False),
        ({"flow_types": flows(rpc_names=[""])}, False),
        ({"flow_types": flows(step_types=[str(n) for n in range(257)])}, False),
        ({"task_limit": 2, "reserved_rpc_slots": 2}, False),
        ({"task_limit": 2, "reserved_rpc_slots": 1}, True),
    ],
)
async def test_r22_r23_r24_lengths_count_characters(
    lab: StreamLab, changes: dict[str, Any], fine: bool
) -> None:
    answer = await greet(lab[0], **changes)
    assert (answer["type"] == "welcome") is fine
    if not fine:
        assert answer["reason"] == "invalid_registration"
        assert "é" not in answer["message"]


async def rejected(client: StreamClient, slot: int, kind: str = "step_and_rpc") -> str:
    await client.send({"type": "open", "slot": slot, "kind": kind})
    answer = await client.next("rejected", slot=slot)
    assert not answer["permanent"]
    reason: str = answer["reason"]
    return reason


async def test_r20_r25_streams_of_a_worker_on_a_node(valkey_url: str, prefix: str) -> None:
    async with open_stream_lab(valkey_url, prefix, max_concurrent_tasks_cap=2) as lab:
        async with lab[0].connect() as client, lab[0].connect() as sibling:
            welcome = await client.hello("w1", "F")
            assert welcome["max_concurrent_tasks"] == 2
            await client.open(1)
            await sibling.hello("w1", "F")
            await sibling.open(1, kind="rpc_only")
            assert await rejected(client, 2) == "worker_streams_exhausted"
            await sibling.send({"type": "half_close", "slot": 1})
            await sibling.next("closed")
            await client.open(3)
        async with lab[0].worker("w2", "F", slots=2), lab[1].worker("w1", "F", slots=2):
            assert [node.hub.statistics().streams for node in lab.nodes] == [2, 2]


async def test_r21_streams_of_a_node(valkey_url: str, prefix: str) -> None:
    async with open_stream_lab(valkey_url, prefix, 1, max_streams=3) as lab:
        async with lab[0].worker("w1", "F", slots=2), lab[0].worker("w2", "F") as w2:
            assert await rejected(w2, 9, "rpc_only") == "node_streams_exhausted"
        assert lab[0].hub.statistics().streams == 0


async def test_r26_a_worker_that_cannot_start_returns_what_it_was_sent(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        await w1.next("task")
        await w1.send({"type": "half_close", "slot": 1})
        await w1.next("closed")
    async with lab[1].worker("w2", "F") as w2:
        assert attempt(await w2.next("task")) == (1, 1)


async def test_a_connection_that_skips_hello_ends(lab: StreamLab) -> None:
    async with lab[0].connect() as client:
        await client.send({"type": "open", "slot": 1, "kind": "rpc_only"})
        assert (await client.next("error"))["reason"] == "hello_expected"
        await client.wait_ended()


async def test_a_silent_stranger_is_sent_away(
    valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.streams.carrying.HELLO_SECONDS", 0.2)
    async with open_stream_lab(valkey_url, prefix, 1, ping_interval=0.2) as lab, lab[0].connect() as client:
        assert (await client.next("error"))["reason"] == "hello_timeout"
        await client.wait_ended()


async def test_r83_idle_connections_are_pinged_and_live(valkey_url: str, prefix: str) -> None:
    async with (
        open_stream_lab(valkey_url, prefix, 1, ping_interval=0.1) as lab,
        lab[0].worker("w1", "F") as w1,
    ):
        for _ in range(8):
            await w1.next("ping")
        assert not w1.ended


async def test_two_missed_pings_lose_the_connection(valkey_url: str, prefix: str) -> None:
    """A black hole, with a task in flight: the attempt fails."""
    options = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
    async with (
        open_stream_lab(valkey_url, prefix, ping_interval=0.2) as lab,
        lab[0].worker("w1", "F") as w1,
    ):
        await lab[0].start("F", options=options)
        task = await w1.next("task")
        began = trio.current_time()
        w1.answer_pings = False
        await w1.wait_ended()
        assert trio.current_time() - began > 0.3, "one missed ping is forgiven"
        assert attempt(task) == (1, 0)
        async with lab[1].worker("w2", "F") as w2:
            assert attempt(await w2.next("task")) == (2, 0)


async def test_r82_pongs_of_a_busy_worker_are_life(valkey_url: str, prefix: str) -> None:
    async with (
        open_stream_lab(valkey_url, prefix, 1, ping_interval=0.2) as lab,
        lab[0].worker("w1", "F") as w1,
    ):
        await lab[0].start("F")
        task = await w1.next("task")
        w1.answer_pings = False
        for _ in range(10):
            await trio.sleep(0.1)
            await w1.send({"type": "pong"})
        assert (await w1.complete(task, COMPLETE))["accepted"]


async def test_a_worker_that_does_not_read_is_cut(
    valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.streams.carrying.UNSENT_BYTES", 10_000)
    async with (
        open_stream_lab(valkey_url, prefix, 1, ping_interval=0.2) as lab,
        lab[0].worker("w1", "F") as w1,
    ):
        for connection in list(lab[0].hub._connections):
            connection.core.unsent_bytes = 10_001
        await w1.wait_ended()


class _StuckCarrier:
    """Says what it is given, then nothing; its sends cannot be cancelled and end when they are let go."""

    def __init__(self, *messages: list[Frame]) -> None:
        self._messages = list(messages)
        self.let_go = trio.Event()

    async def deliver(self, take: Callable[[bytes | str], bool]) -> None:
        for message in self._messages:
            take(json.dumps(message).encode())
        await trio.sleep_forever()

    async def send(self, message: bytes) -> None:
        with trio.CancelScope(shield=True):
            await self.let_go.wait()

    async def close(self, failure: ProtocolError | None) -> None:
        """Nothing to end."""


async def test_the_slots_of_a_stuck_connection_are_lost_at_once(valkey_url: str, prefix: str) -> None:
    hello = {"type": "hello", "worker_id": "w1", "flow_types": [{"name": "F"}], "task_limit": 1}
    slot = {"type": "open", "slot": 1, "kind": "step_and_rpc"}
    carrier = _StuckCarrier([{**hello, "reserved_rpc_slots": 0}, slot])
    options = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
    async with open_stream_lab(valkey_url, prefix, ping_interval=0.2) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(lab[0].hub.serve, carrier, NAMESPACE)
        await eventually(lambda: lab[0].hub.statistics().streams == 1)
        await lab[0].start("F", options=options)
        await eventually(lambda: lab[0].hub.statistics().running == 1)
        async with lab[1].worker("w2", "F") as w2:
            assert attempt(await w2.next("task")) == (2, 0)
        await eventually(lambda: lab[0].hub.statistics().streams == 0)
        assert lab[0].hub.statistics().connections == 1
        carrier.let_go.set()
