"""Pages, files and refusals of the console, without a browser."""

from __future__ import annotations

import re

import pytest

from cluster.errors import Refused, StoreUnavailable
from nodes.console.assets import ASSETS
from nodes.console.rendering import POLICY
from tests.unit.console.conftest import TOKENS, OpenBrowser


async def test_every_page_says_what_it_may_load(open_browser: OpenBrowser) -> None:
    browser = await open_browser()
    for address in ("workflows", "login", "nowhere", "static/x/nothing.js"):
        page = await browser.get(address)
        if (
            page.header(
                b"content-type",
            )
            == b"text/html; charset=utf-8"
        ):
            assert page.header(b"content-security-policy") == POLICY.encode()
            assert page.header(b"cache-control") == b"no-store"
            assert page.header(b"x-content-type-options") == b"nosniff"
            text = page.body.decode()
            assert not re.search(r"<script(?! src)|<style| style=| on[a-z]+=|javascript:", text)
            assert "http://" not in text
            assert "https://" not in text


async def test_links_are_relative(open_browser: OpenBrowser) -> None:
    browser = await open_browser()
    page = (await browser.get("workflows")).body.decode()

    links = re.findall(r'(?:href|src|action|data-live)="([^"]*)"', page)

    assert links
    assert not [link for link in links if link.startswith("/") or ":" in link]


async def test_files_are_kept_for_ever_under_their_hash(open_browser: OpenBrowser) -> None:
    browser = await open_browser(auth_driver="token", **TOKENS)
    for name, asset in ASSETS.items():
        found = await browser.get(asset.path)
        assert found.status == 200
        assert found.header(b"cache-control") == b"public, max-age=31536000, immutable"
        tag = (found.header(b"etag") or b"").decode()
        again = await browser.get(asset.path, if_none_match=tag)
        assert (again.status, again.body) == (304, b"")
        old = await browser.get(f"static/0123456789abcdef/{name}")
        assert (old.status, old.header(b"cache-control")) == (200, b"no-cache")
    for path in ("static/x/../x", "static/x/%2e%2e%2fdoor.py", "static/x/door.py", "static/x"):
        assert (await browser.get(path)).status in (404, 303)


async def test_unknown_pages_and_methods(open_browser: OpenBrowser) -> None:
    browser = await open_browser()

    assert (await browser.get("nowhere")).status == 404
    assert (await browser.get("a/b/c")).status == 404
    assert (await browser.get("%ff")).status == 400
    assert (await browser.send("PUT", "workflows")).status == 405
    assert (await browser.post("workflows")).status == 404
    assert (await browser.post("do", action="format-disk")).status == 404
    head = await browser.send("HEAD", "workflows")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (StoreUnavailable("gone"), 503, "heals by itself"),
        (Refused("namespace_not_found", "No such namespace.", status=404), 404, "Choose another namespace"),
        (ZeroDivisionError("secret payload"), 500, "Look into the log"),
    ],
)
async def test_what_goes_wrong_is_a_page_that_helps(
    open_browser: OpenBrowser, error: Exception, status: int, text: str
) -> None:
    browser = await open_browser()
    browser.node.engine.answers["list_runs"] = error

    page = await browser.get("workflows")

    assert page.status == status
    assert text in page.body.decode()
    assert b"secret payload" not in page.body


async def test_an_unknown_namespace_is_a_page(open_browser: OpenBrowser) -> None:
    page = await (await open_browser()).get("workflows?namespace=<b>")

    assert page.status == 404
    assert b"&lt;b&gt;" in page.body
    assert b"<b>" not in page.body


async def test_without_a_store_nobody_is_known(open_browser: OpenBrowser) -> None:
    browser = await open_browser()
    browser.node.store.failure = StoreUnavailable("gone")

    assert (await browser.get("workflows")).status == 503
