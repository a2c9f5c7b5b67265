"""The console's way to the API: in this process, through the same pipeline, with the same roles.

A page knows nothing that its reader could not ask the API for, and no button does what its user may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson

from cluster.errors import HeadraceError
from nodes.api.auth import Principal, may_use
from nodes.api.messages import Request
from nodes.api.pipeline import Pipeline
from nodes.api.routes import Route
from nodes.api.table import ROUTES
from nodes.api.versions import CONTROL_HEADER, CONTROL_VERSION

_ROUTES: Final[Mapping[tuple[str, str], Route]] = {(r.method, r.template): r for r in ROUTES}
_NOTHING: Final[Mapping[str, str]] = {}
_NOT_PASSED_ON: Final = frozenset(
    {
        CONTROL_HEADER,
        b"x-namespace",
        b"authorization",
        b"cookie",
        b"x-signature",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
    }
)
"""Headers that are of the browser's request only. The others tell who asked, for the history."""


class ApiRefusal(HeadraceError):
    """The API refused. ``body`` is its answer, ``reason`` the code in it."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.body = body
        self.reason = str(body.get("reason", "server_error"))
        self.message = str(body.get("message") or body.get("error") or "The request was refused.")
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class Access:
    """The API as one person may use it, in one namespace. ``origin`` is the browser's own request."""

    pipeline: Pipeline
    principal: Principal
    namespace: str
    origin: Request
    is_provided: bool = False
    """Whether not the table decides who may do what, but a provider that only answers requests."""

    def may(self, method: str, template: str) -> bool:
        """Whether the routing table lets the person use a route."""
        return self.is_provided or may_use(self.principal, _ROUTES[method, template])

    def demand(self, method: str, template: str) -> None:
        """Raises ApiRefusal (403) unless the person may use a route: for pages that read beside it, after
        they have asked another route of the same family.
        """
        if not self.may(method, template):
            message = "The credential's role may not see this."
            raise ApiRefusal(403, {"reason": "forbidden", "message": message})

    async def get(self, template: str, path: Mapping[str, str] = _NOTHING, **query: str | int | None) -> Any:
        """The body of a GET. ``path`` fills the template; None and "" leave a query field out.

        Raises ApiRefusal.
        """
        given = {name: value for name, value in query.items() if value not in (None, "")}
        _, body = await self.send("GET", template, path, query=urlencode(given))
        return body

    async def send(
        self,
        method: str,
        template: str,
        path: Mapping[str, str] = _NOTHING,
        *,
        query: str = "",
        document: object = None,
    ) -> tuple[int, Any]:
        """Status and body of a good answer. Raises ApiRefusal."""
        target = template.format_map({name: quote(value, safe="") for name, value in path.items()})
        headers = [(CONTROL_HEADER, CONTROL_VERSION.encode()), (b"x-namespace", self.namespace.encode())]
        headers += [(name, value) for name, value in self.origin.headers if name not in _NOT_PASSED_ON]
        body = b""
        if document is not None:
            headers.append((b"content-type", b"application/json"))
            body = orjson.dumps(document)
        request = Request(
            method, target.encode(), query.encode(), tuple(headers), body, client=self.origin.client
        )
        response = await self.pipeline.handle_for(self.principal, request)
        answer = orjson.loads(response.body) if response.body else {}
        if response.status >= 400:
            raise ApiRefusal(response.status, answer)
        return response.status, answer
