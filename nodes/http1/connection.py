"""One connection: a task that reads requests and a task that answers them, in order.

Reading goes on while a request is answered, so a client that leaves ends its parked poll at once. What
clients send ahead is bounded. Nothing is spawned for a request: its handler runs in the answering task,
and the deadline of what the client does next is a number that the reading task looks at only when an
earlier one has passed.

Once client and server are to speak another protocol, the socket is left to who speaks it, with what has
arrived of it and after all answers that were due before.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Final

import structlog
import trio

from cluster.errors import Refused
from nodes.api.limits import ListenerLimits
from nodes.api.messages import Answering, Response, Stream
from nodes.http1.answers import CONTINUE, Calendar, encode, piece
from nodes.http1.parser import Arrived, Broken, Handover, Item, Parser, Phase

READ_BYTES: Final = 64 * 1024

log = structlog.get_logger(__name__)


class Connection:
    """Serves the client at the other end of a socket that does not block; closes it in the end.

    ``address`` is the client's host. A connection ``for_workers`` is never left to another protocol.
    """

    def __init__(
        self,
        client: socket.socket,
        address: str,
        pipeline: Answering,
        limits: ListenerLimits,
        calendar: Calendar,
        is_leaving: Callable[[], bool],
        *,
        for_workers: bool,
    ) -> None:
        self._socket = client
        self._pipeline = pipeline
        self._limits = limits
        self._calendar = calendar
        self._is_leaving = is_leaving
        self._parser = Parser(limits, address, for_workers=for_workers)
        self._items: deque[Item] = deque()
        self._is_answering = False
        self._is_deaf = False
        """Nothing that still arrives is answered."""
        self._is_retired = False
        self._other: bytearray | None = None
        """What came of another protocol, once the client has asked for one."""
        self._is_handed_over = False
        self._ahead = 0
        self._room = trio.Event()
        self._parked: trio.lowlevel.Task | None = None
        self._all = trio.CancelScope()
        self._phase = Phase.BETWEEN
        self._since = 0.0
        self._had_answer = False
        self._due = inf
        self._patience = trio.CancelScope()

    async def run(self) -> bytes | None:
        """Until the connection ends, or is to go on in another protocol: then what came of that.

        Raises nothing but cancellation.
        """
        begun: bytes | None = None
        try:
            with self._all:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_all)
                    await self._read_all()
                    nursery.cancel_scope.cancel()
            if self._is_handed_over and self._other is not None:
                begun = bytes(self._other)
        except* Exception as broken:
            log.error("connection_broke", exc_info=broken)
        finally:
            self._parser.end()
            if begun is None:
                self._socket.close()
        return begun

    def retire(self) -> None:
        """The listener stops: end now when no request is on its way, else with the next answer."""
        self._is_retired = True
        self._patience.cancel()

    # -- reading ----------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Take what arrives until the client has left, or is late for too long."""
        self._expect_next(restart=True)
        while True:
            if self._is_retired and self._is_idle:
                # What has arrived already is answered: its client cannot know.
                data = self._receive()
                if not data:
                    return
                self._take(data)
            elif trio.current_time() >= self._due and not self._refuse_late():
                return
            with trio.CancelScope(deadline=self._due) as self._patience:
                await self._read_until_left()
                return

    async def _read_until_left(self) -> None:
        while True:
            if self._ahead > self._limits.ahead_bytes:
                await self._room.wait()
            await trio.lowlevel.wait_readable(self._socket)
            data = self._receive()
            if data:
                self._take(data)
            elif data is not None:
                return

    def _receive(self) -> bytes | None:
        """What is here: None when there is nothing yet, b"" when the client has left."""
        try:
            return self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _take(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._is_answering:
            self._ahead += len(data)
            if self._ahead > self._limits.ahead_bytes:
                self._room = trio.Event()
        if self._other is not None:
            self._other += data
            return
        self._items += self._parser.feed(data)
        if self._items:
            last = self._items[-1]
            if isinstance(last, Handover):
                self._other = bytearray(last.data)
            self._is_deaf = isinstance(last, Broken) or (isinstance(last, Arrived) and last.last)
            self._answer_soon()
        elif not self._is_answering:
            self._expect_next()

    @property
    def _is_idle(self) -> bool:
        return not (self._is_answering or self._is_deaf) and self._parser.phase is Phase.BETWEEN

    # -- how long to wait for the client ----------------------------------------------------

    def _expect_next(self, *, restart: bool = False) -> None:
        """Set the deadline of what the client has to send next; ``restart`` counts from now."""
        now, phase = trio.current_time(), self._parser.phase
        if restart or phase is not self._phase:
            self._phase, self._since = phase, now
        if phase is Phase.BODY:
            seconds = self._limits.body.allowed(self._parser.received)
        elif phase is Phase.HEAD or not self._had_answer:
            seconds = self._limits.header_seconds
        else:
            seconds = self._limits.idle_seconds
        self._set_due(self._since + seconds)

    def _set_due(self, due: float) -> None:
        self._due = due
        if due < self._patience.deadline:
            self._patience.deadline = due

    def _refuse_late(self) -> bool:
        """The client is late. False when nothing needs to be said about it."""
        if self._is_deaf or self._parser.phase is Phase.BETWEEN:
            return False
        part = "header" if self._parser.phase is Phase.HEAD else "body"
        refusal = Refused("request_timeout", f"The request {part} arrived too slowly.", status=408)
        self._items.append(Broken(self._parser.head, refusal))
        self._is_deaf = True
        self._answer_soon()
        return True

    # -- answering --------------------------------------------------------------------------

    def _answer_soon(self) -> None:
        self._due = inf
        self._is_answering = True
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _answer_all(self) -> None:
        """Answer what was taken, in order, until an answer is the last or cannot be sent."""
        while True:
            if self._items:
                await trio.lowlevel.checkpoint()
            else:
                await self._rest()
            item = self._items.popleft()
            if isinstance(item, Arrived):
                close = await self._answer(item)
            elif isinstance(item, Broken):
                response = self._pipeline.refuse(item.request, item.refusal)
                is_head = item.request.method == "HEAD"
                await self._send(self._encode(response, close=True, to_head=is_head))
                break
            elif isinstance(item, Handover):
                self._is_handed_over = True
                self._all.cancel()
                return
            else:
                close = not await self._send(CONTINUE)
            if close:
                break
        self._items.clear()
        self._is_deaf = True
        # Closing while the client still sends would take the answer away from it.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._set_due(trio.current_time() + self._limits.linger_seconds)

    async def _rest(self) -> None:
        """Wait for something to answer."""
        if self._is_answering:
            self._is_answering = False
            self._ahead = 0
            self._room.set()
            self._expect_next(restart=True)
            if self._is_retired:
                self._patience.cancel()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _answer(self, item: Arrived) -> bool:
        """Answer a request; whether that was the last answer here."""
        response = await self._pipeline.handle(item.request)
        close = item.last or self._is_retired or self._is_leaving()
        self._had_answer = True
        to_head = item.request.method == "HEAD"
        data = self._encode(response, close=close, to_head=to_head)
        if response.stream is not None and not to_head:
            return await self._send_stream(data, response.stream, close=close)
        if response.undelivered is None:
            is_delivered = await self._send(data)
            return close or not is_delivered
        is_delivered = False
        try:
            if not self._has_left():
                is_delivered = await self._send(data)
        finally:
            if not is_delivered:
                response.undelivered()
        return close or not is_delivered

    async def _send_stream(self, head: bytes, stream: Stream, *, close: bool) -> bool:
        """Send an answer while it is made; whether it was the last."""

        async def send(data: bytes) -> None:
            if data and not await self._send(data if close else piece(data)):
                await trio.sleep_forever()  # the connection has been cancelled

        if not await self._send(head):
            return True
        await stream(send)
        return close or not await self._send(piece(b""))

    def _encode(self, response: Response, *, close: bool, to_head: bool) -> bytes:
        return encode(response, self._calendar.line(time.time()), close=close, to_head=to_head)

    def _has_left(self) -> bool:
        """Whether the kernel knows that the client closed its end, though the reader does not yet."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def _send(self, data: bytes) -> bool:
        """Hand ``data`` to the network; False, and the connection ends, when it was not all taken."""
        try:
            rest = memoryview(data)[self._send_now(data) :]
            if not rest:
                return True
            with trio.move_on_after(self._limits.send_seconds):
                while rest:
                    await trio.lowlevel.wait_writable(self._socket)
                    rest = rest[self._send_now(rest) :]
                return True
        except OSError:
            pass
        self._all.cancel()
        return False

    def _send_now(self, data: bytes | memoryview) -> int:
        """How much the network takes without waiting. Raises OSError when it is broken."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
