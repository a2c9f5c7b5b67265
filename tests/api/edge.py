"""Both ports over real sockets, with a pipeline that remembers what reached it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import trio

from cluster.errors import Refused
from nodes.api.app import create_app
from nodes.api.limits import BodyLimits, ListenerLimits
from nodes.api.messages import Request, Response
from nodes.api.serving import Address, open_listener, serve
from nodes.listener.listener import WorkerListener
from tests.waiting import PATIENCE

LIMIT = 1000
"""Largest body."""


class Recorder:
    """A pipeline that answers with what it got.

    ``/park`` waits until it is cancelled, ``/taken`` until ``left`` is set, whatever its client does.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.parked = trio.Event()
        self.cancelled = trio.Event()
        self.left = trio.Event()
        self.leaving = False
        self.undelivered: list[str] = []

    @property
    def paths(self) -> list[str]:
        return [request.raw_path.decode() for request in self.requests]

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        if request.raw_path == b"/park":
            self.parked.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                self.cancelled.set()
                raise
        if request.raw_path == b"/taken":
            self.parked.set()
            with trio.CancelScope(shield=True):
                await self.left.wait()
        response = Response(200, [(b"content-type", b"text/plain")], request.body or b"empty")
        response.undelivered = partial(self.undelivered.append, request.raw_path.decode())
        return response

    def refuse(self, request: Request, refusal: Refused) -> Response:
        return Response(refusal.status, [(b"content-type", b"text/plain")], refusal.reason.encode())


Serving = Callable[..., AbstractAsyncContextManager[Address]]


@asynccontextmanager
async def open_main(
    recorder: Recorder, limits: BodyLimits | None = None, **more: float
) -> AsyncIterator[Address]:
    """The port that serves everything; ``more`` are other limits than the usual ones."""
    wanted = ListenerLimits(LIMIT, limits or BodyLimits(), **more)  # type: ignore[arg-type]  # some are int
    app = create_app(recorder, LIMIT, wanted.body)

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] != "http" or scope["http_version"] == "2", "this goes past ASGI"
        await app(scope, receive, send)

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address: Address = await nursery.start(
            partial(
                serve,
                recorder,
                checked,
                open_listener("127.0.0.1", 0),
                wanted,
                shutdown=stop.wait,
                is_leaving=lambda: recorder.leaving,
            )
        )
        try:
            yield address
        finally:
            stop.set()


@asynccontextmanager
async def open_for_workers(
    recorder: Recorder, limits: BodyLimits | None = None, **more: float
) -> AsyncIterator[Address]:
    """The worker listener; ``more`` are other limits than the usual ones."""
    wanted = ListenerLimits(LIMIT, limits or BodyLimits(), **more)  # type: ignore[arg-type]  # some are int
    listener = WorkerListener(recorder, wanted, is_leaving=lambda: recorder.leaving)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address: Address = await nursery.start(
            partial(listener.serve, open_listener("127.0.0.1", 0), shutdown=stop.wait)
        )
        try:
            yield address
        finally:
            stop.set()
    assert listener.statistics().connections == 0


def post(path: str, body: bytes = b"", *lines: bytes) -> bytes:
    """A request; ``lines`` are more of its head."""
    head = [b"POST %b HTTP/1.1" % path.encode(), b"Host: h", b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join((*head, b"", body))


async def connect(address: Address) -> trio.SocketStream:
    return await trio.open_tcp_stream(address.host, address.port)


async def read_all(stream: trio.SocketStream) -> bytes:
    """Everything until the server closes the connection."""
    received = bytearray()
    with trio.fail_after(PATIENCE):
        async for chunk in stream:
            received += chunk
    return bytes(received)


async def read_until(stream: trio.SocketStream, end: bytes) -> bytes:
    """Everything up to and with ``end``, with which nothing else may come."""
    received = b""
    with trio.fail_after(PATIENCE):
        while not received.endswith(end):
            chunk = await stream.receive_some()
            assert chunk, received
            received += chunk
    return received


async def exchange(address: Address, data: bytes) -> bytes:
    """Send bytes on a connection of their own; everything that is answered until it is closed."""
    async with await connect(address) as stream:
        await stream.send_all(data)
        return await read_all(stream)
