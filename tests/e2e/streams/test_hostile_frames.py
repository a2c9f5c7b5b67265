"""Streams by who breaks the protocol: an error it names, the end of that connection, and nobody else's.

Frames are made from the schema of the protocol's document. HEADRACE_FUZZ_EXAMPLES makes it longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
import trio
from h2.exceptions import ProtocolError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wsproto.utilities import LocalProtocolError

from nodes.streams.asyncapi import build
from tests.cluster_processes import Cluster, make_cluster
from tests.conftest import SharedServers
from tests.stream_client import CARRIERS, HEADERS, StreamClient, connect
from tests.waiting import eventually
from tests.wire import metric, open_wire

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "30"))
FATAL = {
    "invalid_json", "invalid_message", "message_too_large", "too_many_frames", "message_too_deep",
    "unknown_frame", "invalid_frame", "hello_expected", "hello_repeated", "slot_reused", "unknown_slot",
    "invalid_registration",
}  # fmt: skip
"""Of docs/protocol.md 12."""

ENDED = (trio.BrokenResourceError, trio.ClosedResourceError, LocalProtocolError, ProtocolError)
"""What a carrier of the tests says of a connection that the node ended."""

SCHEMAS: dict[str, Any] = build()["components"]["schemas"]
SENT = {
    found["properties"]["type"]["const"] if "const" in found["properties"]["type"]
    else found["properties"]["type"]["enum"][0]: found
    for name, found in SCHEMAS.items()
    if "type" in found.get("properties", {})
}  # fmt: skip
FROM_WORKERS = ("hello", "open", "output", "heartbeat", "decline", "half_close", "reset", "pong")
HELLO = {
    "type": "hello",
    "worker_id": "w",
    "flow_types": [{"name": "F"}],
    "task_limit": 8,
    "reserved_rpc_slots": 0,
}

_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["\ud800", "<script>", "x" * 5000, 1 << 70, -1, 0, 2_147_483_648]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_right: dict[str, st.SearchStrategy[Any]] = {
    "slot": st.integers(1, 6),
    "kind": st.sampled_from(["step_and_rpc", "rpc_only"]),
    "reason": st.sampled_from(["unsupported", "no_capacity"]),
    "attempt_id": st.text(max_size=30),
    "worker_id": st.just("w"),
    "flow_types": st.just([{"name": "F"}]),
    "task_limit": st.integers(0, 9),
    "reserved_rpc_slots": st.just(0),
}


@st.composite
def _frame(draw: st.DrawFn) -> dict[str, Any]:
    """A frame of the schema, mostly with the right members, now and then with a wrong one."""
    kind = draw(st.sampled_from([*FROM_WORKERS, *SENT]))
    frame: dict[str, Any] = {"type": kind}
    for name in SENT[kind]["properties"]:
        fate = draw(st.integers(0, 9))
        if name != "type" and fate:
            frame[name] = draw(_right.get(name, _anything) if fate > 1 else _anything)
    return frame


_message = st.lists(_frame(), min_size=1, max_size=4).map(lambda frames: json.dumps(frames).encode())
_NOISE = [
    b"{}", b"null", b"[", b"[1]", b"[NaN]", b'[{"type":"pong","nonce":"\\ud800"}]', b"[" * 200_000,
    b" " * 3_000_000 + b"1",
]  # fmt: skip
_broken = st.sampled_from(_NOISE) | st.text('[]{}",:0a\\ ', min_size=1, max_size=30).map(str.encode)
_conversation = st.tuples(st.booleans(), st.lists(_message | _broken, min_size=1, max_size=8))


@pytest.fixture(scope="module")
def served(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    environ = {"HEADRACE_KEY_PREFIX": f"h{uuid4().hex[:8]}"}
    directory = tmp_path_factory.mktemp("served")
    with make_cluster(1, shared_servers.get("valkey").url, directory, environ) as made:
        trio.run(made.start)
        yield made


async def _talk(url: str, carrier: str, polite: bool, messages: list[bytes]) -> None:
    async with connect(url, carrier) as worker:
        if polite:
            await worker.send(HELLO)
        async with trio.open_nursery() as nursery:

            async def stop_at_the_end() -> None:
                await worker.wait_ended()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop_at_the_end)
            # The last of them breaks the protocol, whatever came before.
            for message in (*messages, b'[{"type":"heartbeat","slot":2147483647,"attempt_id":""}]'):
                with suppress(*ENDED):
                    await worker.carrier.send(message)
        errors = [frame for frame in worker.frames if frame["type"] == "error" and "slot" not in frame]
        assert all(frame["reason"] in FATAL for frame in errors), errors
        assert len(errors) <= 1
        assert {frame["type"] for frame in worker.frames} <= SENT.keys() - set(FROM_WORKERS) | {"error"}
        if carrier == "websocket" and worker.carrier.closed is not None:
            assert worker.carrier.closed in (1008, 1009), worker.frames


async def _works(bystander: StreamClient, slot: int) -> None:
    await bystander.open(slot)
    await bystander.send({"type": "half_close", "slot": slot})
    await bystander.next("closed", slot=slot)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_whatever_is_sent_ends_one_connection(served: Cluster, carrier: str) -> None:
    conversations: list[tuple[bool, list[bytes]]] = []

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(_conversation)
    def collect(conversation: tuple[bool, list[bytes]]) -> None:
        conversations.append(conversation)

    collect()
    (node,) = served.nodes
    async with connect(node.url, carrier) as bystander:
        await bystander.hello("bystander", "F")
        for number, (polite, messages) in enumerate(conversations, 1):
            await _talk(node.url, carrier, polite, messages)
            if number % 10 == 0:
                await _works(bystander, number)
        await _works(bystander, len(conversations) + 1)
    async with open_wire(node.url) as wire:

        async def nobody_is_left() -> bool:
            return await metric(wire, "headrace_stream_connections") == 0

        await eventually(nobody_is_left)
    assert "Traceback" not in node.log
    assert "connection_broke" not in node.log


async def test_who_asks_and_does_not_listen_is_let_go(served: Cluster) -> None:
    """Answers are not piled up for a worker that reads none of them."""
    (node,) = served.nodes
    attempt = "x" * 1_000_000
    asking = [{"type": "open", "slot": 1, "kind": "step_and_rpc"}]
    frames = [{"type": "output", "slot": 1, "attempt_id": attempt, "output": 1}]
    async with connect(node.url, "websocket") as bystander:
        await bystander.hello("bystander", "F")
        stream = await trio.open_tcp_stream("127.0.0.1", node.port)
        async with stream:
            carrier = CARRIERS["websocket"](stream)
            await carrier.open("h", HEADERS)
            await carrier.send(json.dumps([HELLO]).encode())
            await carrier.send(json.dumps(asking).encode())

            async def ask() -> None:
                with suppress(*ENDED):
                    while True:
                        await carrier.send(json.dumps(frames).encode())

            async def let_go() -> bool:
                return "slow_stream_reader_cut" in node.log

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await eventually(let_go)
                nursery.cancel_scope.cancel()
        await _works(bystander, 1)


async def test_attempts_of_another_tenant_are_as_unknown_as_any(served: Cluster) -> None:
    """Nor is a worker of the same id in another namespace given them."""
    (node,) = served.nodes
    async with open_wire(node.url) as wire:
        for name in ("victim", "rival"):
            await wire.post("/namespaces", {"name": name})
        started = await wire.client.post(
            "/api/flows", json={"flow_type": "Secret", "start_step": "a"}, headers={"x-namespace": "victim"}
        )
        assert started.is_success
    headers = {"x-headrace-stream-versions": "1-1"}
    async with (
        connect(node.url, "websocket", **headers, **{"x-namespace": "rival"}) as rival,
        connect(node.url, "websocket", **headers, **{"x-namespace": "victim"}) as victim,
    ):
        for worker in (rival, victim):
            await worker.hello("same", "Secret")
            await worker.open(1)
        task = await victim.next("task")
        stolen = task["task"]["attempt_id"]
        told = []
        for attempt in (stolen, f"{stolen}-none"):
            await rival.send({"type": "output", "slot": 1, "attempt_id": attempt, "output": "forged"})
            answer = await rival.next("confirmed", slot=1)
            assert answer.pop("attempt_id") == attempt
            told.append(answer)
            await rival.send({"type": "heartbeat", "slot": 1, "attempt_id": attempt, "checkpoint": "forged"})
        assert told[0] == told[1]
        assert told[0]["accepted"] is False
        assert (await victim.complete(task, {"complete": {"result": "mine"}}))["attempt_id"] == stolen
        assert not [frame for frame in rival.frames if frame["type"] == "task"]
