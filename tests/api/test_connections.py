"""How connections of the main port begin, idle and end; how their answers are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h2.config
import h2.connection
import h2.events
import trio
import trio.testing

from nodes.api.app import create_app
from nodes.api.limits import ListenerLimits
from nodes.api.serving import Address, open_listener, serve
from tests.api.edge import LIMIT, Recorder, connect, exchange, read_all, read_until
from tests.waiting import PATIENCE

REQUEST = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
TAKEN = REQUEST.replace(b"/x", b"/taken")


@asynccontextmanager
async def serving(recorder: Recorder, **more: Any) -> AsyncIterator[tuple[Address, trio.Event]]:
    """The main port and the event that stops it; fails when it does not end soon after that.

    ``more`` are other limits than the usual ones.
    """
    stop = trio.Event()
    started = partial(
        serve,
        recorder,
        create_app(recorder, LIMIT),
        open_listener("127.0.0.1", 0),
        ListenerLimits(LIMIT, **more),
        shutdown=stop.wait,
    )
    async with trio.open_nursery() as nursery:
        address: Address = await nursery.start(started)
        try:
            yield address, stop
        finally:
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE
    assert not nursery.cancel_scope.cancelled_caught


async def test_an_idle_connection_ends_with_its_client(recorder: Recorder) -> None:
    """It would count as one of the most there may be until it had been idle for too long."""
    async with serving(recorder, connections=1) as (address, _):
        for _ in range(3):
            async with await connect(address) as stream:
                await stream.send_all(REQUEST)
                assert (await read_until(stream, b"empty")).startswith(b"HTTP/1.1 200")
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()


async def test_a_connection_that_never_asked_ends_with_its_client(recorder: Recorder) -> None:
    async with serving(recorder, connections=1) as (address, _):
        async with await connect(address):
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        closing = REQUEST.replace(b"h\r\n", b"h\r\nConnection: close\r\n")
        assert (await exchange(address, closing)).startswith(b"HTTP/1.1 200")


async def test_only_what_has_no_request_is_idle(recorder: Recorder) -> None:
    times = {"header_seconds": 0.3, "idle_seconds": 0.3}
    async with serving(recorder, **times) as (address, _), await connect(address) as stream:
        await stream.send_all(TAKEN)
        with trio.fail_after(PATIENCE):
            await recorder.parked.wait()
        for _ in range(2):
            assert await exchange(address, b"") == b""
        recorder.left.set()
        assert (await read_until(stream, b"empty")).startswith(b"HTTP/1.1 200")
        assert await read_all(stream) == b""


async def test_idle_connections_end_with_the_server(recorder: Recorder) -> None:
    async with serving(recorder) as (address, stop), await connect(address) as stream:
        await stream.send_all(REQUEST)
        await read_until(stream, b"empty")
        async with await connect(address) as silent:
            await trio.testing.wait_all_tasks_blocked()
            stop.set()
            assert await read_all(stream) == b""
            assert await read_all(silent) == b""


async def test_a_request_under_way_is_answered_before_its_connection_ends(recorder: Recorder) -> None:
    async with serving(recorder) as (address, stop), await connect(address) as stream:
        await stream.send_all(TAKEN)
        await recorder.parked.wait()
        stop.set()
        await trio.testing.wait_all_tasks_blocked()
        recorder.left.set()
        assert (await read_all(stream)).endswith(b"empty")


async def test_a_connection_of_http2_ends_after_its_last_answer_when_the_server_does(
    recorder: Recorder,
) -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "GET"), (":path", "/taken"), (":scheme", "http"), (":authority", "h")]
    client.send_headers(1, headers, end_stream=True)
    async with serving(recorder) as (address, stop), await connect(address) as stream:
        await stream.send_all(client.data_to_send())
        await recorder.parked.wait()
        stop.set()
        await trio.testing.wait_all_tasks_blocked()
        recorder.left.set()
        events = client.receive_data(await read_all(stream))
    assert any(isinstance(event, h2.events.ResponseReceived) for event in events)
