"""Messages that go past the library are those it would have handed over, and so is all the rest."""

from __future__ import annotations

import pytest
import trio
import trio_websocket
from trio.testing import memory_stream_pair
from wsproto.frame_protocol import XorMaskerSimple

from nodes.streams.whole_frames import text_frame
from nodes.worker.direct_stream import DirectStream

LARGEST = 70_000
HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


class Wire:
    """A DirectStream, and the other end of it."""

    def __init__(self) -> None:
        self.node, near = memory_stream_pair()
        self.stream = DirectStream(near, LARGEST)
        self.messages: list[bytes] = []

    async def say(self, data: bytes, pieces: int) -> bytes:
        """Send ``data`` in pieces of this size and end the connection; what the library gets of it."""
        seen = b""

        async def send() -> None:
            for start in range(0, len(data), pieces):
                await self.node.send_all(data[start : start + pieces])
            await self.node.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while some := await self.stream.receive_some(pieces):
                seen += some
        return seen


@pytest.mark.parametrize("pieces", [1, 7, 100_000])
async def test_only_what_is_no_whole_message_reaches_the_library(pieces: int) -> None:
    wire = Wire()
    wire.stream.attend(wire.messages.append)
    head, ping = HEAD + b"\r\n", b"\x89\x02hi"
    broken = b"\x01\x02on\x80\x01e" + text_frame(b"late") + b"\x88\x00"
    texts = [b"", b"[1]", b"x" * 125, b"y" * 126, b"z" * 65_536]
    whole = b"".join(map(text_frame, texts))
    assert await wire.say(head + whole + ping + text_frame(b"two") + broken, pieces) == head + ping + broken
    assert wire.messages == [*texts, b"two"]


@pytest.mark.parametrize(
    "odd",
    [
        b"\x82\x01b",
        b"\xc1\x01r",
        b"\x81\x81\x00\x00\x00\x00m",
        b"\x81\x7e\x00\x01w",
        b"\x81\x02\xff\xfe",
        b"\x81\x7f" + (LARGEST + 1).to_bytes(8, "big"),
    ],
)
async def test_what_is_odd_is_for_the_library_with_all_that_follows(odd: bytes) -> None:
    wire = Wire()
    wire.stream.attend(wire.messages.append)
    head, after = HEAD + b"\r\n", odd + text_frame(b"after")
    assert await wire.say(head + text_frame(b"before") + after, 5) == head + after
    assert wire.messages == [b"before"]


async def test_messages_that_come_before_anybody_takes_them_wait() -> None:
    wire = Wire()
    await wire.say(HEAD + b"\r\n" + text_frame(b"1") + text_frame(b"2"), 100_000)
    wire.stream.attend(wire.messages.append)
    assert wire.messages == [b"1", b"2"]


@pytest.mark.parametrize("pieces", [1, 100_000])
async def test_a_refusal_is_for_the_library(pieces: int) -> None:
    refusal = b"HTTP/1.1 401 No\r\nContent-Length: 4\r\n\r\n\x81\x02no"
    wire = Wire()
    wire.stream.attend(wire.messages.append)
    assert await wire.say(refusal, pieces) == refusal
    assert wire.messages == []


async def test_a_head_without_end_is_for_the_library() -> None:
    endless = HEAD + b"X: " + b"x" * 70_000
    assert await Wire().say(endless, 1_000) == endless


@pytest.mark.parametrize("size", [0, 3, 125, 126, 65_535, 65_536])
async def test_what_is_sent_is_masked_text(size: int) -> None:
    wire = Wire()
    text = b"t" * size
    await wire.stream.send_text(text)
    sent = bytes(await wire.node.receive_some(100_000))
    body = len(sent) - size
    mask, plain = sent[body - 4 : body], text_frame(text)
    assert sent[:1] == plain[:1]
    assert sent[1] == plain[1] | 0x80
    assert bytes(XorMaskerSimple(mask).process(bytearray(sent[body:]))) == text


async def test_the_library_and_the_worker_send_one_after_the_other() -> None:
    wire = Wire()
    async with trio.open_nursery() as nursery:
        for text in (b"a", b"b", b"c"):
            nursery.start_soon(wire.stream.send_all, text * 1_000)
    await wire.stream.aclose()
    sent = b""
    while some := await wire.node.receive_some(10_000):
        sent += some
    assert sorted(sent[start : start + 1_000] for start in (0, 1_000, 2_000)) == [
        text * 1_000 for text in (b"a", b"b", b"c")
    ]


async def test_a_ping_is_answered_beside_messages() -> None:
    async def serve(request: trio_websocket.WebSocketRequest) -> None:
        async with await request.accept() as socket:
            await socket.send_message("one")
            with trio.fail_after(10):
                await socket.ping(b"p")
            await socket.send_message("two")
            await socket.aclose(1000)

    messages: list[bytes] = []
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_websocket.serve_websocket, serve, "127.0.0.1", 0, None)
        stream = DirectStream(await trio.open_tcp_stream("127.0.0.1", server.port), LARGEST)
        stream.attend(messages.append)
        async with trio.open_nursery() as reading:
            socket = await trio_websocket.wrap_client_stream(reading, stream, "node", "/")  # type: ignore[arg-type]
            with pytest.raises(trio_websocket.ConnectionClosed), trio.fail_after(10):
                await socket.get_message()
        nursery.cancel_scope.cancel()
    assert messages == [b"one", b"two"]
