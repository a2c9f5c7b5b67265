"""HTTP/1.1 on both ports: order, waiting for a body, limits, answers that are made while they are sent."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from nodes.api.messages import Response
from nodes.http1.answers import Calendar, encode
from nodes.http1.connection import READ_BYTES
from tests.api.edge import (
    LIMIT,
    Recorder,
    Serving,
    connect,
    exchange,
    post,
    read_all,
    read_until,
)
from tests.waiting import PATIENCE, eventually

LARGE = 16_000_000
"""More than the network takes at once."""


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


class Ticker:
    """Answers made while they are sent: a piece whenever it is told to, until it is told to end."""

    def __init__(self) -> None:
        self.send, self._pieces = trio.open_memory_channel[bytes](10)
        self.is_cancelled = False

    async def handle(self, _request: object) -> Response:
        return Response(200, [(b"content-type", b"text/plain")], stream=self._stream)

    async def _stream(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        try:
            while piece := await self._pieces.receive():
                await send(piece)
        except trio.Cancelled:
            self.is_cancelled = True
            raise


@pytest.fixture
def ticker(recorder: Recorder) -> Ticker:
    ticker = Ticker()
    recorder.handle = ticker.handle  # type: ignore[assignment]
    return ticker


async def test_an_answer_of_unknown_length_comes_in_pieces(serving: Serving, ticker: Ticker) -> None:
    async with serving() as address, await connect(address) as stream:
        for _ in range(2):
            await stream.send_all(post("/x"))
            head = await read_until(stream, b"\r\n\r\n")
            assert b"transfer-encoding: chunked\r\n" in head
            assert b"content-length" not in head
            await ticker.send.send(b"x" * 18)
            assert await read_until(stream, b"x\r\n") == b"12\r\n" + b"x" * 18 + b"\r\n"
            await ticker.send.send(b"")
            assert await read_until(stream, b"0\r\n\r\n") == b"0\r\n\r\n"


async def test_the_last_answer_of_unknown_length_ends_with_its_connection(
    serving: Serving, ticker: Ticker
) -> None:
    for piece in (b"one", b"two", b""):
        await ticker.send.send(piece)
    async with serving() as address:
        answer = await exchange(address, post("/x", b"", b"Connection: close"))
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"\r\n\r\nonetwo")


async def test_who_leaves_ends_the_making_of_an_answer(serving: Serving, ticker: Ticker) -> None:
    async with serving() as address:
        async with await connect(address) as stream:
            await stream.send_all(post("/x"))
            await read_until(stream, b"\r\n\r\n")
        await eventually(lambda: ticker.is_cancelled)


async def test_an_answer_that_cannot_be_finished_does_not_look_finished(
    serving: Serving, recorder: Recorder
) -> None:
    async def stream(send: Callable[[bytes], Awaitable[None]]) -> None:
        await send(b"one")
        raise KeyError(1)

    async def handle(_request: object) -> Response:
        return Response(200, [], stream=stream)

    recorder.handle = handle  # type: ignore[assignment]
    async with serving() as address:
        assert (await exchange(address, post("/x"))).endswith(b"3\r\none\r\n")


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
