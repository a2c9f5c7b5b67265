"""Serving the application with hypercorn on trio, with every limit said out loud."""

from __future__ import annotations

import gc
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import hypercorn.trio
import trio

from cluster.errors import StartupError
from nodes.api import connections
from nodes.api.connections import ServingConfig
from nodes.api.limits import GRACE_SECONDS, HEADER_SECONDS, MAX_CONNECTIONS, MAX_HEADER_BYTES

MAX_CONCURRENT_STREAMS: Final = 100
"""Above 1000, hypercorn's HTTP/2 priority tree raises and ends the connection."""

MAX_REQUESTS_PER_CONNECTION: Final = 1_000_000
MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""Largest WebSocket message that is collected, unless said otherwise."""

BACKLOG: Final = 1024
UNREAD_SECONDS: Final = 30
"""A client that takes none of the data sent to it is dropped; hypercorn itself would wait for ever."""

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
"""Any ASGI application."""

_GC_THRESHOLD: Final = 50_000


@dataclass(frozen=True, slots=True)
class Address:
    """Where the node really listens; the port differs from the asked one when that was 0."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def tune_gc() -> None:
    """Take what is loaded out of garbage collection and collect less often; call once at start.

    Measured on hypercorn: 15 to 20 % less CPU a request, half the p99. What has outlived one collection is
    looked at after ten more: when that was fifty, and a hundred for the oldest, nodes grew for hours.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)


def open_listener(host: str, port: int, setting: str = "--listen or HEADRACE_LISTEN") -> socket.socket:
    """A bound socket. Raises StartupError with one line that says why not, and what sets the address."""
    refused = f"cannot listen on {{}}:{{}}: {{}}; choose another address with {setting}".format
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(refused(host, port, error.strerror or error)) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(refused(host, port, error.strerror or error)) from None
    return listener


def _config(listener: socket.socket, max_message_bytes: int, most_connections: int) -> ServingConfig:
    config = ServingConfig()
    config.most_connections = most_connections
    config.websocket_max_message_size = max_message_bytes
    config.bind = [f"fd://{listener.detach()}"]
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = HEADER_SECONDS
    config.keep_alive_max_requests = MAX_REQUESTS_PER_CONNECTION
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.h2_max_header_list_size = MAX_HEADER_BYTES
    config.h2_max_concurrent_streams = MAX_CONCURRENT_STREAMS
    config.graceful_timeout = GRACE_SECONDS
    return config


async def serve(
    app: Asgi,
    listener: socket.socket,
    *,
    shutdown: Callable[[], Awaitable[None]],
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    most_connections: int = MAX_CONNECTIONS,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on ``listener``, which it closes, until ``shutdown()`` returns.

    Of WebSocket messages the application gets no more than ``max_message_bytes`` and the part that is too
    much. Open requests then get GRACE_SECONDS. Reports the address it listens on.
    """
    connections.install()
    name = listener.getsockname()
    config = _config(listener, max_message_bytes, most_connections)

    async with trio.open_nursery() as nursery:
        await nursery.start(_serve_hypercorn, app, config, shutdown)
        task_status.started(Address(name[0], name[1]))


async def _serve_hypercorn(
    app: Asgi,
    config: ServingConfig,
    shutdown: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    await hypercorn.trio.serve(app, config, shutdown_trigger=shutdown, task_status=task_status)
