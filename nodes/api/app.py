"""The ASGI application, for what is not HTTP/1.1: between ASGI and the pipeline, with bodies read safely.

A body has to arrive in time (:class:`BodyLimits`), and is refused before it is read when it is
declared too large. While a handler waits (a parked poll), the connection is watched: a client that
leaves cancels it. Quart serves what is no request: the application's start and end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)
from quart_trio import QuartTrio

from cluster.errors import Refused
from nodes.api import guards
from nodes.api.limits import SEND_SECONDS, BodyLimits
from nodes.api.messages import Answering, Headers, Request, Response, Stream
from nodes.api.serving import Asgi

NOTICE_CHECKPOINTS: Final = 4
"""Turns of the event loop after which the end of a connection that the kernel knows of is known here."""

_DEFAULT_LIMITS = BodyLimits()


class _ClientLeft(Exception):
    """The connection, or the stream, ended before the whole body was here."""


def create_app(
    pipeline: Answering,
    max_body_bytes: int,
    body_limits: BodyLimits = _DEFAULT_LIMITS,
) -> Asgi:
    """An ASGI application that answers every request over HTTP/2 through ``pipeline``."""
    rest = QuartTrio("headrace")

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await turn_away(scope, receive, send)
        else:
            await rest(scope, receive, send)

    async def answer(scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        head = Request(
            scope["method"],
            scope.get("raw_path", b"") or scope["path"].encode(),
            scope["query_string"],
            tuple(scope["headers"]),
            client=_address(scope),
        )
        refusal: Refused | None = None
        try:
            body = await _read_body(head, receive, max_body_bytes, body_limits)
        except _ClientLeft:
            return
        except Refused as error:
            refusal = error
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, receive, nursery.cancel_scope)
            if refusal is None:
                response = await pipeline.handle(msgspec.structs.replace(head, body=body))
            else:
                response = pipeline.refuse(head, refusal)
            if response.undelivered is not None:
                send = _unless_left(send, nursery, response.undelivered)
            if response.stream is not None:
                await _send_stream(send, response, response.stream)
            else:
                with trio.move_on_after(SEND_SECONDS):
                    await _send(send, response)
            nursery.cancel_scope.cancel()

    async def turn_away(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        head = Request("GET", scope["raw_path"], scope["query_string"], tuple(scope["headers"]))
        response = pipeline.refuse(head, Refused("not_found", "There is no WebSocket here.", status=404))
        headers = _sized(response)
        await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": response.body, "more_body": False})

    return serve


async def _watch(receive: ASGIReceiveCallable, scope: trio.CancelScope) -> None:
    """Cancel what is done for a client that leaves; what it sends meanwhile is of no use."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _send(send: ASGISendCallable, response: Response) -> None:
    await send(_start(response.status, _sized(response)))
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


async def _send_stream(send: ASGISendCallable, response: Response, stream: Stream) -> None:
    async def send_piece(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    await send(_start(response.status, response.headers))
    await stream(send_piece)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _start(status: int, headers: Headers) -> HTTPResponseStartEvent:
    return {"type": "http.response.start", "status": status, "headers": headers, "trailers": False}


def _sized(response: Response) -> Headers:
    """The headers of an answer: a 204 has no length, an answer to HEAD brings its own."""
    if response.status == 204:
        without = (b"content-length", b"content-type")
        return [header for header in response.headers if header[0] not in without]
    if response.header(b"content-length") is not None:
        return response.headers
    return [*response.headers, (b"content-length", b"%d" % len(response.body))]


def _address(scope: HTTPScope) -> str | None:
    client = scope.get("client")
    return str(client[0]) if client else None


def _unless_left(
    send: ASGISendCallable, nursery: trio.Nursery, undelivered: Callable[[], None]
) -> ASGISendCallable:
    """Sends an answer, but calls ``undelivered`` instead of sending its body to nobody.

    The client has left when it closed its connection or its stream before the first byte of the body.
    """
    is_first, has_left = True, False

    async def guarded(message: ASGISendEvent) -> None:
        nonlocal is_first, has_left
        if message["type"] == "http.response.body" and is_first:
            is_first = False
            with trio.CancelScope(shield=True):
                for _ in range(NOTICE_CHECKPOINTS):
                    await trio.lowlevel.checkpoint()
            has_left = nursery.cancel_scope.cancel_called
            if has_left:
                undelivered()
        if not has_left:
            await send(message)

    return guarded


async def _read_body(head: Request, receive: ASGIReceiveCallable, limit: int, speed: BodyLimits) -> bytes:
    """The whole body. Raises Refused when it is too large or too slow, and _ClientLeft."""
    guards.check_head(head)
    if (head.content_length or 0) > limit:
        raise guards.too_large(limit)
    body = bytearray()
    began = trio.current_time()
    with trio.CancelScope(deadline=began + speed.allowed(0)) as scope:
        while True:
            event = await receive()
            if event["type"] != "http.request":
                raise _ClientLeft
            body += event["body"]
            if len(body) > limit:
                raise guards.too_large(limit)
            if not event["more_body"]:
                return bytes(body)
            scope.deadline = began + speed.allowed(len(body))
    raise Refused("request_timeout", "The request body arrived too slowly.", status=408)
