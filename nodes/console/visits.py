"""One look of one person at one page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from cluster.pulse import Pulse
from nodes.api.auth import Principal
from nodes.api.ports import NodePort
from nodes.console.access import Access, ApiRefusal
from nodes.console.sessions import Session

PAGE_SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class Visit:
    """What a page's function gets. ``query`` are the fields of the page's address."""

    page: str
    query: Mapping[str, str]
    node: NodePort
    access: Access
    session: Session
    pulse: Pulse

    @property
    def namespace(self) -> str:
        return self.access.namespace

    @property
    def principal(self) -> Principal:
        return self.access.principal

    def text(self, name: str) -> str:
        """A field of the address, trimmed; "" when it is not there."""
        return self.query.get(name, "").strip()

    def need(self, name: str) -> str:
        """A field that the page cannot do without. Raises ApiRefusal (404)."""
        found = self.text(name)
        if not found:
            message = f"The address of this page lacks {name!r}."
            raise ApiRefusal(404, {"reason": "not_found", "message": message})
        return found

    def number(self, name: str, default: int = 0) -> int:
        """A whole number, 0 or more; ``default`` when the field holds none."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else default


Look = Callable[[Visit], Awaitable[dict[str, Any]]]
"""Reads what a page shows: the variables of its template. Raises ApiRefusal, Refused and StoreError."""


def link(page: str, /, **query: object) -> str:
    """The address of a page, relative to any other one; "" and None leave a field out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    path = page or "./"
    return f"{path}?{urlencode(given)}" if given else path
