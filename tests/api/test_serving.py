"""The HTTP edge over real sockets: limits, slow and vanishing clients (field cases of HTTP servers)."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import h2.config
import h2.connection
import h2.events
import pytest
import trio
from hypercorn.trio.tcp_server import TCPServer

from cluster.errors import StartupError
from nodes.api.limits import BodyLimits
from nodes.api.messages import Request, Response
from nodes.api.serving import MAX_CONCURRENT_STREAMS, open_listener
from tests.api.edge import (
    LIMIT,
    Recorder,
    Serving,
    connect,
    exchange,
    read_all,
)
from tests.waiting import PATIENCE, eventually


async def test_a_request_arrives_as_it_was_sent(serving: Serving, recorder: Recorder) -> None:
    async with serving() as address:
        answer = await exchange(
            address,
            b"PUT //api/a%2Fb/../c?x=%20 HTTP/1.1\r\nHost: h\r\nX-Twice: 1\r\nX-Twice: 2\r\n"
            b"Connection: close\r\nContent-Length: 4\r\n\r\nbody",
        )

    request = recorder.requests[0]
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"body")
    assert b"server:" not in answer.lower()
    assert (request.method, request.raw_path, request.query_string) == ("PUT", b"//api/a%2Fb/../c", b"x=%20")
    assert request.body == b"body"
    assert request.client == "127.0.0.1"
    assert [value for name, value in request.headers if name == b"x-twice"] == [b"1", b"2"]


@pytest.mark.parametrize("method", [b"TRACE", b"OPTIONS", b"PURGE"])
async def test_the_pipeline_answers_every_method(serving: Serving, method: bytes) -> None:
    async with serving() as address:
        answer = await exchange(address, method + b" /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200")


async def test_lengths_of_answers_without_a_body(recorder: Recorder, serving: Serving) -> None:
    answers = {
        b"HEAD": Response(200, [(b"content-type", b"text/plain"), (b"content-length", b"7")]),
        b"OPTIONS": Response(204, [(b"allow", b"GET"), (b"content-length", b"0")]),
        b"TRACE": Response(304, [(b"etag", b'"x"')]),
    }

    async def handle(request: Request) -> Response:
        return answers[request.method.encode()]

    recorder.handle = handle  # type: ignore[method-assign]
    async with serving() as address:
        seen = {
            method: await exchange(address, method + b" / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            for method in answers
        }

    assert b"content-length: 7\r\n" in seen[b"HEAD"]
    assert b"content-length" not in seen[b"OPTIONS"] + seen[b"TRACE"]
    assert all(answer.endswith(b"\r\n\r\n") for answer in seen.values())


async def test_a_head_is_answered_without_a_body(serving: Serving, recorder: Recorder) -> None:
    """Whatever the answer would be: its client reads the next answer where the body would begin."""
    head = b"HEAD /x HTTP/1.1\r\nHost: h\r\n"
    async with serving() as address:
        answer = await exchange(address, head + b"\r\n" + head + b"Expect: the-moon\r\n\r\n")
    answers = answer.split(b"\r\n\r\n")
    assert answers[2:] == [b""]
    assert b"content-length: 5\r\n" in answers[0] + b"\r\n"
    assert answers[1].startswith(b"HTTP/1.1 417")


async def test_idle_connections_outlive_the_deadline_of_headers(serving: Serving) -> None:
    """A client's own idle limit has to be the shorter one, or it sends into a closing connection."""
    request = b"POST /idle HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    async with serving(header_seconds=0.3) as address, await connect(address) as used:
        await used.send_all(request)
        answer = b""
        while not answer.endswith(b"hi"):
            answer += await used.receive_some()
        assert await exchange(address, b"") == b""
        assert (await exchange(address, b"POST /idle HT")).startswith(b"HTTP/1.1 408")
        await used.send_all(request.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        assert (await read_all(used)).endswith(b"hi")


async def test_a_client_that_leaves_cancels_its_poll(serving: Serving, recorder: Recorder) -> None:
    async with serving() as address:
        async with await connect(address) as stream:
            await stream.send_all(b"GET /park HTTP/1.1\r\nHost: h\r\n\r\n")
            with trio.fail_after(PATIENCE):
                await recorder.parked.wait()
            assert not recorder.cancelled.is_set()
        with trio.fail_after(PATIENCE):
            await recorder.cancelled.wait()


async def test_a_leaving_node_ends_connections_with_their_answer(
    serving: Serving, recorder: Recorder
) -> None:
    recorder.leaving = True
    async with serving() as address:
        answer = await exchange(address, b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"connection: close" in answer.lower()
    assert answer.endswith(b"empty")


async def test_who_leaves_while_an_answer_is_made_did_not_get_it(
    serving: Serving, recorder: Recorder
) -> None:
    async with serving() as address:
        stream = await connect(address)
        await stream.send_all(b"GET /taken HTTP/1.1\r\nHost: x\r\n\r\n")
        with trio.fail_after(PATIENCE):
            await recorder.parked.wait()
        await stream.aclose()
        recorder.left.set()
        await eventually(lambda: bool(recorder.undelivered))
        got = await exchange(address, b"GET /got HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert got.endswith(b"empty")
    assert recorder.undelivered == ["/taken"]


async def test_a_declared_large_body_is_not_read(serving: Serving, recorder: Recorder) -> None:
    async with serving() as address:
        answer = await exchange(address, b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.endswith(b"payload_too_large")
    assert recorder.requests == []


async def test_a_chunked_large_body_is_cut_off(serving: Serving, recorder: Recorder) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as address:
        answer = await exchange(address, head + b"3e9\r\n" + b"x" * 1001 + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 413")
    assert recorder.requests == []


async def test_a_body_at_the_limit_passes(serving: Serving) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
    async with serving() as address:
        answer = await exchange(address, head + b"x" * 1000)

    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"x" * 1000)


@pytest.mark.parametrize(
    "limits",
    [BodyLimits(seconds=60, grace_seconds=0.2, bytes_per_second=1000), BodyLimits(seconds=0.2)],
    ids=["rate", "total"],
)
async def test_a_dribbled_body_is_cut_off(serving: Serving, recorder: Recorder, limits: BodyLimits) -> None:
    async with serving(limits) as address:
        answer = await exchange(address, b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\nx")

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer.lower()
    assert recorder.requests == []


def test_how_long_a_body_may_take() -> None:
    limits = BodyLimits()

    assert limits.allowed(0) == 5
    assert limits.allowed(1024) == 6
    assert limits.allowed(10**9) == 10


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 20_000,
        b"GET /\xff\xc3 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
    ids=["long-header", "non-ascii-path", "two-lengths", "strange-encoding", "no-http"],
)
async def test_strange_requests_harm_nobody_else(serving: Serving, data: bytes) -> None:
    async with serving() as address:
        async with await connect(address) as stream:
            await stream.send_all(data)
            await read_all(stream)
        good = await exchange(address, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

    assert good.startswith(b"HTTP/1.1 200")


async def test_many_streams_on_one_connection_harm_nobody_else(main: Serving) -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    headers = [(":method", "GET"), (":path", "/park"), (":scheme", "http"), (":authority", "h")]
    for _ in range(1100):
        client.send_headers(client.get_next_available_stream_id(), headers, end_stream=True)
    async with main() as address:
        async with await connect(address) as stream:
            await stream.send_all(client.data_to_send())
            await read_all(stream)
        good = await exchange(address, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

    assert MAX_CONCURRENT_STREAMS <= 100
    assert good.startswith(b"HTTP/1.1 200")


async def test_a_stream_that_is_reset_cancels_its_poll(main: Serving, recorder: Recorder) -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "GET"), (":path", "/park"), (":scheme", "http"), (":authority", "h")]
    client.send_headers(1, headers, end_stream=True)
    async with main() as address, await connect(address) as stream:
        await stream.send_all(client.data_to_send())
        with trio.fail_after(PATIENCE):
            await recorder.parked.wait()
            client.reset_stream(1)
            await stream.send_all(client.data_to_send())
            await recorder.cancelled.wait()


async def test_an_answer_of_unknown_length_over_http2(main: Serving, recorder: Recorder) -> None:
    """Its pieces come when they are made; a client that resets its stream ends their making."""
    made = trio.Event()

    async def pieces(send: Callable[[bytes], Awaitable[None]]) -> None:
        await send(b"one")
        await made.wait()
        await send(b"two")

    async def endless(_send: object) -> None:
        recorder.parked.set()
        try:
            await trio.sleep_forever()
        finally:
            recorder.cancelled.set()

    async def handle(request: Request) -> Response:
        stream = pieces if request.raw_path == b"/pieces" else endless
        return Response(200, [(b"content-type", b"text/plain")], stream=stream)

    recorder.handle = handle  # type: ignore[method-assign]
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "GET"), (":scheme", "http"), (":authority", "h")]
    client.send_headers(1, [*headers, (":path", "/pieces")], end_stream=True)
    client.send_headers(3, [*headers, (":path", "/park")], end_stream=True)
    body, is_over = b"", False
    async with main() as address, await connect(address) as stream:
        await stream.send_all(client.data_to_send())
        with trio.fail_after(PATIENCE):
            while not is_over:
                for event in client.receive_data(await stream.receive_some()):
                    if isinstance(event, h2.events.DataReceived):
                        body += event.data
                    is_over = is_over or isinstance(event, h2.events.StreamEnded)
                if body == b"one":
                    made.set()
            await recorder.parked.wait()
            client.reset_stream(3)
            await stream.send_all(client.data_to_send())
            await recorder.cancelled.wait()
    assert body == b"onetwo"


async def test_a_large_body_ends_only_its_own_stream(main: Serving) -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "POST"), (":path", "/x"), (":scheme", "http"), (":authority", "h")]
    client.send_headers(1, [*headers, ("content-length", "1001")])
    client.send_headers(3, headers, end_stream=True)
    statuses: dict[int, bytes] = {}
    async with main() as address, await connect(address) as stream:
        await stream.send_all(client.data_to_send())
        with trio.fail_after(PATIENCE):
            while len(statuses) < 2:
                for event in client.receive_data(await stream.receive_some()):
                    if isinstance(event, h2.events.ResponseReceived):
                        statuses[event.stream_id] = dict(event.headers)[b":status"]
                await stream.send_all(client.data_to_send())

    assert statuses == {1: b"413", 3: b"200"}


async def test_data_after_the_answer_harms_nobody(main: Serving) -> None:
    """Nor does it use up the window of the connection's other streams."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "POST"), (":path", "/x"), (":scheme", "http"), (":authority", "h")]
    client.send_headers(1, headers)
    client.send_data(1, b"x" * (LIMIT + 1))
    answered: set[int] = set()
    ended: set[int] = set()
    async with main() as address, await connect(address) as stream:

        async def until(found: set[int], stream_id: int) -> None:
            with trio.fail_after(PATIENCE):
                await stream.send_all(client.data_to_send())
                while stream_id not in found:
                    for event in client.receive_data(await stream.receive_some()):
                        if isinstance(event, h2.events.ResponseReceived):
                            answered.add(event.stream_id)
                        elif isinstance(event, h2.events.StreamEnded):
                            ended.add(event.stream_id)
                    await stream.send_all(client.data_to_send())

        await until(ended, 1)
        left = 4 * client.outbound_flow_control_window
        while left > 0:
            size = min(left, client.local_flow_control_window(1), client.max_outbound_frame_size)
            if not size:
                break
            client.send_data(1, b"x" * size)
            left -= size
        client.send_headers(3, headers, end_stream=True)
        await until(answered, 3)
        client.send_headers(5, headers)
        client.send_data(5, b"x" * LIMIT, end_stream=True)
        await until(answered, 5)


async def test_what_goes_wrong_on_a_connection_ends_only_that_one(
    main: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: TCPServer) -> None:
        raise KeyError(1)

    async with main() as address:
        with monkeypatch.context() as patch:
            patch.setattr(TCPServer, "_read_data", fail)
            async with await connect(address) as stream:
                assert await read_all(stream) == b""
        good = await exchange(address, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

    assert good.startswith(b"HTTP/1.1 200")


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use") as caught:
            open_listener("127.0.0.1", port)
    assert "\n" not in str(caught.value)


def test_an_unknown_host_is_one_clear_line() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on 256\.0\.0\.1:1"):
        open_listener("256.0.0.1", 1)
