"""Who looks at one namespace in the console cannot tell another tenant's ids from ids that never were."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, urlencode

import pytest

from nodes.api.messages import Answering, Request
from nodes.api.metrics import Metrics
from nodes.api.pipeline import Pipeline
from nodes.console.actions import ACTIONS, Action
from nodes.console.front import open_console
from nodes.console.pages import PAGES
from nodes.node import Node
from tests.api.test_tenants import Ids, begin, everything, never_were
from tests.unit.api.fakes import Client

KINDS = ("workflow_id", "activity_id", "flow_id", "worker_id", "schedule_id", "task_queue", "name")
"""What the ``id`` or the ``name`` in the address of a page may be."""
ABOUT_ONE = [page.name for page in PAGES.values() if page.name != page.section]
"""Pages about one thing; the others are lists and read no id."""
ABOUT_IDS = [action for action in ACTIONS.values() if any(part.endswith("_id") for part in action.path)]
FILLED = {"signal_name": "s", "update_name": "u", "query_name": "q", "note": "taken", "reason": "r"}


class Browser:
    """Looks at pages of the rival's namespace, and fills in their forms."""

    def __init__(self, front: Answering) -> None:
        self._front = front
        self._cookies: dict[str, str] = {}

    async def send(self, method: str, page: str, query: str = "", form: bytes = b"") -> tuple[int, str]:
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        headers = [(b"cookie", cookie.encode())] if cookie else []
        if method == "POST":
            headers.append((b"content-type", b"application/x-www-form-urlencoded"))
        path = f"/console/{page}".encode()
        response = await self._front.handle(Request(method, path, query.encode(), tuple(headers), form))
        for name, value in response.headers:
            if name == b"set-cookie":
                key, _, text = value.decode().partition(";")[0].partition("=")
                self._cookies[key] = text
        where = dict(response.headers).get(b"location", b"").decode()
        return response.status, f"{where}\n{response.body.decode()}"

    async def look(self, page: str, given: Mapping[str, str]) -> tuple[int, str]:
        return await self.send("GET", page, urlencode({"namespace": "rival", **given}))

    async def do(self, action: str, given: Mapping[str, str]) -> tuple[int, str]:
        _, page = await self.send("GET", "login")
        found = re.search(r'name="token" value="([0-9a-f]{64})"', page)
        assert found, page
        form = {"token": found[1], "scope": "rival", "action": action, **given}
        return await self.send("POST", "do", form=urlencode(form).encode())


@pytest.fixture
def browser(node: Node) -> Browser:
    metrics = Metrics(node)
    return Browser(open_console(node, Pipeline(node, metrics), metrics)[0])


def _shape(answer: tuple[int, str], ids: Ids) -> tuple[int, str]:
    """An answer without the ids that were asked for, and without times and one-time values."""
    status, text = answer
    for value in sorted(ids.known.values(), key=len, reverse=True):
        if len(value) > 1:
            written = {value, html.escape(value), quote(value), quote_plus(value)}
            for one in written:
                text = re.sub(rf"(?<![\w-]){re.escape(one)}(?![\w-])", "ID", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "TOKEN", text)
    text = re.sub(r"\b\d+ (?:ms|s)\b", "SPAN", text)
    return status, re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|\+00:00)?", "TIME", text)


async def test_pages_show_ids_of_another_tenant_as_ids_that_never_were(
    node: Node, client: Client, browser: Browser
) -> None:
    ids = await begin(client)
    nobody = never_were(ids, node)

    async def look(page: str, kind: str, of: Ids) -> tuple[int, str]:
        known = of.known
        given = {"id": known[kind], "name": known[kind], "run": known["run_id"], "task": known["task_id"]}
        return _shape(await browser.look(page, given), of)

    told = []
    await browser.look("", {})
    for page in ABOUT_ONE:
        for kind in KINDS:
            stolen, unknown = await look(page, kind, ids), await look(page, kind, nobody)
            assert stolen[0] in (200, 404), (page, kind, stolen)
            if stolen != unknown:
                told.append((page, kind, stolen, unknown))
    assert not told, "\n".join(map(str, told))


async def test_forms_treat_ids_of_another_tenant_as_ids_that_never_were(
    node: Node, client: Client, browser: Browser
) -> None:
    ids = await begin(client)
    nobody = never_were(ids, node)
    before = await everything(client, ids)

    async def do(action: Action, of: Ids) -> tuple[int, str]:
        given = {field.name: FILLED.get(field.name, "") for field in action.fields}
        return _shape(await browser.do(action.name, {**given, **of.known}), of)

    assert ABOUT_IDS
    for action in ABOUT_IDS:
        stolen = await do(action, ids)
        assert stolen == await do(action, nobody), action.name
        assert stolen[0] in (200, 303, 404, 409, 422), (action.name, stolen)
    assert await everything(client, ids) == before
