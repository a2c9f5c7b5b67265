"""The Quart application: converts between ASGI and the pipeline, and reads bodies safely.

A body has to arrive in time (:class:`BodyLimits`), and is refused before it is read when it is
declared too large. While a handler waits (a parked poll), the connection is watched: a client that
leaves cancels it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, cast

import trio
from hypercorn.typing import ASGISendCallable, ASGISendEvent, HTTPScope
from quart import Request as QuartRequest
from quart import Response as QuartResponse
from quart import request as current
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge

from cluster.errors import Refused
from nodes.api import guards
from nodes.api.limits import SEND_SECONDS, BodyLimits
from nodes.api.messages import Request, Response

NOTICE_CHECKPOINTS: Final = 4
"""Turns of the event loop after which the end of a connection that the kernel knows of is known here."""

_DEFAULT_LIMITS = BodyLimits()


class Answering(Protocol):
    """The pipeline, as the application needs it."""

    async def handle(self, request: Request) -> Response: ...

    def refuse(self, request: Request, refusal: Refused) -> Response: ...


class _Answer(QuartResponse):
    """An answer that somebody may have to hear of when it cannot be sent."""

    undelivered: Callable[[], None] | None = None


class _Connection(TrioASGIHTTPConnection):
    """Lets an HTTP/1 answer be sent to its end.

    Hypercorn reports a disconnect as soon as a response is complete, and closes the connection only
    after that. Quart-Trio would cancel the sending then, and a connection that has to be closed
    would stay open for ever. HTTP/2 streams do not own their connection, and the end of a stream
    that waits for the client's window comes only by that cancellation.
    """

    async def handle_request(  # type: ignore[override]  # as in the base class, see there
        self, nursery: trio.Nursery, request: QuartRequest, send: ASGISendCallable
    ) -> None:
        response = await self.app.handle_request(request)
        if isinstance(response, _Answer) and response.undelivered is not None:
            send = _unless_left(send, nursery, response.undelivered)
        with trio.move_on_after(SEND_SECONDS, shield=request.http_version.startswith("1")):
            await self._send_response(send, response)
        nursery.cancel_scope.cancel()


def create_app(
    pipeline: Answering,
    max_body_bytes: int,
    body_limits: BodyLimits = _DEFAULT_LIMITS,
    *,
    is_leaving: Callable[[], bool] = lambda: False,
) -> QuartTrio:
    """An ASGI application that answers every request through ``pipeline``.

    Once ``is_leaving`` each answer tells its client to use another connection for the next request, so
    that none is sent into a connection that is about to be closed.
    """
    app = QuartTrio("headrace")
    app.asgi_http_class = _Connection
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["BODY_TIMEOUT"] = None
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes

    # Before routing, because Quart's own routes and redirects must never answer: the pipeline's
    # table is the only one.
    @app.before_request
    async def answer() -> QuartResponse:
        scope = cast(HTTPScope, current.scope)
        head = Request(
            scope["method"],
            scope.get("raw_path", b"") or scope["path"].encode(),
            scope["query_string"],
            tuple(scope["headers"]),
            client=_address(scope),
        )
        try:
            body = await _read_body(head, max_body_bytes, body_limits)
        except Refused as refusal:
            response = pipeline.refuse(head, refusal)
            # The rest of the body was not read, so nothing else can follow on this connection.
            is_last = True
        else:
            request = replace(head, body=body)
            response = await pipeline.handle(request)
            is_last = is_leaving()
        if is_last and scope["http_version"].startswith("1"):
            response.headers.append((b"connection", b"close"))
        return _convert(response)

    return app


def _address(scope: HTTPScope) -> str | None:
    client = scope.get("client")
    return str(client[0]) if client else None


def _unless_left(
    send: ASGISendCallable, nursery: trio.Nursery, undelivered: Callable[[], None]
) -> ASGISendCallable:
    """Sends an answer, but calls ``undelivered`` instead of sending its body to nobody.

    The client has left when it closed its connection, or its stream, before the first byte of the body.
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


async def _read_body(head: Request, limit: int, speed: BodyLimits) -> bytes:
    guards.check_framing(head)
    if (head.content_length or 0) > limit:
        raise guards.too_large(limit)
    body = bytearray()
    began = trio.current_time()
    try:
        with trio.CancelScope(deadline=began + speed.allowed(0)) as scope:
            async for chunk in current.body:
                body += chunk
                if len(body) > limit:
                    raise guards.too_large(limit)
                scope.deadline = began + speed.allowed(len(body))
    except RequestEntityTooLarge:
        raise guards.too_large(limit) from None
    if scope.cancelled_caught:
        raise Refused("request_timeout", "The request body arrived too slowly.", status=408)
    return bytes(body)


def _convert(response: Response) -> QuartResponse:
    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers])
    converted = _Answer(response.body, response.status, headers)
    converted.undelivered = response.undelivered
    # Quart counts the body it was given: right but for HEAD, and a 204 must not have a length.
    declared = response.header(b"content-length")
    if declared is not None:
        converted.headers["content-length"] = declared.decode()
    if response.status == 204:
        del converted.headers["content-length"]
        converted.headers.pop("content-type", None)
    return converted
