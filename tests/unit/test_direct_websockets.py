"""Messages that take the direct way are those hypercorn would have handed over, and so is all the rest."""

from __future__ import annotations

import struct
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.protocol.events import Data, Event, Request, StreamClosed
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import assert_no_checkpoints

from nodes.api.direct_websockets import STATE_KEY, DirectWebSocket

LARGEST = 300


class Line:
    """One WebSocket without a network: what it hands over, and what it sends."""

    def __init__(self, *, engaged: bool) -> None:
        config = Config()
        config.websocket_max_message_size = LARGEST
        self.messages: list[bytes] = []
        self.sent: list[bytes] = []
        self.left = False
        self.wanted = engaged
        self.stream = DirectWebSocket(None, config, None, self, False, None, None, self._send, 1)

    async def spawn_app(self, _app: Any, _config: Any, _scope: Any, _send: Any) -> Any:
        return self._put

    async def _put(self, event: Any) -> None:
        if event["type"] == "websocket.receive":
            text = event["text"]
            self.messages.append(event["bytes"] if text is None else text.encode())

    async def _send(self, event: Event) -> None:
        if isinstance(event, Data):
            self.sent.append(event.data)
        elif isinstance(event, StreamClosed):
            self.left = True
            await self.stream.handle(event)

    def take(self, message: bytes | str) -> bool:
        self.messages.append(message.encode() if isinstance(message, str) else message)
        return True

    async def open(self) -> None:
        headers = [
            (b"connection", b"upgrade"),
            (b"upgrade", b"websocket"),
            (b"sec-websocket-key", b"AAAAAAAAAAAAAAAAAAAAAA=="),
            (b"sec-websocket-version", b"13"),
        ]
        state: Any = {}
        await self.stream.handle(
            Request(
                stream_id=1, headers=headers, http_version="1.1", method="GET", raw_path=b"/", state=state
            )
        )
        assert state[STATE_KEY] is self.stream
        if self.wanted:
            self.stream.engage()
        await self.stream.app_send({"type": "websocket.accept", "subprotocol": None, "headers": []})

    async def receive(self, data: bytes) -> None:
        """As the server does with what it has read."""
        left = self.stream.feed(data) if self.wanted else data
        while left and not self.left:
            await self.stream.handle(Data(stream_id=1, data=left))
            left = self.stream.feed(b"") if self.wanted else b""


async def _talk(pieces: list[bytes], *, engaged: bool) -> tuple[Line, list[bytes]]:
    line = Line(engaged=engaged)
    await line.open()
    async with trio.open_nursery() as nursery:
        if line.wanted:
            nursery.start_soon(line.stream.deliver, line.take)
            await line.stream.attended()
        for piece in pieces:
            if not line.left:
                await line.receive(piece)
        nursery.cancel_scope.cancel()
    return line, line.messages


def frame(first: int, payload: bytes, mask: bytes | None = b"\x01\x02\x03\x04", *, wide: int = 0) -> bytes:
    size, flag = len(payload), 0 if mask is None else 0x80
    if size < 126 and not wide:
        head = bytes((first, flag | size))
    elif size < 1 << 16 and wide < 8:
        head = bytes((first, flag | 126)) + struct.pack("!H", size)
    else:
        head = bytes((first, flag | 127)) + struct.pack("!Q", size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


payloads = st.one_of(
    st.text(max_size=40).map(str.encode),
    st.binary(max_size=10),
    st.sampled_from((b"", b"x" * 125, b"x" * 126, b"y" * LARGEST, b"z" * (LARGEST + 1), "é".encode() * 200)),
)
masks = st.sampled_from((b"\x00\x00\x00\x00", b"\xa1\x02\x03\xff"))
usual = st.builds(frame, st.just(0x81), payloads, masks)
control = st.builds(frame, st.sampled_from((0x89, 0x8A)), st.binary(max_size=125), masks)
closing = st.builds(frame, st.just(0x88), st.sampled_from((b"", b"\x03\xe8", b"\x03\xe8bye", b"\x03")), masks)
odd = st.one_of(
    st.builds(
        frame, st.sampled_from((0x01, 0x02, 0x00, 0x80, 0x82, 0xC1, 0x83, 0x09, 0x8B)), payloads, masks
    ),
    st.builds(frame, st.sampled_from((0x81, 0x89)), payloads, st.none()),
    st.builds(frame, st.just(0x81), payloads, masks, wide=st.sampled_from((2, 8))),
    st.binary(min_size=1, max_size=8),
)
frames = st.lists(st.one_of(usual, usual, usual, control, closing, odd), max_size=8)


@given(sent=frames, cuts=st.lists(st.integers(1, 60), max_size=20))
def test_the_direct_way_hands_over_and_answers_what_hypercorn_does(
    sent: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(sent)
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(data[start : start + cut])
        start += cut
    pieces.append(data[start:])
    pieces = [piece for piece in pieces if piece]

    async def compare() -> None:
        direct, messages = await _talk(pieces, engaged=True)
        usual_way, expected = await _talk(pieces, engaged=False)
        assert messages == expected
        assert direct.sent == usual_way.sent
        assert direct.left == usual_way.left

    trio.run(compare)


@given(sent=st.lists(st.builds(frame, st.just(0x81), st.text().map(str.encode), masks), max_size=5))
def test_whole_text_messages_never_meet_the_library(sent: list[bytes]) -> None:
    async def check() -> None:
        line = Line(engaged=True)
        await line.open()
        for data in sent:
            assert line.stream.feed(data) == b""

    trio.run(check)


async def test_what_comes_before_anybody_listens_is_handed_over_first() -> None:
    line = Line(engaged=True)
    await line.open()
    await line.receive(frame(0x81, b"one") + frame(0x01, b"tw") + frame(0x80, b"o"))
    assert line.messages == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.stream.deliver, line.take)
        await line.stream.attended()
        await line.receive(frame(0x81, b"three"))
        nursery.cancel_scope.cancel()
    assert line.messages == [b"one", b"two", b"three"]


async def test_nothing_is_handed_over_after_it_was_refused() -> None:
    line = Line(engaged=True)
    await line.open()
    seen: list[bytes | str] = []

    def take(message: bytes | str) -> bool:
        seen.append(message)
        return len(seen) < 2

    await line.receive(frame(0x81, b"1"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.stream.deliver, take)
        await line.stream.attended()
        await line.receive(frame(0x81, b"2") + frame(0x81, b"3"))
        await line.receive(frame(0x81, b"4"))
    assert seen == [b"1", b"2"]


async def test_the_reader_does_not_give_way_once_somebody_listens() -> None:
    line = Line(engaged=True)
    await line.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.stream.deliver, line.take)
        await line.stream.attended()
        with assert_no_checkpoints():
            await line.stream.attended()
        nursery.cancel_scope.cancel()


async def test_the_reader_is_let_go_when_the_connection_ends_before_anybody_listens() -> None:
    line = Line(engaged=True)
    await line.open()
    await line.stream.handle(StreamClosed(stream_id=1))
    await line.stream.attended()
    await line.stream.deliver(line.take)
    await line.stream.send_text(b"nobody hears")
    assert line.messages == []


@given(
    text=st.one_of(st.text(max_size=200), st.sampled_from(("x" * 125, "x" * 126, "x" * 65_535, "x" * 65_536)))
)
def test_what_is_sent_is_what_hypercorn_sends(text: str) -> None:
    async def compare() -> None:
        direct, usual_way = Line(engaged=True), Line(engaged=False)
        await direct.open()
        await usual_way.open()
        await direct.stream.send_text(text.encode())
        await usual_way.stream.app_send({"type": "websocket.send", "bytes": None, "text": text})
        assert direct.sent == usual_way.sent

    trio.run(compare)
