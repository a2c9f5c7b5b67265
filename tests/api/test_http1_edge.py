"""HTTP/1.1 of the main port by raw bytes: limits, refusals, no way around a proxy."""

from __future__ import annotations

import socket
from contextlib import suppress

import orjson
import pytest
import trio

from nodes.api.limits import MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from tests.api.edge import Recorder, connect, exchange, open_main, read_all, read_until
from tests.api.smuggling import HIDDEN
from tests.waiting import PATIENCE, eventually

MALFORMED = "malformed_request"
END = b"Connection: close\r\n\r\n"


@pytest.mark.parametrize("settings", [b"AAMAAABkAAQCAAAAAAIAAAAA", b"!"])
async def test_nobody_is_upgraded_to_http2(recorder: Recorder, settings: bytes) -> None:
    """Through a proxy that passes Upgrade on this would be a tunnel past all that the proxy decides."""
    upgrade = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
    async with open_main(recorder) as address:
        answer = await exchange(address, upgrade + b"HTTP2-Settings: " + settings + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert recorder.paths == ["/x"]


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET /x\r\n\r\n", 505, "http_version_not_supported"),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nX\x00Y: a\r\n\r\n", 400, MALFORMED),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", 400, MALFORMED),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, MALFORMED),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n", 400, MALFORMED),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: cow\r\n\r\n", 501, MALFORMED),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400, MALFORMED),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 200_000, 431, "header_too_large"),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n", 400, MALFORMED),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused_with_a_reason(
    recorder: Recorder, request_: bytes, status: int, reason: str
) -> None:
    async with open_main(recorder) as address, await connect(address) as stream:
        answer = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, request_)
            with trio.fail_after(PATIENCE):
                while not answer.endswith(reason.encode()):
                    answer += await stream.receive_some()
            nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer
    assert recorder.requests == []


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /" + b"x" * (MAX_TARGET_BYTES - 1), 200),
        (b"GET /" + b"x" * MAX_TARGET_BYTES, 414),
        (b"GET /x?" + b"y" * (MAX_TARGET_BYTES - 3), 200),
        (b"GET /x?" + b"y" * (MAX_TARGET_BYTES - 2), 414),
        (b"GET http://other/x", 400),
        (b"GET x", 400),
        (b"GET /x#y", 400),
        (b"GET /x?a#y", 400),
        (b"OPTIONS *", 400),
        (b"CONNECT h:80", 400),
    ],
)
async def test_targets(recorder: Recorder, line: bytes, status: int) -> None:
    """Also when another request is right behind: its being there takes no answer away."""
    async with open_main(recorder) as address:
        for behind in (b"", HIDDEN):
            answer = await exchange(address, line + b" HTTP/1.1\r\nHost: h\r\n" + END + behind)
            assert answer.startswith(b"HTTP/1.1 %d" % status), (behind, answer)
            assert answer.count(b"HTTP/1.1 ") == 1


async def test_headers_at_their_limit_and_above(recorder: Recorder) -> None:
    fixed = 2  # Host and Connection
    start = b"GET /x HTTP/1.1\r\nHost: h\r\n"
    size = len("host") + 1 + 4 + len("connection") + len("close") + 4 + len("x") + 4
    async with open_main(recorder) as address:
        for more, status in ((0, 200), (1, 431)):
            lines = b"X: y\r\n" * (MAX_HEADERS - fixed + more)
            assert (await exchange(address, start + lines + END)).startswith(b"HTTP/1.1 %d" % status)
            line = b"X: " + b"y" * (MAX_HEADER_BYTES - size + more) + b"\r\n"
            assert (await exchange(address, start + line + END)).startswith(b"HTTP/1.1 %d" % status)


async def test_a_client_that_leaves_makes_room_at_once(recorder: Recorder) -> None:
    """Its connection is not kept for as long as one may be idle."""
    async with open_main(recorder, connections=1) as address:

        def get() -> bool:
            # In a thread: the end of the connection comes in any moment of its answer.
            where = address.host, address.port
            with socket.create_connection(where, timeout=10) as client, suppress(OSError):
                client.sendall(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
                return client.recv(4096).startswith(b"HTTP/1.1 200")
            return False  # it was turned away before it had asked

        async def served() -> bool:
            return await trio.to_thread.run_sync(get)

        for _ in range(100):
            await eventually(served, 20)


async def test_more_connections_than_allowed_are_turned_away(recorder: Recorder) -> None:
    async with open_main(recorder, connections=2) as address:
        request = b"GET /x HTTP/1.1\r\nHost: h\r\n"
        async with await connect(address) as one, await connect(address) as two:
            for stream in (one, two):
                await stream.send_all(request + b"\r\n")
                await read_until(stream, b"empty")
            async with await connect(address) as three:
                refused = await read_all(three)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in refused
            assert orjson.loads(refused.partition(b"\r\n\r\n")[2])["reason"] == "too_many_connections"
            await one.send_all(request + b"\r\n")
            await read_until(one, b"empty")

        async def there_is_room_again() -> bool:
            return (await exchange(address, request + END)).endswith(b"empty")

        await eventually(there_is_room_again)
