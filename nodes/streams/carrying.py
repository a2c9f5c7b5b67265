"""Moves the messages of one connection, and watches that they move."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

import structlog
import trio

from nodes.streams.codec import ProtocolError
from nodes.streams.connection import Connection
from nodes.streams.core import Phase

log = structlog.get_logger(__name__)

HELLO_SECONDS: Final = 10.0
UNSENT_BYTES: Final = 8 * 1024 * 1024
SEND_SECONDS: Final = 30.0
FLUSH_SECONDS: Final = 5.0
SILENT_PINGS: Final = 2


class Carrier(Protocol):
    """Moves messages. ``deliver`` hands over what comes, in order, until it is told False or nothing more
    comes; any may raise when the carrier broke.
    """

    async def deliver(self, take: Callable[[bytes | str], bool]) -> None: ...

    async def send(self, message: bytes) -> None: ...

    async def close(self, failure: ProtocolError | None) -> None: ...


async def carry(connection: Connection, carrier: Carrier, scope: trio.CancelScope) -> None:
    """Move messages both ways until either end is over; ``scope`` is the one this runs in, and ends with it.

    Raises nothing of the carrier's.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, connection, carrier, scope)
        await _receive(connection, carrier, scope)
        scope.cancel()


async def _receive(connection: Connection, carrier: Carrier, scope: trio.CancelScope) -> None:
    core = connection.core

    def take(message: bytes | str) -> bool:
        connection.received(message)
        return not core.failure and core.unsent_bytes <= UNSENT_BYTES

    try:
        await carrier.deliver(take)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        return
    if core.unsent_bytes > UNSENT_BYTES:
        # It asks and asks and does not listen; looking once a second would be too late.
        log.warning("slow_stream_reader_cut", connection=connection.name)
        _cut(connection, scope)
        return
    if not core.failure:
        return
    # Let the worker hear why; it is the sender that ends the connection.
    with trio.move_on_after(FLUSH_SECONDS):
        await trio.sleep_forever()


async def _send(connection: Connection, carrier: Carrier, scope: trio.CancelScope) -> None:
    try:
        while True:
            await connection.output.wait()
            connection.output = trio.Event()
            while (message := connection.core.take()) is not None:
                connection.sending_since = trio.current_time()
                await carrier.send(message)
                connection.last_sent = trio.current_time()
                connection.sending_since = None
            if connection.finished:
                with trio.move_on_after(FLUSH_SECONDS):
                    await carrier.close(connection.core.failure)
                break
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        log.info("stream_connection_broke", connection=connection.name)
    scope.cancel()


def watch(
    connection: Connection, scope: trio.CancelScope, now: float, interval: float, random: Random
) -> None:
    """Look at a connection at ``now`` (trio's clock): ping one that is silent for ``interval`` seconds, and
    end one that stays silent, takes nothing that is sent to it, or says no hello. RPCs that nobody waits for
    any more are cancelled.
    """
    if connection.core.phase is Phase.ENDED:
        return
    connection.cancel_late_rpcs(now)
    stuck = connection.sending_since is not None and now - connection.sending_since > SEND_SECONDS
    if stuck or connection.core.unsent_bytes > UNSENT_BYTES:
        log.warning("slow_stream_reader_cut", connection=connection.name)
        _cut(connection, scope)
    elif connection.core.phase is Phase.OPENING and now - connection.opened > HELLO_SECONDS:
        connection.fail(ProtocolError("hello_timeout", "No hello came in time."))
    elif connection.core.phase is not Phase.OPENING and now - connection.last_ping >= interval:
        silent = now - connection.last_received >= interval
        if silent and connection.silent_pings >= SILENT_PINGS:
            log.info("silent_stream_connection_cut", connection=connection.name)
            _cut(connection, scope)
        elif silent or now - connection.last_sent >= interval:
            connection.last_ping = now
            connection.silent_pings += silent
            connection.ping(f"{random.getrandbits(32):08x}")


def _cut(connection: Connection, scope: trio.CancelScope) -> None:
    # Its slots are lost now: a carrier that is stuck in a send may take until TCP gives up to end.
    connection.ended()
    scope.cancel()
