"""WebSockets by raw bytes: what RFC 6455 forbids, and what would cost more than it should."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from nodes.api import websockets
from nodes.api.limits import ListenerLimits
from nodes.api.serving import Address, open_listener, serve
from tests.api.edge import Recorder, connect, open_main, read_all, read_until

LIMIT = 1000
"""Bytes of a message that are collected."""

KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\n" + KEY
)
TEXT, BINARY, CLOSE, PING, CONTINUATION = 1, 2, 8, 9, 0


class Sockets:
    """An application that accepts, keeps what it gets, and ends a connection that sent too much."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.ended: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
        while True:
            event = await receive()
            if event["type"] == "websocket.disconnect":
                self.ended.append(event["code"])
                return
            self.messages.append(event["text"])
            if len(self.messages[-1]) > LIMIT:
                await send({"type": "websocket.close", "code": 1009, "reason": ""})
                return


@pytest.fixture
def sockets() -> Sockets:
    return Sockets()


@asynccontextmanager
async def served(app: Sockets, front: Recorder | None = None) -> AsyncIterator[Address]:
    """A port whose WebSockets are ``app``'s, and whose requests ``front``'s."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address: Address = await nursery.start(
            partial(
                serve,
                front or Recorder(),
                app,
                open_listener("127.0.0.1", 0),
                ListenerLimits(LIMIT),
                shutdown=stop.wait,
                max_message_bytes=LIMIT,
            )
        )
        try:
            yield address
        finally:
            stop.set()


@asynccontextmanager
async def open_socket(address: Address, *lines: bytes) -> AsyncIterator[trio.SocketStream]:
    async with await connect(address) as stream:
        await stream.send_all(HANDSHAKE + b"".join(line + b"\r\n" for line in lines) + b"\r\n")
        head = await read_until(stream, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        assert b"sec-websocket-extensions" not in head
        yield stream


def frame(
    opcode: int,
    data: bytes = b"",
    *,
    end: bool = True,
    bits: int = 0,
    masked: bool = True,
    size: int | None = None,
) -> bytes:
    """A frame of a client; ``size`` is the length that it claims, in eight bytes."""
    mask = 0x80 if masked else 0
    head = bytes([opcode | bits | (0x80 if end else 0)])
    if size is not None or len(data) > 0xFFFF:
        head += bytes([mask | 127]) + (len(data) if size is None else size).to_bytes(8, "big")
    elif len(data) > 125:
        head += bytes([mask | 126]) + len(data).to_bytes(2, "big")
    else:
        head += bytes([mask | len(data)])
    return head + (b"\0\0\0\0" if masked else b"") + data


def inflating() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(b" " * 50_000_000) + packer.flush(zlib.Z_SYNC_FLUSH)


BROKEN = {
    "unmasked": (frame(TEXT, b"[]", masked=False), 1002),
    "reserved-bit": (frame(TEXT, b"[]", bits=0x40), 1002),
    "deflate-bomb": (frame(TEXT, inflating(), bits=0x40), 1002),
    "reserved-opcode": (frame(3), 1002),
    "long-ping": (frame(PING, b"x" * 126), 1002),
    "ping-in-parts": (frame(PING, b"x", end=False), 1002),
    "continuation-of-nothing": (frame(CONTINUATION, b"x"), 1002),
    "text-within-a-text": (frame(TEXT, b"a", end=False) + frame(TEXT, b"b"), 1002),
    "length-with-a-sign": (frame(TEXT, b"x", size=1 << 63), 1002),
    "close-with-half-a-code": (frame(CLOSE, b"\x03"), 1002),
    "close-with-a-reserved-code": (frame(CLOSE, (1006).to_bytes(2, "big")), 1002),
    "close-with-a-bad-reason": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    "not-utf-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "lone-surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_what_the_rfc_forbids_ends_with_its_code(sockets: Sockets, name: str) -> None:
    data, code = BROKEN[name]
    offer = b"Sec-WebSocket-Extensions: permessage-deflate"
    async with served(sockets) as address, open_socket(address, offer) as stream:
        await stream.send_all(data)
        answer = await read_all(stream)
    assert (answer[0], int.from_bytes(answer[2:4], "big")) == (0x88, code), answer
    assert sockets.messages == []


@pytest.mark.parametrize("announced", [None, (1 << 63) - 1], ids=["many-parts", "one-endless-part"])
async def test_a_message_without_end_is_not_kept(sockets: Sockets, announced: int | None) -> None:
    """The application gets the beginning, once; the rest is thrown away as it comes."""
    part = b"x" * 60_000
    async with served(sockets) as address, open_socket(address) as stream, trio.open_nursery() as nursery:

        async def push() -> None:
            with_head = frame(TEXT, part, end=announced is not None, size=announced)
            more = part if announced is not None else frame(CONTINUATION, part, end=False)
            try:
                await stream.send_all(with_head)
                while True:
                    await stream.send_all(more)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        nursery.start_soon(push)
        answer = b""
        with trio.fail_after(20):
            try:
                while chunk := await stream.receive_some():
                    answer += chunk
            except trio.BrokenResourceError:
                pass
        nursery.cancel_scope.cancel()
    assert len(sockets.messages) == 1
    assert LIMIT < len(sockets.messages[0]) <= 2 * 65_536
    assert answer[:4] == b"\x88\x02" + (1009).to_bytes(2, "big")


@pytest.mark.parametrize(
    "data", [frame(PING, b"x"), frame(CONTINUATION, end=False)], ids=["pings", "empty-parts"]
)
async def test_what_only_costs_is_counted(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(websockets, "SIGNALS", 50)
    monkeypatch.setattr(websockets, "SIGNALS_PER_SECOND", 0.0)
    async with served(sockets) as address, open_socket(address) as stream:
        await stream.send_all(frame(TEXT, b"a", end=False) + data * 60)
        answer = await read_all(stream)
    assert answer.endswith(b"\x88\x02" + (1008).to_bytes(2, "big"))
    assert answer.count(b"\x8a\x01x") == (50 if data[0] == 0x89 else 0)


@pytest.mark.parametrize(
    "handshake",
    [HANDSHAKE.replace(b"13", b"12"), HANDSHAKE.replace(KEY, b"")],
    ids=["version", "no-key"],
)  # fmt: skip
async def test_a_bad_handshake_ends_the_connection(sockets: Sockets, handshake: bytes) -> None:
    async with served(sockets) as address, await connect(address) as stream:
        await stream.send_all(handshake + b"\r\n")
        answer = await read_all(stream)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"reason":"malformed_request"' in answer


async def test_frames_before_the_handshake_is_over_end_the_connection(
    sockets: Sockets, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(sockets) as address, await connect(address) as stream:
        await stream.send_all(HANDSHAKE + b"\r\n" + frame(TEXT, b"[]"))
        await read_all(stream)
    assert sockets.messages == []
    assert "connection_broke" not in capsys.readouterr().out


async def test_where_no_socket_is_an_answer_says_so() -> None:
    async with open_main(Recorder()) as address, await connect(address) as stream:
        await stream.send_all(HANDSHAKE + b"\r\n")
        answer = await read_all(stream)
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.endswith(b"not_found")
