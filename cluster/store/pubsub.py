"""Pub/sub: one connection of its own, and a task that takes messages to their handlers.

A PING after each quiet PING_AFTER seconds notices a connection that leads nowhere; after a reconnect
everything wanted is subscribed again *before* the reconnect handlers run, so what they read afterwards
is not stale. A reader that stays too slow is cut off by Redis and comes back through a reconnect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio
from redis.exceptions import RedisError

from cluster.errors import StoreUnavailable
from cluster.store.connection import BROKEN, RawConnection, pack, pause
from cluster.store.nurseries import plain_nursery
from cluster.store.task_connection import TaskConnection
from cluster.store.topology import open_topology

PING_AFTER: Final = 2.5  # seconds without a byte
DEAD_AFTER: Final = 8.0
SUBSCRIBE_TIMEOUT: Final = 5.0
REPLY_TIMEOUT: Final = 5.0
MESSAGES_A_BATCH: Final = 500
"""So many messages in a row, then others get a turn."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PubSubStatistics:
    """Counts since the start; ``channels`` is the present number of wanted channels."""

    messages: int
    connects: int
    lost_connections: int
    channels: int


class PubSub:
    """Use :func:`open_pubsub`."""

    def __init__(self, url: str) -> None:
        self._topology = open_topology(url, reply_timeout=REPLY_TIMEOUT)
        self._wanted: Counter[str] = Counter()
        self._waiting: dict[str, trio.Event] = {}
        self._on_message: list[tuple[str, Callable[[str, bytes], None]]] = []
        self._on_reconnect: list[Callable[[], None]] = []
        # A channel counts as confirmed only when no SUBSCRIBE for it is still unanswered, so an old
        # answer cannot confirm a newer request.
        self._asked: frozenset[str] = frozenset()
        self._unanswered: Counter[str] = Counter()
        self._confirmed: set[str] = set()
        self._changed = trio.Event()
        self._heard = 0.0
        self._established = self._ping_due = False
        self._scope = trio.CancelScope(shield=True)
        self._last_error = ""
        self._messages = self._connects = self._lost_connections = 0

    # -- what is wanted -------------------------------------------------------------------------

    def on_message(self, prefix: str, handler: Callable[[str, bytes], None]) -> None:
        self._on_message.append((prefix, handler))

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        self._on_reconnect.append(handler)

    async def subscribe(self, *channels: str) -> None:
        """See :meth:`cluster.store.store.Store.subscribe`."""
        self._wanted.update(channels)
        self._changed.set()
        missing = [self._waiting.setdefault(c, trio.Event()) for c in channels if c not in self._confirmed]
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
            reason = self._last_error
            raise StoreUnavailable(f"Redis did not confirm the subscription in time: {reason or 'no answer'}")

    def unsubscribe(self, *channels: str) -> None:
        """See :meth:`cluster.store.store.Store.unsubscribe`."""
        self._wanted.subtract(channels)
        for channel in channels:
            if self._wanted[channel] <= 0:
                del self._wanted[channel]
                self._waiting.pop(channel, None)
        self._changed.set()

    def statistics(self) -> PubSubStatistics:
        return PubSubStatistics(self._messages, self._connects, self._lost_connections, len(self._wanted))

    # -- the task -------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Keep a connection subscribed to what is wanted, until :meth:`close`."""
        with self._scope:
            failures = 0
            while True:
                before = self._connects
                try:
                    await self._session()
                except BROKEN as error:
                    if str(error) != self._last_error:
                        # Said once, not at each of the tries that follow while Redis is away.
                        _log.warning("pubsub_broke", server=self._topology.label, error=str(error))
                    self._last_error = str(error)
                except Exception as error:  # without this task the node would go deaf unnoticed
                    self._last_error = f"internal error: {error!r}"
                    with suppress(Exception):  # what the program logs with may fail too
                        _log.exception("pubsub_failed")
                failures = 0 if self._connects > before else failures + 1
                await trio.sleep(pause(failures))

    def close(self) -> None:
        """Listen no longer."""
        self._scope.cancel()

    async def _session(self) -> None:
        """One connection, from connect to its loss (which raises)."""
        raw = await trio.to_thread.run_sync(self._connect, abandon_on_cancel=True)
        # Silence is no fault of a server that has nothing to say: `_look_after` judges it.
        connection = TaskConnection(raw, lambda due: None)
        self._heard = trio.current_time()
        self._established = self._ping_due = False
        try:
            async with plain_nursery() as nursery:
                nursery.start_soon(self._talk, connection, self._news())
                nursery.start_soon(self._look_after, connection)
                await self._listen(connection)
        except Exception:
            self._lost_connections += self._established
            raise
        finally:
            self._asked = frozenset()
            self._unanswered.clear()
            self._confirmed.clear()
            connection.close()

    def _connect(self) -> RawConnection:
        """Runs in a thread."""
        self._topology.forget()
        connection = self._topology.connection(self._topology.nodes()[0])
        connection.open()
        return connection

    async def _talk(self, connection: TaskConnection, news: bytes) -> None:
        """Send ``news``, and more whenever there is some. Nobody else sends."""
        while True:
            try:
                if news:
                    await connection.send(news)
            except BROKEN as error:
                connection.close(str(error))  # which the reader notices
                return
            await self._changed.wait()
            news = self._news()

    def _news(self) -> bytes:
        """What makes the server know what is wanted by now, and nothing else."""
        self._changed = trio.Event()
        wanted = frozenset(self._wanted)
        new, gone = sorted(wanted - self._asked), sorted(self._asked - wanted)
        self._asked = wanted
        self._unanswered.update(new)
        self._confirmed.difference_update(gone)
        commands = [
            pack(verb, *names) for verb, names in (("SUBSCRIBE", new), ("UNSUBSCRIBE", gone)) if names
        ]
        if self._ping_due:
            self._ping_due = False
            commands.append(pack("PING"))
        return b"".join(commands)

    async def _look_after(self, connection: TaskConnection) -> None:
        """Have a server pinged that says nothing, and give up one that stays silent. Waits for no server."""
        began, pinged = self._heard, 0.0
        while True:
            now = trio.current_time()
            if now >= self._heard + DEAD_AFTER:
                connection.close(f"nothing heard for {DEAD_AFTER} s")
                return
            if not self._established and now >= began + REPLY_TIMEOUT:
                connection.close("subscriptions were not confirmed in time")
                return
            if now >= self._heard + PING_AFTER and pinged <= self._heard:
                pinged, self._ping_due = now, True
                self._changed.set()
            limit = DEAD_AFTER if pinged > self._heard else PING_AFTER
            due = self._heard + limit
            await trio.sleep_until(due if self._established else min(due, began + REPLY_TIMEOUT))

    async def _listen(self, connection: TaskConnection) -> None:
        replies = 0
        while True:
            if not self._established and not self._unanswered:
                self._connected()
            reply = await connection.read()
            self._heard = trio.current_time()
            replies += 1
            if replies % MESSAGES_A_BATCH == 0:
                await trio.lowlevel.checkpoint()
            self._take(reply)

    def _connected(self) -> None:
        """All that was wanted when the connection was made is subscribed."""
        self._established = True
        self._connects += 1
        self._last_error = ""
        if self._connects > 1:
            for handler in self._on_reconnect:
                _run_handler(handler)

    def _take(self, reply: Any) -> None:
        if isinstance(reply, RedisError):
            raise reply
        kind = reply[0] if isinstance(reply, list) else b""
        if kind == b"message":
            self._messages += 1
            channel = reply[1].decode()
            for prefix, handler in self._on_message:
                if channel.startswith(prefix):
                    _run_handler(handler, channel, reply[2])
        elif kind == b"subscribe":
            self._answered(reply[1].decode())

    def _answered(self, channel: str) -> None:
        """Note one answer to SUBSCRIBE; whoever waits for the channel goes on when it is confirmed by it."""
        self._unanswered[channel] -= 1
        if self._unanswered[channel] > 0:
            return
        del self._unanswered[channel]
        if channel in self._asked:
            self._confirmed.add(channel)
            event = self._waiting.pop(channel, None)
            if event is not None:
                event.set()


def _run_handler(handler: Callable[..., None], *arguments: Any) -> None:
    """An exception that escapes here would end the connection for all."""
    try:
        handler(*arguments)
    except Exception:
        _log.exception("pubsub_handler_failed")


@asynccontextmanager
async def open_pubsub(url: str) -> AsyncIterator[PubSub]:
    """Pub/sub on ``url``; its task ends with the block. Connects in the background."""
    pubsub = PubSub(url)
    async with plain_nursery() as nursery:
        nursery.start_soon(pubsub.run)
        try:
            yield pubsub
        finally:
            pubsub.close()
