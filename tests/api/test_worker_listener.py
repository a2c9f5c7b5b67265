"""What only the worker listener does: turning connections away, and letting go of them."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from nodes.api.limits import ListenerLimits
from nodes.api.serving import open_listener
from nodes.listener.listener import WorkerListener
from tests.api.edge import (
    LIMIT,
    Recorder,
    Serving,
    connect,
    exchange,
    open_for_workers,
    post,
    read_all,
    read_until,
)
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def serving(recorder: Recorder) -> Serving:
    return partial(open_for_workers, recorder)


async def test_more_connections_than_allowed_are_turned_away(serving: Serving) -> None:
    async with serving(connections=2) as address:
        async with await connect(address) as one, await connect(address) as two:
            for stream in (one, two):
                await stream.send_all(post("/x"))
                await read_until(stream, b"empty")
            refused = await exchange(address, b"")
            assert refused.startswith(b"HTTP/1.1 503")
            assert refused.endswith(b"too_many_connections")
            assert b"retry-after: 1" in refused
            await one.send_all(post("/x"))
            await read_until(one, b"empty")

        async def there_is_room_again() -> bool:
            return (await exchange(address, post("/x", b"", b"Connection: close"))).endswith(b"empty")

        await eventually(there_is_room_again)


async def test_stopping_ends_idle_connections_and_waits_for_the_others(recorder: Recorder) -> None:
    """Nobody who sent a request before the end goes without an answer."""
    listener = WorkerListener(recorder, ListenerLimits(LIMIT, grace_seconds=10))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(
            partial(listener.serve, open_listener("127.0.0.1", 0), shutdown=stop.wait)
        )
        idle, busy, sending = [await connect(address) for _ in range(3)]
        await idle.send_all(post("/x"))
        await read_until(idle, b"empty")
        await busy.send_all(post("/taken"))
        await recorder.parked.wait()
        await sending.send_all(post("/half", b"body")[:-2])
        await eventually(lambda: listener.statistics().connections == 3)
        stop.set()
        assert await read_all(idle) == b""
        await sending.send_all(b"dy")
        recorder.left.set()
        for stream, body in ((busy, b"empty"), (sending, b"body")):
            answer = await read_all(stream)
            assert b"connection: close" in answer
            assert answer.endswith(body)
            await stream.aclose()
    assert listener.statistics().connections == 0


async def test_stopping_does_not_wait_for_ever(recorder: Recorder) -> None:
    listener = WorkerListener(recorder, ListenerLimits(LIMIT, grace_seconds=0.2))
    stop = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(
                partial(listener.serve, open_listener("127.0.0.1", 0), shutdown=stop.wait)
            )
            async with await connect(address) as stream:
                await stream.send_all(post("/park"))
                await recorder.parked.wait()
                stop.set()
                assert await read_all(stream) == b""
