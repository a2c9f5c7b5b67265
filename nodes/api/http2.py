"""HTTP/2 of the main port: what a client may do that costs this side more than itself is counted.

A stream that is opened and reset costs a request and holds no place among the concurrent ones
(CVE-2023-44487), and so does one that the client makes this side reset (CVE-2025-8671). PING and SETTINGS
want an answer each; an empty DATA frame moves nothing. Each connection may do so much of it, and is told to
calm down and closed beyond. Priorities of streams, which RFC 9113 took back, are not heard: hypercorn keeps
a tree of them that a client could fill.
"""

from __future__ import annotations

from typing import Any, Final

import h2.errors
import h2.events
import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h2 import H2Protocol

from nodes.api.allowance import SIGNALS, SIGNALS_PER_SECOND, Allowance

RESETS: Final = 500
"""As many streams as may be open at once end in one moment when a proxy's clients leave, a few times."""

RESETS_PER_SECOND: Final = 50.0

_LENGTH_BYTES: Final = 3
_SIGNALS: Final = (h2.events.PingReceived, h2.events.RemoteSettingsChanged)


class PatientH2(H2Protocol):
    """Serves one HTTP/2 connection. Lets a client send on after its request was answered."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        now = trio.current_time()
        self._resets = Allowance(RESETS, RESETS_PER_SECOND, now)
        self._signals = Allowance(SIGNALS, SIGNALS_PER_SECOND, now)

    async def handle(self, event: Event) -> None:
        await super().handle(event)
        if isinstance(event, RawData) and not self.closed and self._announces_too_much():
            await self._end(h2.errors.ErrorCodes.FRAME_SIZE_ERROR)

    def _announces_too_much(self) -> bool:
        """Whether the frame that is arriving is too large; h2 itself notices once all of it is kept."""
        kept = self.connection.incoming_buffer._data
        announced = int.from_bytes(kept[:_LENGTH_BYTES], "big") if len(kept) >= _LENGTH_BYTES else 0
        return announced > self.connection.max_inbound_frame_size

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if not self._may(event):
                await self._end(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                return
            if isinstance(event, h2.events.PriorityUpdated):
                continue
            if isinstance(event, h2.events.RequestReceived) and not _is_request(event):
                self.connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
                await self._flush()
            elif isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                # Given back at once: the window belongs to the other streams of the connection too.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._flush()
            else:
                await super()._handle_events([event])

    def _may(self, event: h2.events.Event) -> bool:
        if isinstance(event, h2.events.StreamReset) or (
            isinstance(event, h2.events.RequestReceived) and not _is_request(event)
        ):
            return self._resets.spend(trio.current_time())
        is_empty = isinstance(event, h2.events.DataReceived) and not event.data and not event.stream_ended
        if is_empty or isinstance(event, _SIGNALS):
            return self._signals.spend(trio.current_time())
        return True

    async def _end(self, code: h2.errors.ErrorCodes) -> None:
        self.connection.close_connection(code)
        await self._flush()
        await self.send(Closed())


def _is_request(event: h2.events.RequestReceived) -> bool:
    """Whether hypercorn can read the head: it takes some of what h2 lets through for granted."""
    head = dict(event.headers)
    method, path = head.get(b":method", b""), head.get(b":path", b"")
    if method == b"CONNECT" and head.get(b":protocol") != b"websocket":
        return False
    return method.isascii() and path.isascii() and path.startswith(b"/")
