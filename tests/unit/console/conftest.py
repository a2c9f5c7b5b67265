from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from cluster.pulse import Pulse, Sample
from cluster.shared_secret import SharedSecret
from cluster.workflows.visibility import RunPage
from nodes.api.messages import Request, Response
from nodes.api.ports import NodePort
from nodes.console.door import Console
from nodes.console.sessions import Sessions
from tests.unit.api.conftest import OpenClient
from tests.unit.api.conftest import open_client as open_client
from tests.unit.api.fakes import FakeNode

TOKENS = {"worker_token": "w-secret", "operator_token": "o-secret", "admin_token": "a-secret"}


async def _no_samples(_namespace: str) -> list[Sample]:
    return []


@dataclass
class Browser:
    """Sends what a browser would, and keeps its cookies."""

    node: FakeNode
    console: Console
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    async def send(
        self, method: str, address: str, form: Mapping[str, str] | None = None, **headers: str
    ) -> Response:
        path, _, query = address.partition("?")
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if form is not None:
            given.setdefault("content-type", "application/x-www-form-urlencoded")
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        pairs = tuple((name.encode(), value.encode()) for name, value in given.items())
        body = urlencode(form or {}).encode()
        response = await self.console.handle(
            Request(method, f"/console/{path}".encode(), query.encode(), pairs, body)
        )
        for name, value in response.headers:
            if name == b"set-cookie":
                key, _, text = value.decode().partition(";")[0].partition("=")
                self.cookies[key] = text
        return response

    async def get(self, address: str = "", **headers: str) -> Response:
        return await self.send("GET", address, None, **headers)

    async def post(self, address: str, **form: str) -> Response:
        """Fill in a form that this browser was shown."""
        return await self.send("POST", address, {"token": await self.form_token(), **form})

    async def form_token(self) -> str:
        page = (await self.get("login")).body.decode()
        found = re.search(r'name="token" value="([0-9a-f]{64})"', page)
        assert found, page
        return found[1]

    async def log_in(self, token: str) -> Response:
        return await self.post("login", credential=token)


OpenBrowser = Callable[..., Awaitable[Browser]]


@pytest.fixture
def open_browser(open_client: OpenClient) -> OpenBrowser:
    """Opens browsers at nodes with the given settings; of one ``node`` if it is given."""

    async def make(node: FakeNode | None = None, **settings: Any) -> Browser:
        client = await open_client(**settings)
        if node is not None:
            client.node.store = node.store
        client.node.engine.answers.setdefault("list_runs", RunPage([], None))
        sessions = Sessions(SharedSecret(cast(Any, client.node.store), "console"), client.node.settings)
        pulse = cast(Pulse, SimpleNamespace(look=_no_samples))
        return Browser(client.node, Console(cast(NodePort, client.node), client.pipeline, sessions, pulse))

    return make
