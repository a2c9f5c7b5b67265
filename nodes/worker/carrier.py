"""Opens WebSockets to nodes, and turns what goes wrong into errors of ours."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio
import trio_websocket

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

    def __init__(self, socket: trio_websocket.WebSocketConnection) -> None:
        self._socket = socket

    async def send(self, message: bytes) -> None:
        """Raises CarrierLost."""
        try:
            await self._socket.send_message(message.decode())
        except (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierLost(str(error)) from error

    async def receive(self) -> bytes:
        """Raises CarrierLost."""
        try:
            message = await self._socket.get_message()
        except (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierLost(str(error)) from error
        return message.encode() if isinstance(message, str) else message


@asynccontextmanager
async def open_carrier(url: str, headers: Mapping[str, str]) -> AsyncIterator[Carrier]:
    """A connection to the node at ``url``, closed when the block ends.

    Raises StreamRejected with a status, or CarrierLost.
    """
    target = f"ws{url.removeprefix('http')}{PATH}"
    context = ssl.create_default_context() if target.startswith("wss:") else None
    try:
        async with trio_websocket.open_websocket_url(
            target,
            context,
            extra_headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            max_message_size=MESSAGE_BYTES,
            receive_buffer_size=RECEIVE_BYTES,
            connect_timeout=CONNECT_SECONDS,
            disconnect_timeout=CLOSE_SECONDS,
        ) as socket:
            yield Carrier(socket)
    except trio_websocket.ConnectionRejected as error:
        raise _rejection(error) from error
    except trio_websocket.DisconnectionTimeout:
        pass
    except (
        trio_websocket.HandshakeError,
        trio_websocket.ConnectionTimeout,
        OSError,
        trio.BrokenResourceError,
    ) as error:
        raise CarrierLost(f"{type(error).__name__} {error}".strip()) from error


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
