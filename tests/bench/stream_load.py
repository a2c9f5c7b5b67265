"""Workers that cost little: WebSockets over plain trio streams, many slots each, one task after the other.

A flow is a chain of steps of one type; its worker counts the steps and ends it after so many. Frames go out
under the mask 0, which leaves the payload as it is.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson
import trio

STEP_TYPE = "s"
_TEXT, _CLOSE, _PING = 0x1, 0x8, 0x9
_GO_ON = {"decision": {"next": [{"step_type": STEP_TYPE}]}}
_END: dict[str, Any] = {"decision": {"complete": None}}


class SlotConnection:
    """One connection with ``slots`` slots. ``ended(flow id)`` hears of every chain that is over."""

    def __init__(self, stream: trio.SocketStream, steps: int, ended: Callable[[str], None]) -> None:
        self._stream = stream
        self._steps = steps
        self._ended = ended
        self._buffer = bytearray()
        self._sending = trio.Lock()
        self.done = 0
        """Steps that were confirmed."""
        self.sent: dict[str, float] = {}
        """When the last result of a flow was sent; taken by whoever gets its next step."""
        self.gaps: list[float] = []
        """Seconds from a result to the same flow's next step, as far as both came this way."""
        self.think: Callable[[], float] | None = None
        """How long a task takes (s); None: no time at all."""
        self.decide: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        """Gives the output for a task as it came; None: chains of ``steps`` steps."""

    async def open(
        self, host: str, worker: str, flow_types: Sequence[str], slots: int, step_types: Sequence[str] | None
    ) -> None:
        """Register the slots for these flow types; ``step_types``: for these steps of them only."""
        request = (
            f"GET /api/streams HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "X-Headrace-Stream-Versions: 1-1\r\n\r\n"
        )
        await self._stream.send_all(request.encode())
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._more()
        assert self._buffer.startswith(b"HTTP/1.1 101"), bytes(self._buffer)
        del self._buffer[: end + 4]
        steps = {} if step_types is None else {"step_types": step_types}
        hello = {"worker_id": worker, "flow_types": [{"name": name, **steps} for name in flow_types]}
        opening: list[dict[str, Any]] = [
            {"type": "hello", **hello, "task_limit": slots, "reserved_rpc_slots": 0}
        ]
        opening += [{"type": "open", "slot": n, "kind": "step_and_rpc"} for n in range(1, slots + 1)]
        await self.send(opening)

    async def send(self, frames: list[dict[str, Any]]) -> None:
        data = orjson.dumps(frames)
        size = len(data)
        if size < 126:
            head = struct.pack("!BBI", 0x80 | _TEXT, 0x80 | size, 0)
        elif size < 65536:
            head = struct.pack("!BBHI", 0x80 | _TEXT, 0x80 | 126, size, 0)
        else:
            head = struct.pack("!BBQI", 0x80 | _TEXT, 0x80 | 127, size, 0)
        async with self._sending:
            await self._stream.send_all(head + data)

    async def work(self, nursery: trio.Nursery) -> None:
        """Run what comes until cancelled."""
        while True:
            answers: list[dict[str, Any]] = []
            for frame in await self._receive():
                kind = frame["type"]
                if kind == "task":
                    self._measure(frame["task"]["flow_id"])
                    if self.think is None:
                        answers.append(self._answer(frame))
                    else:
                        nursery.start_soon(self._answer_later, frame)
                elif kind == "confirmed":
                    assert frame["accepted"], frame
                    self.done += 1
                elif kind == "ping":
                    answers.append({"type": "pong"})
            if answers:
                await self.send(answers)

    def _measure(self, flow_id: str) -> None:
        began = self.sent.pop(flow_id, None)
        if began is not None:
            self.gaps.append(trio.current_time() - began)

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        task = frame["task"]
        if self.decide is not None:
            output = self.decide(task)
            return {
                "type": "output",
                "slot": frame["slot"],
                "attempt_id": task["attempt_id"],
                "output": output,
            }
        number = int(task["step_execution_id"].rpartition("-")[2])
        last = number >= self._steps
        if last:
            self._ended(task["flow_id"])
        else:
            self.sent[task["flow_id"]] = trio.current_time()
        attempt = {"slot": frame["slot"], "attempt_id": task["attempt_id"]}
        return {"type": "output", **attempt, "output": _END if last else _GO_ON}

    async def _answer_later(self, frame: dict[str, Any]) -> None:
        assert self.think is not None
        await trio.sleep(self.think())
        await self.send([self._answer(frame)])

    async def _receive(self) -> list[dict[str, Any]]:
        """The frames of every message that is here."""
        frames: list[dict[str, Any]] = []
        while not frames:
            while (message := self._next()) is not None:
                frames += orjson.loads(message)
            if not frames:
                await self._more()
        return frames

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if len(buffer) < start + size:
            return None
        opcode, payload = buffer[0] & 0x0F, bytes(buffer[start : start + size])
        del buffer[: start + size]
        assert opcode not in (_CLOSE, _PING), (opcode, payload)
        return payload

    async def _more(self) -> None:
        data = await self._stream.receive_some(262_144)
        assert data, "the node closed the connection"
        self._buffer += data


@asynccontextmanager
async def slot_workers(
    url: str,
    flow_types: str | Sequence[str],
    connections: int,
    slots: int,
    steps: int,
    ended: Callable[[str], None],
    decide: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    step_types: Sequence[str] | None = None,
) -> AsyncIterator[list[SlotConnection]]:
    """One worker with ``connections`` connections of ``slots`` slots each; they share several types out."""
    parts = urlsplit(url)
    types = [flow_types] if isinstance(flow_types, str) else flow_types
    assert parts.hostname is not None
    assert parts.port is not None
    async with trio.open_nursery() as nursery:
        opened: list[SlotConnection] = []
        for number in range(connections):
            stream = await trio.open_tcp_stream(parts.hostname, parts.port)
            connection = SlotConnection(stream, steps, ended)
            connection.decide = decide
            share = types if len(types) == 1 else types[number::connections]
            await connection.open(parts.netloc, "w", share, slots, step_types)
            opened.append(connection)
            nursery.start_soon(connection.work, nursery)
        yield opened
        nursery.cancel_scope.cancel()
