"""A node that does what a test tells it: it welcomes, registers and confirms unless it is told not to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio_websocket

from tests.waiting import PATIENCE

Frame = dict[str, Any]


class FakeConnection:
    """One worker connection. ``messages`` are the frames of each message that came."""

    def __init__(self, node: FakeNode, socket: trio_websocket.WebSocketConnection, headers: dict[str, str]):
        self.headers = headers
        self.messages: list[list[Frame]] = []
        self.ended = False
        self._node = node
        self._socket = socket

    @property
    def frames(self) -> list[Frame]:
        return [frame for message in self.messages for frame in message]

    def count(self, kind: str, /, **members: Any) -> int:
        return sum(_fits(frame, kind, members) for frame in self.frames)

    async def send(self, *frames: Frame) -> None:
        await self._socket.send_message(json.dumps(frames))

    async def give(self, slot: int, name: str = "work", **more: Any) -> str:
        """Hand out a step; returns its attempt id."""
        self._node.tasks += 1
        attempt_id = f"attempt-{self._node.tasks}"
        task = {
            "task_id": f"task-{self._node.tasks}",
            "attempt_id": attempt_id,
            "kind": "step",
            "namespace": "default",
            "flow_type": "shop",
            "flow_id": "f1",
            "run_id": "r1",
            "step_type": name,
            "step_execution_id": f"{name}-1",
            "method": "execute",
            "attempt": 1,
            "input": None,
            "attributes": {},
            **more,
        }
        await self.send({"type": "task", "slot": slot, "task": task})
        return attempt_id

    async def next(self, kind: str, /, within: float = PATIENCE, **members: Any) -> Frame:
        """The first frame like this, as soon as it is there."""
        with trio.move_on_after(within):
            while True:
                for frame in self.frames:
                    if _fits(frame, kind, members):
                        return frame
                await self._node.anything()
        raise AssertionError(f"no {kind} {members} came, but {self.frames}")

    async def abort(self) -> None:
        """Break the connection, as a node that was killed."""
        await self._socket._stream.aclose()  # the library has no other way to be rude

    async def serve(self) -> None:
        try:
            while True:
                frames: list[Frame] = json.loads(await self._socket.get_message())
                self.messages.append(frames)
                answers = [answer for frame in frames for answer in self._node.answers(frame)]
                self._node.ring()
                if answers:
                    await self.send(*answers)
        except (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.ended = True
            self._node.ring()


@dataclass
class FakeNode:
    """``refusal`` is (status, reason) of refused connections, ``rejects`` maps slot kinds to (reason,
    permanent) of refused slots.
    """

    url: str = ""
    cap: int = 256
    ping_ms: int = 20_000
    refusal: tuple[int, str] | None = None
    rejects: dict[str, tuple[str, bool]] = field(default_factory=dict)
    registers: bool = True
    confirms: bool = True
    closes: bool = True
    max_message_bytes: int = 2 * 1024 * 1024
    refused: int = 0
    tasks: int = 0
    connections: list[FakeConnection] = field(default_factory=list)
    _anything: trio.Event = field(default_factory=trio.Event)

    def ring(self) -> None:
        self._anything.set()
        self._anything = trio.Event()

    async def anything(self) -> None:
        """Wait until something comes, or a while."""
        with trio.move_on_after(0.05):
            await self._anything.wait()

    async def connection(self, number: int = 0) -> FakeConnection:
        """The connection of that number, once it is there."""
        await self.until(lambda: len(self.connections) > number)
        return self.connections[number]

    async def until(self, holds: Callable[[], bool], within: float = PATIENCE) -> None:
        with trio.fail_after(within):
            while not holds():
                await self.anything()

    def answers(self, frame: Frame) -> list[Frame]:
        slot = frame.get("slot")
        match frame["type"]:
            case "hello":
                return [self.welcome()]
            case "open" if frame["kind"] in self.rejects:
                reason, permanent = self.rejects[frame["kind"]]
                more = {"reason": reason, "message": "No.", "permanent": permanent}
                return [{"type": "rejected", "slot": slot, **more}]
            case "open" if self.registers:
                return [{"type": "registered", "slot": slot}]
            case "output" | "decline" if self.confirms:
                attempt = frame["attempt_id"]
                return [{"type": "confirmed", "slot": slot, "attempt_id": attempt, "accepted": True}]
            case "half_close" if self.closes:
                return [{"type": "closed", "slot": slot, "reason": "half_closed"}]
            case "reset" if self.closes:
                return [{"type": "closed", "slot": slot, "reason": "reset"}]
            case _:
                return []

    def welcome(self) -> Frame:
        return {
            "type": "welcome",
            "version": 1,
            "session": "node~1",
            "connection": "node~1/1",
            "namespace": "default",
            "max_concurrent_tasks": self.cap,
            "ping_interval_ms": self.ping_ms,
            "limits": {
                "max_message_bytes": self.max_message_bytes,
                "max_frames_per_message": 1024,
                "max_depth": 100,
            },
        }

    async def _serve(self, request: trio_websocket.WebSocketRequest) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        if self.refusal is not None:
            self.refused += 1
            status, reason = self.refusal
            body = {"reason": reason, "message": "No.", "supported_versions": "7-9"}
            await request.reject(status, body=json.dumps(body).encode())
            self.ring()
            return
        connection = FakeConnection(self, await request.accept(), headers)
        self.connections.append(connection)
        self.ring()
        await connection.serve()


def _fits(frame: Frame, kind: str, members: dict[str, Any]) -> bool:
    return frame["type"] == kind and all(frame.get(name) == value for name, value in members.items())


@asynccontextmanager
async def fake_node(**options: Any) -> AsyncIterator[FakeNode]:
    """A node that listens until the block ends."""
    node = FakeNode(**options)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_websocket.serve_websocket, node._serve, "127.0.0.1", 0, None)
        node.url = f"http://127.0.0.1:{server.port}"
        yield node
        nursery.cancel_scope.cancel()
