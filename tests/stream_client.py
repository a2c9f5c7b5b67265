"""A worker by hand: speaks docs/protocol.md over either carrier, one frame at a time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import trio
import wsproto
import wsproto.events as ws
import wsproto.utilities

from tests.waiting import PATIENCE

Frame = dict[str, Any]
HEADERS = {"x-headrace-stream-versions": "1-1"}


class Refused(Exception):
    """The node refused the connection."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body: dict[str, Any] = json.loads(body) if body else {}


class Carrier(Protocol):
    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> list[bytes]: ...

    async def aclose(self) -> None: ...


class WebSocket:
    """Client side of one WebSocket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._protocol = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._sending = trio.Lock()
        self._text = ""
        self.closed: int | None = None

    async def open(self, host: str, headers: dict[str, str]) -> None:
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        request = ws.Request(host=host, target="/api/streams", extra_headers=extra)
        await self._stream.send_all(self._protocol.send(request))
        status, body = 0, b""
        while True:
            self._protocol.receive_data(await self._stream.receive_some() or None)
            for event in self._protocol.events():
                match event:
                    case ws.AcceptConnection():
                        return
                    case ws.RejectConnection():
                        status = event.status_code
                        if not event.has_body:
                            raise Refused(status, b"")
                    case ws.RejectData():
                        body += event.data
                        if event.body_finished:
                            raise Refused(status, body)
                    case _:
                        pass

    async def send(self, data: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(self._protocol.send(ws.TextMessage(data=data.decode())))

    async def receive(self) -> list[bytes]:
        messages: list[bytes] = []
        while not messages:
            self._protocol.receive_data(await self._stream.receive_some() or None)
            for event in self._protocol.events():
                match event:
                    case ws.TextMessage():
                        self._text += event.data
                        if event.message_finished:
                            messages.append(self._text.encode())
                            self._text = ""
                    case ws.CloseConnection():
                        self.closed = event.code
                        return messages
                    case _:
                        pass
        return messages

    async def aclose(self) -> None:
        await self._stream.aclose()


class Http2:
    """Client side of one HTTP/2 stream, alone on its connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        config = h2.config.H2Configuration(client_side=True)
        self._protocol = h2.connection.H2Connection(config)
        self._sending = trio.Lock()
        self._id = 0
        self._buffer = b""
        self.closed: int | None = None

    async def open(self, host: str, headers: dict[str, str]) -> None:
        self._protocol.initiate_connection()
        self._id = self._protocol.get_next_available_stream_id()
        start = [(":method", "POST"), (":path", "/api/streams"), (":scheme", "http"), (":authority", host)]
        start += [("content-type", "application/x-ndjson"), *headers.items()]
        self._protocol.send_headers(self._id, start)
        await self._stream.send_all(self._protocol.data_to_send())
        status = 0
        while True:
            for event in await self._events():
                match event:
                    case h2.events.ResponseReceived():
                        status = int(dict(event.headers)[b":status"])
                        if status == 200:
                            return
                    case h2.events.DataReceived():
                        self._buffer += event.data
                    case h2.events.StreamEnded():
                        raise Refused(status, self._buffer)
                    case _:
                        pass

    async def _events(self) -> list[h2.events.Event]:
        data = await self._stream.receive_some()
        if not data:
            raise trio.BrokenResourceError
        events = self._protocol.receive_data(data)
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self._protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if self.closed is None and event.stream_id == self._id and self._opened(events):
                    self._buffer += event.data
        await self._flush()
        return events

    async def _flush(self) -> None:
        async with self._sending:
            await self._stream.send_all(self._protocol.data_to_send())

    def _opened(self, events: list[h2.events.Event]) -> bool:
        """Data that came in the same packet as the head of a good response."""
        return any(
            isinstance(e, h2.events.ResponseReceived) and dict(e.headers)[b":status"] == b"200"
            for e in events
        )

    async def send(self, data: bytes) -> None:
        left = data + b"\n"
        while left:
            room = min(self._protocol.local_flow_control_window(self._id), 16_384)
            if not room:
                await trio.sleep(0.005)  # the reader takes the window's updates
                continue
            self._protocol.send_data(self._id, left[:room])
            left = left[room:]
            await self._flush()

    async def receive(self) -> list[bytes]:
        while b"\n" not in self._buffer and self.closed is None:
            for event in await self._events():
                match event:
                    case h2.events.DataReceived():
                        self._buffer += event.data
                    case h2.events.StreamEnded() | h2.events.StreamReset():
                        self.closed = 0
                    case _:
                        pass
        *lines, self._buffer = self._buffer.split(b"\n")
        return lines

    async def aclose(self) -> None:
        await self._stream.aclose()


CARRIERS: dict[str, type[WebSocket] | type[Http2]] = {"websocket": WebSocket, "http2": Http2}


@dataclass
class StreamClient:
    """One connection. Frames that come are kept in ``frames`` until they are taken."""

    carrier: WebSocket | Http2
    frames: list[Frame] = field(default_factory=list)
    ended: bool = False
    answer_pings: bool = True
    _arrived: trio.Event = field(default_factory=trio.Event)

    async def send(self, *frames: Frame) -> None:
        """One message."""
        await self.carrier.send(json.dumps(frames).encode())

    async def hello(self, worker_id: str, *flow_types: str | Frame, **more: Any) -> Frame:
        names = [name if isinstance(name, dict) else {"name": name} for name in flow_types]
        fields = {"task_limit": 8, "reserved_rpc_slots": 0, **more}
        await self.send({"type": "hello", "worker_id": worker_id, "flow_types": names, **fields})
        return await self.next("welcome")

    async def open(self, *slots: int, kind: str = "step_and_rpc") -> None:
        """Open slots and wait until they are registered."""
        await self.send(*({"type": "open", "slot": slot, "kind": kind} for slot in slots))
        for slot in slots:
            await self.next("registered", slot=slot)

    async def complete(self, task: Frame, output: Any, within: float = PATIENCE) -> Frame:
        """Send the output of a ``task`` frame; returns its confirmation."""
        slot, attempt_id = task["slot"], task["task"]["attempt_id"]
        await self.send({"type": "output", "slot": slot, "attempt_id": attempt_id, "output": output})
        return await self.next("confirmed", within=within, slot=slot, attempt_id=attempt_id)

    async def next(self, kind: str, within: float = PATIENCE, **members: Any) -> Frame:
        """Take the oldest frame of a type with these members."""
        return await self.take(
            lambda f: f["type"] == kind and all(f.get(k) == v for k, v in members.items()), within
        )

    async def take(self, wanted: Callable[[Frame], bool], within: float = PATIENCE) -> Frame:
        with trio.move_on_after(within):
            while True:
                for frame in self.frames:
                    if wanted(frame):
                        self.frames.remove(frame)
                        return frame
                if self.ended:
                    break
                await self._arrived.wait()
        raise AssertionError(f"it did not come; there is {self.frames}, ended: {self.ended}")

    async def drop(self) -> None:
        """Break the connection."""
        await self.carrier.aclose()

    async def quiet(self, seconds: float, kind: str = "task") -> None:
        """Check that no frame of a type comes for a while."""
        with trio.move_on_after(seconds):
            frame = await self.next(kind, within=seconds + 5)
            raise AssertionError(f"this came: {frame}")

    async def wait_ended(self, within: float = PATIENCE) -> None:
        with trio.fail_after(within):
            while not self.ended:
                await self._arrived.wait()

    async def read(self) -> None:
        """Keep what comes, and answer pings."""
        try:
            while self.carrier.closed is None:
                for message in await self.carrier.receive():
                    for frame in json.loads(message):
                        if frame["type"] == "ping" and self.answer_pings:
                            await self.send({"type": "pong", "nonce": frame["nonce"]})
                        self.frames.append(frame)
                    self._ring()
        except (
            OSError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            wsproto.utilities.LocalProtocolError,
        ):
            pass  # the last one: a pong that crosses the end of the WebSocket
        finally:
            self.ended = True
            self._ring()

    def _ring(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()


@asynccontextmanager
async def connect(url: str, carrier: str = "websocket", **headers: str) -> AsyncIterator[StreamClient]:
    """A connection to a node or balancer; ``headers`` have underscores for dashes. Raises Refused."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    stream = await trio.open_tcp_stream(host, port)
    made = CARRIERS[carrier](stream)
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with trio.fail_after(PATIENCE):
            await made.open(f"{host}:{port}", {**HEADERS, **more})
        client = StreamClient(made)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.read)
            yield client
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(1):
            await made.aclose()
