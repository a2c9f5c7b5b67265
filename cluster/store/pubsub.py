"""Pub/sub: one connection in its own thread, messages into the trio thread.

The thread sleeps on the socket and on a wake-up socket through which the trio side says that the
wanted channels changed. A PING after each quiet PING_AFTER seconds notices a connection that
leads nowhere; after a reconnect everything wanted is subscribed again *before* the reconnect
handlers run, so what they read afterwards is not stale.

Handing messages over is bounded: with HANDOVER_LIMIT batches not yet processed the thread stops
reading, and a reader that stays too slow is cut off by Redis and comes back through a reconnect.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

import structlog
import trio
from redis.exceptions import ConnectionError, RedisError

from cluster.errors import StoreUnavailable
from cluster.store.connection import BROKEN, RawConnection, pack, pause
from cluster.store.topology import Topology, open_topology

PING_AFTER: Final = 2.5  # seconds without a byte
DEAD_AFTER: Final = 8.0
SUBSCRIBE_TIMEOUT: Final = 5.0
REPLY_TIMEOUT: Final = 5.0
MESSAGES_A_BATCH: Final = 500
HANDOVER_LIMIT: Final = 64
_CLOSE_GRACE: Final = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PubSubStatistics:
    """Counts since the start; ``channels`` is the present number of wanted channels."""

    messages: int
    connects: int
    lost_connections: int
    channels: int


class _StopListening(Exception):
    """The thread was asked to end."""


class _Listener(threading.Thread):
    """The thread: keeps a connection subscribed to what is wanted."""

    def __init__(self, topology: Topology, owner: PubSub) -> None:
        super().__init__(name="redis-pubsub", daemon=True)
        self._topology = topology
        self._owner = owner
        # Guards the four below; a channel counts as confirmed only when no SUBSCRIBE for it is
        # still unanswered, so an old answer cannot confirm a newer request.
        self._lock = threading.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        self._unanswered: Counter[str] = Counter()
        self._confirmed: set[str] = set()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._stop = threading.Event()
        self._room = threading.BoundedSemaphore(HANDOVER_LIMIT)
        self.messages = 0
        self.connects = 0
        self.lost_connections = 0
        self.last_error = ""

    # -- called from the trio thread ----------------------------------------------------------

    def want(self, channels: frozenset[str]) -> frozenset[str]:
        """Set what is wanted; returns the part that is subscribed and stays so."""
        with self._lock:
            self._wanted = channels
            live = frozenset(self._confirmed) & channels
        self._wake()
        return live

    def stop(self) -> None:
        self._stop.set()
        self._wake()

    def _wake(self) -> None:
        # A full or closed wake-up socket means that the thread is about to look, or has ended.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"!")

    def processed(self) -> None:
        self._room.release()

    # -- the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        failures = 0
        try:
            while not self._stop.is_set():
                before = self.connects
                try:
                    self._session()
                except BROKEN as error:
                    if str(error) != self.last_error:
                        # Said once, not at each of the tries that follow while Redis is away.
                        _log.warning("pubsub_broke", server=self._topology.label, error=str(error))
                    self.last_error = str(error)
                except _StopListening:
                    return
                except Exception as error:  # without this thread the node would go deaf unnoticed
                    self.last_error = f"internal error: {error!r}"
                    _log.exception("pubsub_failed")
                failures = 0 if self.connects > before else failures + 1
                self._stop.wait(pause(failures))
        finally:
            self._wake_reader.close()
            self._wake_writer.close()
            self._owner.tell(self._owner.ended)

    def _session(self) -> None:
        """One connection, from connect to its loss (which raises)."""
        self._topology.forget()
        connection = self._topology.connection(self._topology.nodes()[0])
        established = False
        try:
            connection.open()
            self._forget()
            self._subscribe_to_wanted(connection)
            self._await_confirmations(connection)
            self.connects += 1
            self.last_error = ""
            established = True
            self._owner.tell(partial(self._owner.connected, frozenset(self._confirmed), self.connects > 1))
            self._listen(connection)
        finally:
            if established and not self._stop.is_set():
                self.lost_connections += 1
            self._forget()
            connection.close()

    def _forget(self) -> None:
        with self._lock:
            self._asked = frozenset()
            self._unanswered.clear()
            self._confirmed.clear()

    def _await_confirmations(self, connection: RawConnection) -> None:
        give_up = monotonic() + REPLY_TIMEOUT
        while self._unanswered:
            if monotonic() > give_up:
                raise ConnectionError("subscriptions were not confirmed in time")
            if connection.readable(REPLY_TIMEOUT):
                self._receive(connection)

    def _listen(self, connection: RawConnection) -> None:
        heard, pinged = monotonic(), False
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.register(connection.socket(), select.POLLIN)
        while True:
            quiet = monotonic() - heard
            if quiet >= DEAD_AFTER:
                raise ConnectionError(f"nothing heard for {quiet:.0f} s")
            if quiet >= PING_AFTER and not pinged:
                connection.send(pack("PING"))
                pinged = True
            limit = DEAD_AFTER if pinged else PING_AFTER
            ready = poll.poll(max(0.0, limit - quiet) * 1000 + 1)
            if self._stop.is_set():
                raise _StopListening
            if any(fd == self._wake_reader.fileno() for fd, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
                self._subscribe_to_wanted(connection)
            while connection.readable(0):
                self._receive(connection)
                heard, pinged = monotonic(), False
                if self._stop.is_set():
                    raise _StopListening

    def _subscribe_to_wanted(self, connection: RawConnection) -> None:
        with self._lock:
            new, gone = sorted(self._wanted - self._asked), sorted(self._asked - self._wanted)
            self._asked = self._wanted
            self._unanswered.update(new)
            self._confirmed.difference_update(gone)
        if new:
            connection.send(pack("SUBSCRIBE", *new))
        if gone:
            connection.send(pack("UNSUBSCRIBE", *gone))

    def _answered(self, channel: str) -> bool:
        """Note one answer to SUBSCRIBE; True when the channel is confirmed by it."""
        with self._lock:
            self._unanswered[channel] -= 1
            if self._unanswered[channel] > 0:
                return False
            del self._unanswered[channel]
            if channel not in self._asked:
                return False
            self._confirmed.add(channel)
            return True

    def _receive(self, connection: RawConnection) -> None:
        """Read what is there, in bounded steps, and hand it over."""
        messages: list[tuple[str, bytes]] = []
        confirmed: set[str] = set()
        while len(messages) < MESSAGES_A_BATCH and connection.readable(0):
            reply = connection.read()
            if isinstance(reply, RedisError):
                raise reply
            kind = reply[0] if isinstance(reply, list) else b""
            if kind == b"message":
                messages.append((reply[1].decode(), reply[2]))
            elif kind == b"subscribe":
                channel = reply[1].decode()
                if self._answered(channel):
                    confirmed.add(channel)
        self.messages += len(messages)
        if messages or confirmed:
            while not self._room.acquire(timeout=1.0):
                if self._stop.is_set():
                    raise _StopListening
            self._owner.tell(partial(self._owner.received, messages, frozenset(confirmed)))


def _run_handler(handler: Callable[[], None]) -> None:
    """An exception that escapes here would end the whole trio run."""
    try:
        handler()
    except Exception:
        _log.exception("pubsub_handler_failed")


class PubSub:
    """The trio side. Use :func:`open_pubsub`."""

    def __init__(self, url: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._listener = _Listener(open_topology(url, reply_timeout=REPLY_TIMEOUT), self)
        self._wanted: Counter[str] = Counter()
        self._waiting: dict[str, trio.Event] = {}
        self._on_message: list[tuple[str, Callable[[str, bytes], None]]] = []
        self._on_reconnect: list[Callable[[], None]] = []
        self._ended = trio.Event()

    def start(self) -> None:
        self._listener.start()

    async def aclose(self) -> None:
        self._listener.stop()
        with trio.move_on_after(_CLOSE_GRACE, shield=True):
            await self._ended.wait()

    def on_message(self, prefix: str, handler: Callable[[str, bytes], None]) -> None:
        self._on_message.append((prefix, handler))

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        self._on_reconnect.append(handler)

    async def subscribe(self, *channels: str) -> None:
        """See :meth:`cluster.store.store.Store.subscribe`."""
        self._wanted.update(channels)
        live = self._listener.want(frozenset(self._wanted))
        missing = [self._waiting.setdefault(c, trio.Event()) for c in channels if c not in live]
        subscribed = False
        try:
            with trio.move_on_after(SUBSCRIBE_TIMEOUT):
                for event in missing:
                    await event.wait()
                subscribed = True
        finally:
            if not subscribed:
                self.unsubscribe(*channels)
        if not subscribed:
            reason = self._listener.last_error
            raise StoreUnavailable(f"Redis did not confirm the subscription in time: {reason or 'no answer'}")

    def unsubscribe(self, *channels: str) -> None:
        """See :meth:`cluster.store.store.Store.unsubscribe`."""
        self._wanted.subtract(channels)
        for channel in channels:
            if self._wanted[channel] <= 0:
                del self._wanted[channel]
                self._waiting.pop(channel, None)
        self._listener.want(frozenset(self._wanted))

    def statistics(self) -> PubSubStatistics:
        it = self._listener
        return PubSubStatistics(it.messages, it.connects, it.lost_connections, len(self._wanted))

    # -- called by the listener, run in the trio thread ------------------------------------------

    def tell(self, what: Callable[[], None]) -> None:
        """From the thread: run ``what`` in the trio thread, if that still exists."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(what)

    def ended(self) -> None:
        self._ended.set()

    def connected(self, confirmed: frozenset[str], again: bool) -> None:
        self._confirm(confirmed)
        if again:
            for handler in self._on_reconnect:
                _run_handler(handler)

    def received(self, messages: list[tuple[str, bytes]], confirmed: frozenset[str]) -> None:
        self._listener.processed()
        self._confirm(confirmed)
        for channel, message in messages:
            for prefix, handler in self._on_message:
                if channel.startswith(prefix):
                    _run_handler(partial(handler, channel, message))

    def _confirm(self, channels: frozenset[str]) -> None:
        for channel in channels:
            event = self._waiting.pop(channel, None)
            if event is not None:
                event.set()


@asynccontextmanager
async def open_pubsub(url: str) -> AsyncIterator[PubSub]:
    """Pub/sub on ``url``; its thread ends with the block. Connects in the background."""
    pubsub = PubSub(url)
    pubsub.start()
    try:
        yield pubsub
    finally:
        await pubsub.aclose()
