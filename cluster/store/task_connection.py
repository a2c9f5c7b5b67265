"""A connection for a trio task: redis-py opens it, then it waits without a thread.

A hop into a thread and back costs a wake and two switches of threads for every batch.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable
from math import inf
from typing import Any, Final

import hiredis
import trio
from redis.exceptions import ConnectionError, InvalidResponse, RedisError

from cluster.store.connection import RawConnection

READ_BYTES: Final = 64 * 1024
_MORE: Final = object()
_FULL: Final = (BlockingIOError, ssl.SSLWantWriteError)
_EMPTY: Final = (BlockingIOError, ssl.SSLWantReadError)


class TaskConnection:
    """An open :class:`RawConnection` that tasks use from now on: one reads, one sends, any may close it."""

    def __init__(self, raw: RawConnection, expect: Callable[[float], None]) -> None:
        """``expect(due)`` is told that :meth:`end_if_late` has to be called at that time (trio's clock)."""
        self._raw = raw
        self._expect = expect
        self._socket = raw.socket()
        self._socket.setblocking(False)
        self._seconds = raw.reply_seconds
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=raw.reply_error, notEnoughData=_MORE
        )
        self._arrived = select.poll()
        self._arrived.register(self._socket, select.POLLIN)
        self._why: RedisError | None = None
        """Not None: closed."""
        self._due = inf

    def close(self, why: str = "the connection is closed") -> None:
        """A task that waits for the connection gets an error that says ``why``."""
        if self._why is None:
            self._why = ConnectionError(why)
            trio.lowlevel.notify_closing(self._socket)
            self._raw.close()

    def usable(self) -> bool:
        """Whether it is open and nothing unexpected waits in it: notices a server that went away."""
        return self._why is None and not self._reader.has_data() and not self._arrived.poll(0)

    async def send(self, data: bytes) -> None:
        """Write packed commands. Raises one of BROKEN."""
        rest = memoryview(data)
        while True:
            self._check_open()
            try:
                rest = rest[self._socket.send(rest) :]
                if not rest:
                    return
                waits = trio.lowlevel.wait_writable
            except _FULL:
                waits = trio.lowlevel.wait_writable
            except ssl.SSLWantReadError:
                waits = trio.lowlevel.wait_readable
            await self._wait(waits)

    async def read(self) -> Any:
        """The next reply; an error reply is returned as redis-py's exception. Raises one of BROKEN."""
        while True:
            reply = self._reader.gets()
            if reply is not _MORE:
                return self._raw.replied(reply)
            await self._receive()

    async def _receive(self) -> None:
        # Only TLS keeps back what the kernel does not know of.
        waits = trio.lowlevel.wait_readable
        may_be_here = isinstance(self._socket, ssl.SSLSocket)
        while True:
            if not may_be_here:
                await self._wait(waits)
            may_be_here = False
            self._check_open()
            try:
                data = self._socket.recv(READ_BYTES)
            except _EMPTY:
                waits = trio.lowlevel.wait_readable
                continue
            except ssl.SSLWantWriteError:
                waits = trio.lowlevel.wait_writable
                continue
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
            return

    async def _wait(self, until_ready: Any) -> None:
        # A cancel scope for each wait would cost more than all else here.
        self._due = trio.current_time() + self._seconds
        self._expect(self._due)
        try:
            await until_ready(self._socket)
        except trio.ClosedResourceError:
            self._check_open()
        finally:
            self._due = inf

    def end_if_late(self, now: float) -> float:
        """Close the connection if its server has let us wait for too long at ``now`` (trio's clock). Returns
        when to look again.
        """
        if now < self._due:
            return self._due
        self.close("no answer in time")
        return inf

    def _check_open(self) -> None:
        if self._why is not None:
            raise self._why
