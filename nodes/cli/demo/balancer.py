"""A TCP balancer in front of a few nodes: it stays with one node until that node fails.

Real deployments use HAProxy (``deploy/haproxy.cfg``). This one shows what a balancer has to do and,
unlike it, can say which node a client is talking to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

CONNECT_SECONDS = 1.0
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Backend:
    """A node the balancer may connect to."""

    name: str
    host: str
    port: int


class Balancer:
    """Passes bytes between its clients and the current backend; moves on when that one fails."""

    def __init__(self, backends: Sequence[Backend], on_move: Callable[[Backend, Backend], None]) -> None:
        self._backends = list(backends)
        self._on_move = on_move

    @property
    def current(self) -> Backend:
        """The node that new connections go to first."""
        return self._backends[0]

    async def serve(self, host: str, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen on a free port, which is what ``nursery.start`` returns, until cancelled."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host=host)
            task_status.started(listeners[0].socket.getsockname()[1])
            await trio.serve_listeners(self._carry, listeners, handler_nursery=nursery)

    async def _carry(self, client: trio.SocketStream) -> None:
        async with client:
            node = await self._connect()
            if node is None:
                return
            async with node, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, client, node, nursery.cancel_scope)
                nursery.start_soon(_pump, node, client, nursery.cancel_scope)

    async def _connect(self) -> trio.SocketStream | None:
        for _ in self._backends:
            backend = self.current
            try:
                with trio.fail_after(CONNECT_SECONDS):
                    return await trio.open_tcp_stream(backend.host, backend.port)
            except (OSError, trio.TooSlowError):
                self._move_from(backend)
        return None

    def _move_from(self, failed: Backend) -> None:
        if failed is self.current:
            self._backends.append(self._backends.pop(0))
            self._on_move(failed, self.current)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while chunk := await source.receive_some(_CHUNK):
            await sink.send_all(chunk)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()
