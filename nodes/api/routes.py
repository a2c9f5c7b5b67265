"""What a route is, and finding the one a request means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from nodes.api.call import Call


class Role(StrEnum):
    """Roles a credential can have (server-behaviour 2.2)."""

    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


class Plane(StrEnum):
    """Which envelope and which version header a route speaks (server-behaviour 1.1)."""

    CONTROL = "control"
    WORKER = "worker"


WORKERS: Final = frozenset({Role.WORKER})
OPERATORS: Final = frozenset({Role.OPERATOR, Role.ADMIN})
ADMINS: Final = frozenset({Role.ADMIN})
ANYONE: Final = frozenset(Role)


class Reply(msgspec.Struct, frozen=True):
    """What a handler answers. ``body`` is a JSON object, or bytes that are sent as they are.

    ``retry_after`` are the seconds after which the answer would be another; the header says whole ones.
    ``undelivered`` is called when the client left before the answer could be sent.
    """

    body: dict[str, Any] | bytes
    status: int = 200
    content_type: bytes = b"application/json"
    retry_after: float | None = None
    undelivered: Callable[[], None] | None = None


Handler = Callable[["Call"], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the routing table.

    ``template`` has its parameters in braces. ``roles`` may use the route; only a ``public`` route
    has none. ``versioned`` routes need their plane's version header and answer with it.
    ``operation`` names the workflow operation that is described by a ``control_plane`` object.
    A ``polls`` route answers ``task`` and ``poll_status`` even when the store is away.
    Routes ``for_workers`` are served by the worker listener too.
    """

    method: str
    template: str
    plane: Plane
    handler: Handler
    roles: frozenset[Role] = frozenset()
    public: bool = False
    versioned: bool = True
    scoped: bool = True
    operation: str | None = None
    polls: bool = False
    for_workers: bool = False
    segments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.public == bool(self.roles):
            raise ValueError(f"{self.method} {self.template}: a route has roles or is public")
        object.__setattr__(self, "segments", tuple(self.template.lstrip("/").split("/")))


class Match(msgspec.Struct, frozen=True):
    """The route of a request, or the methods its path knows (none: unknown path)."""

    route: Route | None
    parameters: dict[str, str] = {}
    allowed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Entry:
    """The routes of one template, by method."""

    template: tuple[str, ...]
    methods: dict[str, Route] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()

    def add(self, route: Route) -> None:
        self.methods[route.method] = route
        head = {"HEAD"} if "GET" in self.methods else set()
        self.allowed = tuple(sorted({*self.methods, "OPTIONS"} | head))


Literals = tuple[str, ...]
_Shapes = dict[tuple[int, ...], dict[Literals, _Entry]]
"""Entries by the places of their literal segments, and by these segments."""


class Router:
    """Finds routes by path. Literal segments win over parameters, whatever the table's order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._literal: dict[Literals, _Entry] = {}
        self._patterns: dict[int, _Shapes] = {}
        for route in self.routes:
            entry = self._entry(route.segments)
            if route.method in entry.methods:
                raise ValueError(f"{route.method} {route.template} stands twice in the table")
            if entry.template != route.segments:
                raise ValueError(f"{route.template} means the same paths as another template")
            entry.add(route)
        for length, shapes in self._patterns.items():
            self._patterns[length] = dict(sorted(shapes.items(), key=lambda item: (-len(item[0]), item[0])))

    def _entry(self, template: tuple[str, ...]) -> _Entry:
        places = tuple(place for place, segment in enumerate(template) if not segment.startswith("{"))
        if len(places) == len(template):
            return self._literal.setdefault(template, _Entry(template))
        shapes = self._patterns.setdefault(len(template), {})
        literals = tuple(template[place] for place in places)
        return shapes.setdefault(places, {}).setdefault(literals, _Entry(template))

    def match(self, method: str, segments: tuple[str, ...]) -> Match:
        """The route for ``method`` (HEAD counts as GET) and the decoded path segments."""
        entry, parameters = self._literal.get(segments), dict[str, str]()
        if entry is None:
            for places, entries in self._patterns.get(len(segments), {}).items():
                entry = entries.get(tuple([segments[place] for place in places]))
                if entry is not None:
                    parameters = _bound(entry.template, segments)
                    if all(parameters.values()):
                        break
                    entry = None
        if entry is None:
            return Match(None)
        return Match(entry.methods.get("GET" if method == "HEAD" else method), parameters, entry.allowed)


def _bound(template: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str]:
    pairs = zip(template, segments, strict=True)
    return {expected[1:-1]: given for expected, given in pairs if expected.startswith("{")}
