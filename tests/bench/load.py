"""A load generator that costs little itself: plain HTTP/1.1 over trio sockets, one request at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import orjson
import trio

from tests.wire import HEADERS, complete, schedule

QUEUE = "bench"
POLL_SECONDS = 5
_HEADERS = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())


class Connection:
    """One keep-alive connection."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._rest = b""

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of the answer; raises AssertionError for one that is no success."""
        content = orjson.dumps(body)
        head = (
            f"POST /api{path} HTTP/1.1\r\nHost: {self._host}\r\n{_HEADERS}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        await self._stream.send_all(head.encode() + content)
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            await self._more()
        lines = self._rest[:end].lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        while len(self._rest) < end + 4 + length:
            await self._more()
        answer, self._rest = self._rest[end + 4 : end + 4 + length], self._rest[end + 4 + length :]
        assert lines[0].split()[1].startswith(b"2"), answer
        return answer

    async def _more(self) -> None:
        chunk = await self._stream.receive_some(65536)
        assert chunk, "the server closed the connection"
        self._rest += chunk


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[Connection]:
    async with await trio.open_tcp_stream(host, port) as stream:
        stream.setsockopt(6, 1, 1)
        yield Connection(stream, f"{host}:{port}")


@dataclass
class Load:
    """Workflows of one activity. ``pollers`` connections poll for each kind of task."""

    host: str
    port: int
    pollers: int = 16
    worker: str = field(default_factory=lambda: f"bench-{uuid4().hex[:8]}")
    completed: int = 0

    async def register(self) -> None:
        async with connected(self.host, self.port) as connection:
            body = {"worker_id": self.worker, "task_queue": QUEUE, "runtime": "external"}
            await connection.post("/worker/register", body)

    async def run(self, workflows: int, starters: int = 4) -> float:
        """Start ``workflows`` and work on them to their end; returns the seconds it took."""
        self.completed = 0
        names = iter(range(workflows))
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(self.pollers):
                nursery.start_soon(self._decide, workflows, nursery.cancel_scope)
                nursery.start_soon(self._act)
            for _ in range(starters):
                nursery.start_soon(self._start, names)
        return trio.current_time() - begin

    async def start(self, connection: Connection) -> None:
        body = {"workflow_type": "bench", "task_queue": QUEUE, "workflow_id": uuid4().hex}
        await connection.post("/workflows", body)

    async def poll(self, connection: Connection, kind: str) -> bytes:
        body = {
            "worker_id": self.worker,
            "task_queue": QUEUE,
            "timeout_seconds": POLL_SECONDS,
            "poll_request_id": uuid4().hex,
        }
        return await connection.post(f"/worker/{kind}-tasks/poll", body)

    async def _start(self, names: Any) -> None:
        async with connected(self.host, self.port) as connection:
            for _ in names:
                await self.start(connection)

    async def _decide(self, wanted: int, scope: trio.CancelScope) -> None:
        async with connected(self.host, self.port) as connection:
            while True:
                answer = await self.poll(connection, "workflow")
                task = orjson.loads(answer)["task"]
                if task is None:
                    continue
                last = b'"ActivityCompleted"' in answer
                body = {
                    "lease_owner": task["lease_owner"],
                    "workflow_task_attempt": task["workflow_task_attempt"],
                    "commands": [complete() if last else schedule("bench", QUEUE)],
                }
                await connection.post(f"/worker/workflow-tasks/{task['task_id']}/complete", body)
                self.completed += last
                if self.completed >= wanted:
                    scope.cancel()

    async def _act(self) -> None:
        async with connected(self.host, self.port) as connection:
            while True:
                task = orjson.loads(await self.poll(connection, "activity"))["task"]
                if task is None:
                    continue
                body = {
                    "lease_owner": task["lease_owner"],
                    "activity_attempt_id": task["activity_attempt_id"],
                    "result": None,
                }
                await connection.post(f"/worker/activity-tasks/{task['task_id']}/complete", body)
