"""What an HTTP/2 client may not do for ever, or at all: it ends its own connection and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import h2.connection
import h2.errors
import h2.settings
import hpack
import hyperframe.frame as frames
import pytest
import trio

from nodes.api import allowance, http2
from nodes.api.allowance import Allowance
from nodes.api.serving import MAX_CONCURRENT_STREAMS
from tests.api.edge import Recorder, Serving, connect, exchange, read_all

Head = Sequence[tuple[bytes, bytes]]
BASE = [(b":method", b"GET"), (b":path", b"/park"), (b":scheme", b"http"), (b":authority", b"h")]
END = ("END_STREAM", "END_HEADERS")


def preface() -> bytes:
    client = h2.connection.H2Connection()
    client.initiate_connection()
    return client.data_to_send()


def headers(stream_id: int, head: Head = BASE, flags: Sequence[str] = END) -> bytes:
    """A request of its own; the encoder keeps no table, so heads can be put together in any order."""
    encoder = hpack.Encoder()
    frame = frames.HeadersFrame(stream_id, encoder.encode(list(head), huffman=False), flags=list(flags))
    return frame.serialize()


def plain(stream_id: int, head: Head = BASE) -> bytes:
    """The same without a dynamic table: every field is a literal that is never indexed."""
    block = b"".join(
        b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in head
    )
    return frames.HeadersFrame(stream_id, block, flags=list(END)).serialize()


def reset(stream_id: int) -> bytes:
    return frames.RstStreamFrame(stream_id, 8).serialize()


def overflow(stream_id: int) -> bytes:
    """Makes the server reset the stream."""
    return frames.WindowUpdateFrame(stream_id, 2**31 - 1).serialize()


def told(answer: bytes) -> int | None:
    """The code of the GOAWAY in what a server sent."""
    while len(answer) >= 9:
        frame, length = frames.Frame.parse_frame_header(memoryview(answer[:9]))
        if isinstance(frame, frames.GoAwayFrame):
            frame.parse_body(memoryview(answer[9 : 9 + length]))
            return frame.error_code
        answer = answer[9 + length :]
    return None


async def send(main: Serving, *parts: bytes) -> bytes:
    """All that the server sends until it closes the connection; others are served after that."""
    async with main() as address:
        async with await connect(address) as stream, trio.open_nursery() as nursery:

            async def push() -> None:
                try:
                    for part in parts:
                        await stream.send_all(part)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass

            nursery.start_soon(push)
            answer = await read_all(stream)
            nursery.cancel_scope.cancel()
        good = await exchange(address, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert good.startswith(b"HTTP/1.1 200")
    return answer


@pytest.mark.parametrize("ending", [reset, overflow], ids=["CVE-2023-44487", "CVE-2025-8671"])
async def test_streams_that_are_opened_and_reset_are_counted(
    main: Serving, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, ending: Callable[[int], bytes]
) -> None:
    monkeypatch.setattr(http2, "RESETS", 50)
    monkeypatch.setattr(http2, "RESETS_PER_SECOND", 0.0)
    flood = b"".join(plain(number) + ending(number) for number in range(1, 401, 2))

    answer = await send(main, preface() + flood)

    assert told(answer) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert recorder.paths.count("/park") <= 51


@pytest.mark.parametrize(
    "frame",
    [
        frames.PingFrame(0, b"12345678"),
        frames.SettingsFrame(0, {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65535}),
        frames.DataFrame(1, b""),
    ],
    ids=["ping", "settings", "empty-data"],
)
async def test_frames_that_only_cost_are_counted(
    main: Serving, monkeypatch: pytest.MonkeyPatch, frame: frames.Frame
) -> None:
    monkeypatch.setattr(http2, "SIGNALS", 50)
    monkeypatch.setattr(http2, "SIGNALS_PER_SECOND", 0.0)

    answer = await send(main, preface() + headers(1, flags=["END_HEADERS"]) + frame.serialize() * 200)

    assert told(answer) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


def test_an_allowance_comes_back() -> None:
    some = Allowance(3, 2.0, now=0.0)

    assert [some.spend(0.0) for _ in range(4)] == [True, True, True, False]
    assert [some.spend(0.5), some.spend(0.5)] == [True, False]
    assert [some.spend(1e9) for _ in range(4)] == [True, True, True, False]
    assert Allowance(1, inf, now=0.0).spend(0.0)
    assert allowance.SIGNALS > 0


async def test_priorities_are_not_heard(main: Serving) -> None:
    """Neither a thousand of them, nor a circle, harms the connection."""
    tree = b"".join(frames.PriorityFrame(number).serialize() for number in range(1, 2400, 2))
    tree += (
        frames.PriorityFrame(5, depends_on=7).serialize() + frames.PriorityFrame(7, depends_on=5).serialize()
    )
    last = [(b":path", b"/x") if name == b":path" else (name, value) for name, value in BASE]
    async with main() as address, await connect(address) as stream:
        await stream.send_all(preface() + tree + headers(2401, last))
        answer = b""
        with trio.fail_after(10):
            while not answer.endswith(b"empty" + frames.DataFrame(2401, flags=["END_STREAM"]).serialize()):
                answer += await stream.receive_some()
                assert told(answer) is None


def _block(block: bytes) -> bytes:
    return frames.HeadersFrame(1, block, flags=list(END)).serialize()


def _bomb() -> list[bytes]:
    large = (b"x-bomb", b"x" * 4000)
    encoder = hpack.Encoder()
    first = frames.HeadersFrame(1, encoder.encode([*BASE, large]), flags=list(END)).serialize()
    second = frames.HeadersFrame(3, encoder.encode([*BASE, *[large] * 3000]), flags=list(END)).serialize()
    return [preface() + first + second]


def _continued(frame: bytes) -> list[bytes]:
    return [preface() + headers(1, flags=()) + frame * 100]


BROKEN = {
    "1100-streams": ([preface(), *(headers(number) for number in range(1, 2201, 2))], 1),
    "header-table-bomb": (_bomb(), 11),
    "header-table-size": ([preface() + _block(b"\x3f\xe1\xff\xff\xff\x07")], 1),
    "header-integer": ([preface() + _block(b"\xff" * 2000)], 1),
    "continuation-flood": (_continued(frames.ContinuationFrame(1, b"\x00\x01a\x01b" * 2000).serialize()), 1),
    "empty-continuations": (_continued(frames.ContinuationFrame(1, b"").serialize()), 1),
    "frame-of-16-MiB": ([preface() + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"], 6),
    "push-promise": ([preface() + b"\x00\x00\x04\x05\x04\x00\x00\x00\x01\x00\x00\x00\x02"], 1),
    "no-path": ([preface() + headers(1, [BASE[0], *BASE[2:]])], 1),
    "line-break-in-a-path": ([preface() + headers(1, [*BASE[:1], (b":path", b"/x\r\ny: z"), *BASE[2:]])], 1),
    "line-break-in-a-value": ([preface() + headers(1, [*BASE, (b"x", b"a\r\nb: c")])], 1),
    "transfer-encoding": ([preface() + headers(1, [*BASE, (b"transfer-encoding", b"chunked")])], 1),
    "upper-case-name": ([preface() + headers(1, [*BASE, (b"X-Upper", b"1")])], 1),
}  # fmt: skip
"""What ends a connection, and the code that its GOAWAY has."""


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_connection_is_told_why(main: Serving, recorder: Recorder, name: str) -> None:
    parts, code = BROKEN[name]

    assert told(await send(main, *parts)) == code
    assert len([path for path in recorder.paths if path != "/"]) <= MAX_CONCURRENT_STREAMS
    assert all("\r" not in path for path in recorder.paths)


@pytest.mark.parametrize(
    "head",
    [
        [BASE[0], (b":path", b"/\xff"), *BASE[2:]],
        [BASE[0], (b":path", b"x"), *BASE[2:]],
        [(b":method", b"G\xff"), *BASE[1:]],
        [(b":method", b"CONNECT"), (b":authority", b"h")],
    ],
    ids=["path", "relative-path", "method", "connect"],
)
async def test_a_head_that_cannot_be_read_ends_its_stream_only(
    main: Serving, recorder: Recorder, head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [(b":path", b"/x") if name == b":path" else (name, value) for name, value in BASE]
    async with main() as address, await connect(address) as stream:
        await stream.send_all(preface() + plain(1, head) + plain(3, good))
        answer = b""
        with trio.fail_after(10):
            while b"empty" not in answer:
                answer += await stream.receive_some()
    assert frames.RstStreamFrame(1, h2.errors.ErrorCodes.PROTOCOL_ERROR).serialize() in answer
    assert recorder.paths == ["/x"]
    assert "connection_broke" not in capsys.readouterr().out
