"""A load generator that costs little: HTTP/1.1 over plain trio streams, one request at a time each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import orjson
import trio

from tests.wire import HEADERS, envelope

_numbers = count()


class Connection:
    """A kept-alive connection to one node."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self.requests = self.received = 0
        fixed = {"Host": host, "Content-Type": "application/json", **HEADERS}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items()).encode()

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON body of a good answer."""
        status, answer = await self.exchange(path, body)
        assert status in (200, 201), f"{path}: {status} {answer}"
        return answer

    async def exchange(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON body of the answer, whatever it says."""
        self.requests += 1
        data = orjson.dumps(body)
        head = b"POST /api%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (
            path.encode(),
            self._head,
            len(data),
        )
        await self._stream.send_all(head + data)
        received = bytearray()
        end = -1
        while end < 0:
            received += await self._receive()
            end = received.find(b"\r\n\r\n")
        header = bytes(received[:end]).lower()
        size = int(header.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(received) < end + 4 + size:
            received += await self._receive()
        return int(header.split(b" ", 2)[1]), orjson.loads(received[end + 4 :])

    async def _receive(self) -> bytes:
        chunk = await self._stream.receive_some(65536)
        if not chunk:
            raise AssertionError("the node closed the connection")
        self.received += len(chunk)
        return bytes(chunk)

    # -- what a worker does -----------------------------------------------------------------

    async def register(self, worker: str, queue: str) -> None:
        await self.post(
            "/worker/register",
            {
                "worker_id": worker,
                "task_queue": queue,
                "runtime": "python",
                "supported_workflow_types": ["t"],
                "supported_activity_types": ["x"],
            },
        )

    async def start(self, workflow_id: str, queue: str) -> None:
        body = {"workflow_type": "t", "task_queue": queue, "workflow_id": workflow_id, "input": ["in"]}
        await self.post("/workflows", body)

    async def poll(self, kind: str, worker: str, queue: str, seconds: int = 30) -> dict[str, Any] | None:
        answer = await self.post(
            f"/worker/{kind}-tasks/poll",
            {
                "worker_id": worker,
                "task_queue": queue,
                "timeout_seconds": seconds,
                "poll_request_id": f"{worker}-{next(_numbers)}",
            },
        )
        task: dict[str, Any] | None = answer["task"]
        return task

    async def page(self, task: dict[str, Any], token: str) -> dict[str, Any]:
        """A further page of the history of a leased task."""
        return await self.post(
            f"/worker/workflow-tasks/{task['task_id']}/history",
            {
                "lease_owner": task["lease_owner"],
                "workflow_task_attempt": task["workflow_task_attempt"],
                "next_history_page_token": token,
            },
        )

    async def complete_workflow(
        self, task: dict[str, Any], *commands: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        return await self.post(
            f"/worker/workflow-tasks/{task['task_id']}/complete",
            {
                "lease_owner": task["lease_owner"],
                "workflow_task_attempt": task["workflow_task_attempt"],
                "commands": commands,
                **more,
            },
        )

    async def signal(self, workflow_id: str, name: str) -> None:
        status, answer = await self.exchange(f"/workflows/{workflow_id}/signal/{name}", {"input": ["in"]})
        assert status == 202, answer

    async def complete_activity(self, task: dict[str, Any]) -> None:
        await self.post(
            f"/worker/activity-tasks/{task['task_id']}/complete",
            {
                "lease_owner": task["lease_owner"],
                "activity_attempt_id": task["activity_attempt_id"],
                "result": RESULT,
            },
        )


RESULT = envelope("out")


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """A connection to ``url``."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    async with await trio.open_tcp_stream(parts.hostname, parts.port) as stream:
        yield Connection(stream, parts.netloc)
