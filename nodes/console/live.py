"""Live updates: the changing part of a page, sent again whenever it is another (server-sent events).

One connection costs one reading of its page every few seconds, and nothing is kept when it ends. There
are at most MOST_WATCHERS of them on a node, each for at most WATCH_SECONDS; browsers come back by
themselves, perhaps to another node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio

from cluster.errors import Refused, StoreError
from nodes.api.messages import Request
from nodes.api.paths import parse_query
from nodes.api.serving import Asgi
from nodes.console import frame, rendering
from nodes.console.access import ApiRefusal
from nodes.console.door import Console, report
from nodes.console.pages import PAGES, Page
from nodes.console.visits import Visit

PATH: Final = "/console/live"
MOST_WATCHERS: Final = 64
WATCH_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 3.0
RETRY_MS: Final = 3000
"""When a browser comes back after the end."""
RETRY_BUSY_SECONDS: Final = 10

log = structlog.get_logger(__name__)

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Watchers:
    """Everybody who watches pages of this node."""

    def __init__(self, console: Console, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._console = console
        self._look_seconds = look_seconds
        self._scopes: set[trio.CancelScope] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        return len(self._scopes)

    def close(self) -> None:
        """End all of them, and let nobody in any more."""
        self._is_closed = True
        for scope in self._scopes:
            scope.cancel()

    def beside(self, app: Asgi) -> Asgi:
        """``app``, with this beside it."""

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "GET":
                await self._serve(scope, receive, send)
            else:
                await app(scope, receive, send)

        return serve

    async def _serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        request = Request("GET", PATH.encode(), scope["query_string"], tuple(scope["headers"]))
        if self._is_closed or len(self._scopes) >= MOST_WATCHERS:
            await _refuse(send, 503)
            return
        has_begun = False

        async def send_on(message: dict[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        with trio.CancelScope() as watching:
            self._scopes.add(watching)
            try:
                await self._admit(request, receive, send_on)
            finally:
                self._scopes.discard(watching)
        if watching.cancelled_caught:
            if has_begun:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await _refuse(send, 503)

    async def _admit(self, request: Request, receive: Receive, send: Send) -> None:
        try:
            query = dict(parse_query(request.query_string))
            session = await self._console.session_of(request)
            name = query.pop("page", "")
            page = PAGES.get("" if name == "overview" else name)
            if page is None or not rendering.has_fragment(page.template):
                raise Refused("not_found", "There is no such page.", status=404)
            visit = self._console.visit(request, page.name, query, session)
        except StoreError:
            await _refuse(send, 503)
            return
        except Refused:
            # A browser that gets 204 does not come back.
            await _refuse(send, 204)
            return
        headers = [(b"content-type", b"text/event-stream"), *rendering.HEADERS, (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_disconnect, receive, nursery.cancel_scope)
            with trio.move_on_after(WATCH_SECONDS):
                await self._watch(page, visit, request, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()

    async def _watch(self, page: Page, visit: Visit, request: Request, send: Send) -> None:
        sent = ""
        await send(_event("", f"retry: {RETRY_MS}\n"))
        while True:
            try:
                found = await page.look(visit)
                text = rendering.fragment(page.template, frame.variables(page, visit, found))
            except (ApiRefusal, Refused, StoreError):
                # The page itself says it better; until then the reader keeps what they have.
                text = sent
            except Exception as error:
                report(page.name, error)
                return
            if text != sent:
                await send(_event(text, "event: part\n"))
                sent = text
            else:
                await send(_event("", ": still here\n"))
            await trio.sleep(self._look_seconds)
            session = await self._console.session_of(request)
            if session.principal != visit.principal:
                await send(_event("log in", "event: over\n"))
                return


def _event(data: str, head: str) -> dict[str, Any]:
    lines = "".join(f"data: {line}\n" for line in data.splitlines()) if data else ""
    return {"type": "http.response.body", "body": f"{head}{lines}\n".encode(), "more_body": True}


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), *rendering.HEADERS]
    if status == 503:
        headers.append((b"retry-after", str(RETRY_BUSY_SECONDS).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
