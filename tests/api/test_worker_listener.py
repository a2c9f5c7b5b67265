"""What only the worker listener does: order, waiting for a body, limits, letting go of connections."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial

import pytest
import trio

from nodes.api.limits import ListenerLimits
from nodes.api.messages import Response
from nodes.api.serving import open_listener
from nodes.listener.answers import Calendar, encode
from nodes.listener.connection import READ_BYTES
from nodes.listener.listener import WorkerListener
from tests.api.edge import LIMIT, Recorder, Serving, connect, exchange, open_for_workers, read_all, read_until
from tests.waiting import PATIENCE, eventually

LARGE = 16_000_000
"""More than the network takes at once."""


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def serving(recorder: Recorder) -> Serving:
    return partial(open_for_workers, recorder)


def post(path: str, body: bytes = b"", *lines: bytes) -> bytes:
    head = [b"POST %b HTTP/1.1" % path.encode(), b"Host: h", b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join((*head, b"", body))


async def test_pipelined_requests_are_answered_in_order(serving: Serving, recorder: Recorder) -> None:
    """Also those that came while the first was being answered."""
    async with serving() as address, await connect(address) as stream:
        await stream.send_all(post("/taken", b"1"))
        with trio.fail_after(PATIENCE):
            await recorder.parked.wait()
        await stream.send_all(b"".join(post("/next", b"%d" % number) for number in range(2, 9)))
        await stream.send_all(post("/last", b"9", b"Connection: close"))
        recorder.left.set()
        answer = await read_all(stream)
    bodies = [part.split(b"\r\n\r\n")[1] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert bodies == [b"%d" % number for number in range(1, 10)]
    assert answer.count(b"connection: close") == 1


async def test_what_is_sent_far_ahead_waits_outside(serving: Serving, recorder: Recorder) -> None:
    """A client that sends and sends while its first request is answered fills the network, not the node."""
    requests = [post("/more", b"x" * LIMIT) for _ in range(10_000)]
    async with serving() as address, await connect(address) as stream:
        await stream.send_all(post("/taken"))
        with trio.fail_after(PATIENCE):
            await recorder.parked.wait()
        sent = 0
        with trio.move_on_after(0.5):
            for request in requests:
                await stream.send_all(request)
                sent += 1
        assert sent < len(requests)
        stream.socket.shutdown(socket.SHUT_WR)
        recorder.left.set()
        await read_all(stream)
    assert len(recorder.requests) <= 1 + sent


async def test_a_client_that_sent_ahead_and_left_ends_its_poll(serving: Serving, recorder: Recorder) -> None:
    async with serving() as address:
        async with await connect(address) as stream:
            await stream.send_all(post("/park") + post("/never"))
            with trio.fail_after(PATIENCE):
                await recorder.parked.wait()
        with trio.fail_after(PATIENCE):
            await recorder.cancelled.wait()
    assert recorder.paths == ["/park"]


async def test_nothing_is_read_after_the_last_request(serving: Serving, recorder: Recorder) -> None:
    async with serving() as address:
        answer = await exchange(address, post("/last", b"", b"Connection: close") + b"x" * READ_BYTES)
    assert answer.startswith(b"HTTP/1.1 ")
    assert recorder.paths == ["/last"] * answer.count(b"HTTP/1.1 200")


async def test_a_body_is_waited_for(serving: Serving, recorder: Recorder) -> None:
    request = post("/x", b"body", b"Expect: 100-continue", b"Connection: close")
    head, body = request[:-4], request[-4:]
    async with serving() as address:
        async with await connect(address) as stream:
            await stream.send_all(head)
            assert await read_until(stream, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await stream.send_all(body)
            answer = await read_all(stream)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.endswith(b"body")
        # Who does not wait, or must not send, is not asked to.
        assert (await exchange(address, request)).startswith(b"HTTP/1.1 200 OK")
        large = post("/x", b"", b"Expect: 100-continue").replace(b": 0", b": 1001")
        assert (await exchange(address, large)).startswith(b"HTTP/1.1 413")
    assert recorder.paths == ["/x", "/x"]


@pytest.mark.parametrize(
    ("over", "status"),
    [
        (b"GET /" + b"x" * 4095 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 200),
        (b"GET /" + b"x" * 4096 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 62 + b"Connection: close\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 64 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * (16 * 1024 - 14) + b"\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * (16 * 1024 - 13) + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X" * 200_000, 431),
        (b"\r\n" * 100_000, 431),
        (post("/", b"x" * LIMIT), 200),
        (post("/", b"x" * (LIMIT + 1)), 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1001, 413),
    ],
    ids=[
        "target", "long-target", "headers", "many-headers", "header", "long-header", "endless-header",
        "empty-lines", "body", "long-body", "many-chunks",
    ],
)  # fmt: skip
async def test_sizes_at_their_limit_and_above(serving: Serving, over: bytes, status: int) -> None:
    async with serving() as address, await connect(address) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(over)
        answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert (b"connection: close" in answer) == (status != 200 or b"close" in over)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"POST /x HT", b"HTTP/1.1 408"), (b"\r\n", b"HTTP/1.1 408")],
    ids=["silent", "part-of-a-head", "empty-line"],
)
async def test_a_head_has_to_arrive_in_time(serving: Serving, sent: bytes, answer: bytes) -> None:
    async with serving(header_seconds=0.2, idle_seconds=60) as address:
        got = await exchange(address, sent)
    assert got.startswith(answer)
    assert bool(got) == bool(answer)


async def test_a_head_that_comes_in_drops_is_cut_off(serving: Serving, recorder: Recorder) -> None:
    """Each byte comes in time; all of them together do not."""
    async with serving(header_seconds=0.4) as address, await connect(address) as stream:

        async def drip() -> None:
            for byte in post("/x", b"", b"X: " + b"y" * 200):
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            answer = await read_all(stream)
            nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 408")
    assert recorder.requests == []


async def test_an_idle_connection_ends_after_its_own_time(serving: Serving) -> None:
    async with serving(header_seconds=60, idle_seconds=0.3) as address, await connect(address) as stream:
        for _ in range(3):
            await stream.send_all(post("/x"))
            await read_until(stream, b"empty")
        assert await read_all(stream) == b""


async def test_a_parked_poll_has_no_deadline_here(serving: Serving, recorder: Recorder) -> None:
    async with serving(header_seconds=0.1, idle_seconds=0.1) as address, await connect(address) as stream:
        await stream.send_all(post("/taken"))
        with trio.move_on_after(0.4):
            await read_all(stream)
        recorder.left.set()
        assert (await read_until(stream, b"empty")).startswith(b"HTTP/1.1 200")


async def test_a_client_that_takes_nothing_is_let_go(serving: Serving, recorder: Recorder) -> None:
    """Its task goes back."""

    async def handle(_request: object) -> Response:
        return Response(200, [], b"x" * LARGE, undelivered=lambda: recorder.undelivered.append("big"))

    recorder.handle = handle  # type: ignore[assignment]
    async with serving(send_seconds=0.3) as address, await connect(address) as stream:
        await stream.send_all(post("/big"))
        await eventually(lambda: bool(recorder.undelivered))
    assert recorder.undelivered == ["big"]


async def test_a_large_answer_arrives_whole(serving: Serving, recorder: Recorder) -> None:
    async def handle(_request: object) -> Response:
        return Response(200, [], b"x" * LARGE)

    recorder.handle = handle  # type: ignore[assignment]
    async with serving() as address:
        answer = await exchange(address, post("/big", b"", b"Connection: close"))
    assert answer.partition(b"\r\n\r\n")[2] == b"x" * LARGE


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


def test_an_answer_is_one_piece() -> None:
    calendar = Calendar()
    date = calendar.line(0.9)
    assert date == b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    assert calendar.line(0.1) is date
    assert calendar.line(1.0) != date
    assert encode(Response(200, [(b"a", b"b")], b"body"), date, close=False) == (
        b"HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 4\r\n" + date + b"\r\nbody"
    )
    assert encode(Response(204), b"", close=True) == b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"
