"""Live updates: the changing part of a page, sent again whenever it is another (server-sent events).

One connection costs one reading of its page every few seconds, and nothing is kept when it ends. There
are at most MOST_WATCHERS of them on a node, each for at most WATCH_SECONDS; browsers come back by
themselves, perhaps to another node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import trio

from cluster.errors import Refused, StoreError
from nodes.api.messages import Request, Response
from nodes.api.paths import parse_query
from nodes.console import frame, rendering
from nodes.console.access import ApiRefusal
from nodes.console.door import Console, report
from nodes.console.pages import PAGES, Page
from nodes.console.visits import Visit

PATH: Final = b"/console/live"
MOST_WATCHERS: Final = 64
WATCH_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 3.0
RETRY_MS: Final = 3000
"""When a browser comes back after the end."""
RETRY_BUSY_SECONDS: Final = 10

log = structlog.get_logger(__name__)

Send = Callable[[bytes], Awaitable[None]]


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

    async def handle(self, request: Request) -> Response:
        """The response to a browser that wants to watch a page. Raises nothing but cancellation."""
        with self._counted() as watching:
            if watching is not None:
                return await self._admit(request)
        return _refusal(503)

    @contextmanager
    def _counted(self) -> Iterator[trio.CancelScope | None]:
        """As one of those who watch, until all end; None where nobody may."""
        if self._is_closed or len(self._scopes) >= MOST_WATCHERS:
            yield None
            return
        with trio.CancelScope() as watching:
            self._scopes.add(watching)
            try:
                yield watching
            finally:
                self._scopes.discard(watching)

    async def _admit(self, request: Request) -> Response:
        try:
            query = dict(parse_query(request.query_string))
            session = await self._console.session_of(request)
            name = query.pop("page", "")
            page = PAGES.get("" if name == "overview" else name)
            if page is None or not rendering.has_fragment(page.template):
                raise Refused("not_found", "There is no such page.", status=404)
            visit = self._console.visit(request, page.name, query, session)
        except StoreError:
            return _refusal(503)
        except Refused:
            # A browser that gets 204 does not come back.
            return _refusal(204)
        headers = [(b"content-type", b"text/event-stream"), *rendering.HEADERS, (b"x-accel-buffering", b"no")]

        async def stream(send: Send) -> None:
            with self._counted() as watching, trio.move_on_after(WATCH_SECONDS):
                if watching is not None:
                    await self._watch(page, visit, request, send)

        return Response(200, headers, stream=stream)

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
            try:
                session = await self._console.session_of(request)
            except StoreError:
                return  # the browser asks again
            if session.principal != visit.principal:
                await send(_event("log in", "event: over\n"))
                return


def _event(data: str, head: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in data.splitlines()) if data else ""
    return f"{head}{lines}\n".encode()


def _refusal(status: int) -> Response:
    response = Response(status, list(rendering.HEADERS))
    if status == 503:
        response.headers.append((b"retry-after", str(RETRY_BUSY_SECONDS).encode()))
    return response
