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
from nodes.api.connections import PlainHttp, ServingConfig
from nodes.api.limits import MAX_HEADER_BYTES, ListenerLimits
from nodes.api.messages import Answering

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


def _config(listener: socket.socket, plain: PlainHttp, max_message_bytes: int) -> ServingConfig:
    config = ServingConfig()
    config.plain = plain
    config.websocket_max_message_size = max_message_bytes
    config.bind = [f"fd://{listener.detach()}"]
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = plain.limits.header_seconds
    config.keep_alive_max_requests = MAX_REQUESTS_PER_CONNECTION
    config.h2_max_header_list_size = MAX_HEADER_BYTES
    config.h2_max_concurrent_streams = MAX_CONCURRENT_STREAMS
    config.graceful_timeout = plain.limits.grace_seconds
    return config


async def serve(
    front: Answering,
    app: Asgi,
    listener: socket.socket,
    limits: ListenerLimits,
    *,
    shutdown: Callable[[], Awaitable[None]],
    is_leaving: Callable[[], bool] = lambda: False,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on ``listener``, which it closes, until ``shutdown()`` returns.

    ``front`` answers what comes over HTTP/1.1; ``app`` gets HTTP/2, WebSockets, and its start and end. Once
    ``is_leaving``, each answer over HTTP/1.1 tells its client to use another connection for the next request,
    so that none is sent into a connection that is about to be closed. Of WebSocket messages the application
    gets no more than ``max_message_bytes`` and the part that is too much. After ``shutdown()`` open requests
    get ``limits.grace_seconds``. Reports the address it listens on.
    """
    connections.install()
    name = listener.getsockname()
    plain = PlainHttp(front, limits, is_leaving)
    config = _config(listener, plain, max_message_bytes)

    async def stop() -> None:
        await shutdown()
        plain.retire()

    async with trio.open_nursery() as nursery:
        await nursery.start(_serve_hypercorn, app, config, stop)
        task_status.started(Address(name[0], name[1]))


async def _serve_hypercorn(
    app: Asgi,
    config: ServingConfig,
    shutdown: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    await hypercorn.trio.serve(app, config, shutdown_trigger=shutdown, task_status=task_status)
