"""Opens WebSockets to nodes, and turns what goes wrong into errors of ours."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import trio
import trio_websocket

from nodes.worker.direct_stream import DirectStream
from nodes.worker.errors import StreamRejected

PATH: Final = "/api/streams"
VERSIONS: Final = "1-1"
VERSIONS_HEADER: Final = "x-headrace-stream-versions"
CONNECT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 2.0
MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest message that is taken from a node: a bound against nonsense, far above what nodes send."""
RECEIVE_BYTES: Final = 64 * 1024
PERMANENT: Final = frozenset({400, 401, 403, 404})
"""Statuses of refusals that trying again does not change (docs/protocol.md 3)."""


class CarrierLost(Exception):
    """The connection could not be made or broke."""


class Carrier:
    """One open WebSocket."""

    def __init__(self, socket: trio_websocket.WebSocketConnection, stream: DirectStream) -> None:
        self._socket = socket
        self._stream = stream

    async def send(self, message: bytes) -> None:
        """Raises CarrierLost."""
        if self._socket.closed:
            raise CarrierLost(str(self._socket.closed))
        try:
            await self._stream.send_text(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierLost(str(error)) from error

    async def deliver(self, take: Callable[[bytes], None]) -> None:
        """Give all messages to ``take``, in order, until the connection is over. Raises CarrierLost then.

        ``take`` must not raise: messages may come to it from another task.
        """
        self._stream.attend(take)
        try:
            while True:
                message = await self._socket.get_message()
                take(message.encode() if isinstance(message, str) else message)
        except (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierLost(str(error)) from error


@asynccontextmanager
async def open_carrier(url: str, headers: Mapping[str, str]) -> AsyncIterator[Carrier]:
    """A connection to the node at ``url``, closed when the block ends. What the block raises comes out as
    it is, in no group.

    Raises StreamRejected with a status, or CarrierLost.
    """
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                with trio.fail_after(CONNECT_SECONDS):
                    stream = DirectStream(await _dial(url), MESSAGE_BYTES)
                    socket = await _shake_hands(nursery, stream, url, headers)
                try:
                    yield Carrier(socket, stream)
                finally:
                    with trio.move_on_after(CLOSE_SECONDS):
                        await socket.aclose()
            except Exception as error:
                raised = error
            nursery.cancel_scope.cancel()
    except* trio_websocket.ConnectionRejected as group:
        raised = _first(group)
    match raised:
        case None:
            return
        case trio_websocket.ConnectionRejected():
            raise _rejection(raised) from raised
        case trio_websocket.HandshakeError() | trio.TooSlowError() | OSError() | trio.BrokenResourceError():
            raise CarrierLost(_why(raised)) from raised
        case _:
            raise raised


async def _dial(url: str) -> trio.abc.Stream:
    target = urlsplit(url)
    host = target.hostname or ""
    if target.scheme != "https":
        return await trio.open_tcp_stream(host, target.port or 80)
    context = ssl.create_default_context()
    stream = await trio.open_ssl_over_tcp_stream(
        host, target.port or 443, ssl_context=context, https_compatible=True
    )
    try:
        await stream.do_handshake()  # here, where it can be seen why it failed
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def _shake_hands(
    nursery: trio.Nursery, stream: DirectStream, url: str, headers: Mapping[str, str]
) -> trio_websocket.WebSocketConnection:
    """The library's end of the WebSocket, which reads in ``nursery``. Closes the stream if it fails."""
    target = urlsplit(url)
    try:
        return await trio_websocket.wrap_client_stream(
            nursery,
            # It names two kinds of streams, and asks for no more than any stream can.
            cast(trio.SocketStream, stream),
            target.netloc.rpartition("@")[2],
            target.path + PATH,
            extra_headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            max_message_size=MESSAGE_BYTES,
            receive_buffer_size=RECEIVE_BYTES,
        )
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


def _why(error: BaseException) -> str:
    """What went wrong, in the words of the innermost error that has some: trio's own say little."""
    words = f"{type(error).__name__} {error}".strip()
    cause = error.__cause__
    return words if str(error) or cause is None else _why(cause)


def _first(group: BaseExceptionGroup[trio_websocket.ConnectionRejected]) -> trio_websocket.ConnectionRejected:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


class _Refusal(msgspec.Struct):
    reason: str = ""
    message: str = ""
    supported_versions: str = ""


def _rejection(error: trio_websocket.ConnectionRejected) -> StreamRejected:
    status = error.status_code
    try:
        body = msgspec.json.decode(error.body or b"{}", type=_Refusal)
    except msgspec.DecodeError:
        body = _Refusal()
    message = body.message or f"The node answered {status}."
    if body.supported_versions:
        message += f" This worker speaks {VERSIONS}, the node {body.supported_versions}."
    return StreamRejected(body.reason or f"http_{status}", message, status=status)
