"""Live updates: what is sent when, and when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from cluster.workflows.visibility import RunPage
from nodes.api.messages import Request, Response
from nodes.console import live
from nodes.console.live import Watchers
from tests.unit.console.conftest import TOKENS, Browser, OpenBrowser
from tests.waiting import eventually


@dataclass
class Watching:
    """One connection, from the browser's end."""

    cookies: dict[str, str]
    query: str = "page=workflows"
    text: str = ""
    over: bool = False
    _response: Response | None = None
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self, watchers: Watchers) -> None:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items()).encode()
        headers = [(b"cookie", cookie)] if cookie else []
        with self._scope:
            self._response = await watchers.handle(Request("GET", live.PATH, self.query.encode(), headers))
            if self._response.stream is not None:
                await self._response.stream(self._send)
        self.over = True

    def leave(self) -> None:
        self._scope.cancel()

    @property
    def status(self) -> int | None:
        return self._response.status if self._response else None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        assert self._response is not None
        return self._response.headers

    async def _send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.text += data.decode()


@pytest.fixture
async def browser(open_browser: OpenBrowser) -> Browser:
    opened = await open_browser(auth_driver="token", **TOKENS)
    await opened.log_in("o-secret")
    return opened


@asynccontextmanager
async def watching(browser: Browser, **more: Any) -> AsyncIterator[tuple[Watchers, Watching]]:
    watchers = Watchers(browser.console, look_seconds=0.01)
    tab = Watching(browser.cookies, **more)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tab.run, watchers)
        yield watchers, tab
        nursery.cancel_scope.cancel()


async def test_the_changing_part_comes_once_and_again_when_it_changes(browser: Browser) -> None:
    async with watching(browser) as (_, tab):
        await eventually(lambda: tab.text.count(": still here") > 3)
        assert tab.text.count("event: part") == 1
        assert "No workflows here." in tab.text
        assert "<h1>" not in tab.text
        browser.node.engine.answers["list_runs"] = RunPage([], "more")
        await eventually(lambda: tab.text.count("event: part") == 2)
        assert "Next page" in tab.text
    assert tab.status == 200
    assert (b"content-type", b"text/event-stream") in tab.headers


async def test_who_leaves_is_forgotten(browser: Browser) -> None:
    async with watching(browser) as (watchers, tab):
        await eventually(lambda: watchers.count == 1)
        tab.leave()
        await eventually(lambda: tab.over)
        assert watchers.count == 0


async def test_a_leaving_node_ends_them_all(browser: Browser) -> None:
    async with watching(browser) as (watchers, tab):
        await eventually(lambda: "event: part" in tab.text)
        watchers.close()
        await eventually(lambda: tab.over)
        assert watchers.count == 0
        late = Watching(browser.cookies)
        await late.run(watchers)
        assert late.status == 503


async def test_there_are_only_so_many(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_WATCHERS", 1)
    async with watching(browser) as (watchers, tab):
        await eventually(lambda: watchers.count == 1)
        late = Watching(browser.cookies)
        await late.run(watchers)
        assert late.status == 503
        assert (b"retry-after", b"10") in late.headers
        tab.leave()
        await eventually(lambda: watchers.count == 0)


async def test_it_does_not_last_for_ever(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WATCH_SECONDS", 0.02)
    async with watching(browser) as (_, tab):
        await eventually(lambda: tab.over)
    assert tab.status == 200


async def test_a_session_that_is_over_is_told(browser: Browser, open_browser: OpenBrowser) -> None:
    async with watching(browser) as (_, tab):
        await eventually(lambda: "event: part" in tab.text)
        rotated = await open_browser(browser.node, auth_driver="token", **{**TOKENS, "operator_token": "new"})
        browser.console._sessions = rotated.console._sessions
        await eventually(lambda: tab.over)
    assert "event: over" in tab.text


@pytest.mark.parametrize("query", ["page=nowhere", "page=login", "page=event", "page=%ff"])
async def test_there_is_nothing_else_to_watch(browser: Browser, query: str) -> None:
    tab = Watching(browser.cookies, query)
    await tab.run(Watchers(browser.console))
    assert (tab.status, tab.text) == (204, "")


async def test_nobody_watches_without_logging_in(browser: Browser) -> None:
    tab = Watching({})
    await tab.run(Watchers(browser.console))
    assert tab.status == 204


async def test_a_refused_look_keeps_what_was_there(browser: Browser) -> None:
    async with watching(browser) as (_, tab):
        await eventually(lambda: "event: part" in tab.text)
        browser.node.engine.answers["list_runs"] = ZeroDivisionError()
        await eventually(lambda: tab.text.count(": still here") > 3)
        assert tab.text.count("event: part") == 1
