"""What clients other than workers need of HTTP/1.1: other protocols, HTTP/1.0, trailers."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

import h11
import pytest
import trio

from nodes.api.limits import ListenerLimits
from nodes.api.serving import Address
from nodes.cli.local import free_ports
from nodes.http1.connection import Connection
from nodes.http1.parser import PREFACE, Handover, Parser
from tests.api.edge import (
    LIMIT,
    Recorder,
    connect,
    exchange,
    open_for_workers,
    open_main,
    post,
    read_all,
    read_until,
)
from tests.api.smuggling import HIDDEN
from tests.api.test_websocket_edge import HANDSHAKE, TEXT, Sockets, frame, served
from tests.cluster_processes import HOST, Balancer, NodeProcess
from tests.waiting import PATIENCE, eventually

SHAKEN = HANDSHAKE + b"\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.fixture
def sockets() -> Sockets:
    return Sockets()


async def _is_websocket(stream: trio.SocketStream, sockets: Sockets) -> None:
    """Read the end of the handshake, and send something that arrives."""
    assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    await stream.send_all(frame(TEXT, b"hello"))
    await eventually(lambda: sockets.messages == ["hello"])


# -- WebSockets -------------------------------------------------------------------------------


async def test_a_connection_of_earlier_requests_becomes_a_websocket(
    sockets: Sockets, recorder: Recorder
) -> None:
    """As HAProxy and browsers use them."""
    async with served(sockets, recorder) as address, await connect(address) as stream:
        for _ in range(2):
            await stream.send_all(post("/x"))
            await read_until(stream, b"empty")
        await stream.send_all(SHAKEN)
        await _is_websocket(stream, sockets)
    assert recorder.paths == ["/x", "/x"]


async def test_requests_in_front_of_a_handshake_are_answered_first(
    sockets: Sockets, recorder: Recorder
) -> None:
    async with served(sockets, recorder) as address, await connect(address) as stream:
        await stream.send_all(post("/taken", b"one") + post("/x", b"two") + SHAKEN)
        with trio.fail_after(PATIENCE):
            await recorder.parked.wait()
        assert sockets.messages == []
        recorder.left.set()
        received = b""
        with trio.fail_after(PATIENCE):
            while not received.endswith(b"\r\n\r\n") or received.count(b"HTTP/1.1 ") < 3:
                received += await stream.receive_some()
        assert [part.split(b"\r\n")[0] for part in received.split(b"HTTP/1.1 ")[1:]] == [
            b"200 OK",
            b"200 OK",
            b"101 ",
        ]
        assert received.index(b"one") < received.index(b"two")
        await stream.send_all(frame(TEXT, b"hello"))
        await eventually(lambda: sockets.messages == ["hello"])


async def test_a_client_that_leaves_before_its_handshake_was_due_ends_its_poll(
    sockets: Sockets, recorder: Recorder
) -> None:
    async with served(sockets, recorder) as address:
        async with await connect(address) as stream:
            await stream.send_all(post("/park") + SHAKEN)
            with trio.fail_after(PATIENCE):
                await recorder.parked.wait()
        with trio.fail_after(PATIENCE):
            await recorder.cancelled.wait()


async def test_a_handshake_may_come_byte_by_byte(sockets: Sockets, recorder: Recorder) -> None:
    async with served(sockets, recorder) as address, await connect(address) as stream:
        for byte in SHAKEN:
            await stream.send_all(bytes([byte]))
        await _is_websocket(stream, sockets)


@pytest.mark.parametrize("connection", [b"keep-alive, Upgrade", b"Upgrade\r\nConnection: keep-alive"])
async def test_other_connection_headers_change_nothing(
    sockets: Sockets, recorder: Recorder, connection: bytes
) -> None:
    handshake = SHAKEN.replace(b"Connection: Upgrade", b"Connection: " + connection)
    async with served(sockets, recorder) as address, await connect(address) as stream:
        await stream.send_all(handshake)
        await _is_websocket(stream, sockets)


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
    ids=["length", "chunked"],
)
async def test_a_handshake_has_no_body(sockets: Sockets, recorder: Recorder, body: bytes) -> None:
    async with served(sockets, recorder) as address:
        answer = await exchange(address, HANDSHAKE + body + HIDDEN)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.endswith(b"malformed_request")
    assert recorder.requests == []


@pytest.mark.parametrize("byte", range(256))
def test_who_reads_on_understands_every_head_that_was_understood_here(byte: int) -> None:
    """Two parsers in a row: the second refuses nothing, and sees the same request."""
    char = bytes([byte])
    for target, name, value in (
        (b"x" + char, b"x", b"y"),
        (b"x", b"x" + char, b"y"),
        (b"x", b"x", b"a" + char),
    ):
        line = b"%b: %b" % (name, value)
        parser = Parser(ListenerLimits(LIMIT), HOST, for_workers=False)
        items = parser.feed(HANDSHAKE.replace(b"/socket", b"/" + target) + line + b"\r\n\r\n")
        if not isinstance(items[-1], Handover):
            continue
        second = h11.Connection(h11.SERVER)
        second.receive_data(items[-1].data)
        event = second.next_event()
        assert isinstance(event, h11.Request)
        assert event.target.partition(b"?")[0] == parser.head.raw_path
        lasting = [header for header in parser.head.headers if header[0] != b"connection"]
        assert list(event.headers) == [*lasting, (b"connection", b"upgrade")]


async def test_a_handshake_through_haproxy_on_a_connection_that_was_used(
    sockets: Sockets, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over: list[bool] = []
    run = Connection.run

    async def watched(connection: Connection) -> bytes | None:
        begun = await run(connection)
        if begun is not None:
            handed_over.append(connection._had_answer)
        return begun

    monkeypatch.setattr(Connection, "run", watched)
    async with served(sockets, recorder) as address:
        with ExitStack() as stack:
            (port,) = free_ports(1)
            balancer = Balancer(port, [NodeProcess("node", "", tmp_path, address.port)], tmp_path)
            stack.callback(balancer.kill)
            balancer.start()
            front = Address(HOST, port)

            async def serves() -> bool:
                with suppress(OSError):
                    return (await exchange(front, GET + b"Connection: close\r\n\r\n")).endswith(b"empty")
                return False

            await eventually(serves)
            async with await connect(front) as stream:
                await stream.send_all(GET + b"\r\n")
                await read_until(stream, b"empty")
                await stream.send_all(SHAKEN)
                await _is_websocket(stream, sockets)
    assert handed_over == [True]


# -- upgrades that are passed over ------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: Upgrade\r\nUpgrade: TLS/1.2\r\nExpect: 100-continue\r\n",
    ],
    ids=["h2c", "list", "two", "POST", "expect"],
)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_the_request_is_read_as_if_it_offered_nothing(
    recorder: Recorder, lines: bytes, framing: str
) -> None:
    """Java's client offers h2c with its first request. Many of them in one piece are one by one, too."""
    length = b"Content-Length: 33\r\n\r\n" + HIDDEN
    chunked = b"Transfer-Encoding: chunked\r\n\r\n21\r\n" + HIDDEN + b"\r\n0\r\n\r\n"
    one = b"POST /x HTTP/1.1\r\nHost: h\r\n" + lines + (length if framing == "length" else chunked)
    async with open_main(recorder) as address:
        answer = await exchange(address, one * 100 + GET + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1 ") == 101
    assert [request.body for request in recorder.requests] == [HIDDEN] * 100 + [b""]
    assert all(request.header(b"upgrade") is None for request in recorder.requests)


async def test_an_offer_in_pieces(recorder: Recorder) -> None:
    request = post("/x", b"hello", b"Connection: Upgrade, close", b"Upgrade: h2c")
    async with open_main(recorder) as address, await connect(address) as stream:
        for byte in request:
            await stream.send_all(bytes([byte]))
        assert (await read_all(stream)).endswith(b"hello")
    assert recorder.paths == ["/x"]


# -- HTTP/2 -----------------------------------------------------------------------------------


async def test_http2_may_begin_byte_by_byte(recorder: Recorder) -> None:
    async with open_main(recorder) as address, await connect(address) as stream:
        for byte in PREFACE + SETTINGS:
            await stream.send_all(bytes([byte]))
        with trio.fail_after(PATIENCE):
            answer = await stream.receive_some()
        assert answer[3] == 4, "its settings"


async def test_what_begins_like_http2_has_to_go_on(recorder: Recorder) -> None:
    async with open_main(recorder, header_seconds=0.2) as address:
        assert (await exchange(address, PREFACE[:-1])).startswith(b"HTTP/1.1 408")
        assert (await exchange(address, PREFACE[:-1] + b"\r")).startswith(b"HTTP/1.1 400")
        assert (await exchange(address, post("/x") + PREFACE)).count(b"HTTP/1.1 200") == 1
    assert recorder.paths == ["/x"]


async def test_http2_after_a_request_is_refused(recorder: Recorder) -> None:
    async with open_main(recorder) as address:
        answer = await exchange(address, post("/x") + PREFACE + SETTINGS)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]


# -- HTTP/1.0 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"OPTIONS /x HTTP/1.0\r\n",
        b"GET /x HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n",
        b"GET /x HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        b"GET /x HTTP/1.0\r\nConnection: Upgrade, keep-alive\r\nUpgrade: h2c\r\nExpect: 100-continue\r\n",
    ],
    ids=["httpchk", "keep-alive", "websocket", "h2c"],
)
async def test_http_1_0_gets_one_answer_and_the_end(recorder: Recorder, head: bytes) -> None:
    """Health checks of balancers use it: ``option httpchk`` of HAProxy by itself."""
    async with open_main(recorder) as address:
        answer = await exchange(address, head + b"\r\n" + HIDDEN)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in answer
    assert recorder.paths == ["/x"]


async def test_a_body_over_http_1_0_has_a_length(recorder: Recorder) -> None:
    async with open_main(recorder) as address:
        good = await exchange(address, b"POST /x HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
        bad = await exchange(address, b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        two = await exchange(address, b"GET /x HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n")
    assert good.endswith(b"\r\n\r\nhello")
    assert bad.startswith(b"HTTP/1.1 400")
    assert two.startswith(b"HTTP/1.1 400")
    assert len(recorder.requests) == 1


# -- trailers ---------------------------------------------------------------------------------


async def test_trailers_are_thrown_away(recorder: Recorder) -> None:
    one = CHUNKED + b"5\r\nhello\r\n0\r\nHost: i\r\nX: y\r\n\r\n"
    async with open_main(recorder) as address:
        answer = await exchange(address, one + GET + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert recorder.requests[0].body == b"hello"
    assert recorder.requests[0].header(b"x") is None
    assert recorder.requests[0].header(b"host") == "h"


@pytest.mark.parametrize("port", [open_main, open_for_workers], ids=["main", "workers"])
@pytest.mark.parametrize("start", [b"5;x=", b"5\r\nhello\r\n0\r\nX: "], ids=["extension", "trailer"])
async def test_framing_without_end_is_refused(recorder: Recorder, port: object, start: bytes) -> None:
    opened = open_main(recorder) if port is open_main else open_for_workers(recorder)
    async with opened as address, await connect(address) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, CHUNKED + start + b"y" * 1_000_000)
        with trio.fail_after(PATIENCE):
            answer = await stream.receive_some()
        nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 400")
    assert recorder.requests == []
