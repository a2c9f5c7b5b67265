"""A readiness probe for whatever serves HTTP in the worker's process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from nodes.worker.worker import Worker

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def readiness_probe(worker: Worker) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An ASGI application that answers every request with 200 while the worker is ready, else 503."""

    async def probe(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body = readiness_answer(worker)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return probe


def readiness_answer(worker: Worker) -> tuple[int, bytes]:
    """Status and JSON body of a probe, for servers that are not ASGI (R10)."""
    ready = worker.is_ready
    queues = [
        {
            "queue": one.queue,
            "has_registered_stream": one.has_registered_stream,
            "last_permanent_error": one.last_permanent_error and one.last_permanent_error.reason,
        }
        for one in worker.queues
    ]
    return 200 if ready else 503, msgspec.json.encode({"is_ready": ready, "queues": queues})
