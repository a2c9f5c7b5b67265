"""HTTP/1.1 of the main port: h11, and not all that hypercorn would do around it.

No upgrade to h2c: a proxy that passes the Upgrade header on becomes a tunnel then, and whatever it decides
about requests (who may see which path, which namespace a client gets) is passed by (CWE-444). Who wants
HTTP/2 says so with its first bytes. What h11 refuses is answered like every other refusal, with a reason.
The header of an answer goes out with the body: a packet, and a turn of the event loop, less.
"""

from __future__ import annotations

from typing import Any, Final

import h11
import orjson
from hypercorn.events import RawData
from hypercorn.protocol.h11 import H11Protocol

_REASONS: Final = {
    431: ("header_too_large", "The request's header is too large."),
    501: ("malformed_request", "No transfer coding but chunked is accepted."),
}
_MALFORMED: Final = ("malformed_request", "The request is not valid HTTP/1.1.")


class Hearing(h11.Connection):
    """Lets no answer be cut short by what a client may not send: more than its last request, or nonsense."""

    def next_event(self) -> Any:
        if self.their_state is h11.MUST_CLOSE:
            return h11.NEED_DATA
        try:
            return super().next_event()
        except h11.RemoteProtocolError:
            if self.our_state is h11.SEND_BODY:
                return h11.NEED_DATA
            raise


class StrictH11(H11Protocol):
    """Serves one HTTP/1.1 connection."""

    _held = b""
    """The header of an answer of known length, whose body or end follows at once."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.connection = Hearing(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.method == b"PRI" and not event.headers:
            await super()._check_protocol(event)

    async def _send_h11_event(self, event: Any) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        data = self._held + (data or b"")
        self._held = b""
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._held = data
        elif data:
            await self.send(RawData(data=data))

    async def _send_error_response(self, status_code: int) -> None:
        reason, message = _REASONS.get(status_code, _MALFORMED)
        body = orjson.dumps({"reason": reason, "message": message})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        answer = h11.Response(status_code=status_code, headers=headers)
        parts = [self.connection.send(part) for part in (answer, h11.Data(data=body), h11.EndOfMessage())]
        await self.send(RawData(data=b"".join(part for part in parts if part)))
