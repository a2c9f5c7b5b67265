"""What a route is, and finding the one a request means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

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


@dataclass(frozen=True, slots=True)
class Reply:
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


@dataclass(frozen=True, slots=True)
class Match:
    """The route of a request, or the methods its path knows (none: unknown path)."""

    route: Route | None
    parameters: Mapping[str, str] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()


class Router:
    """Finds routes by path. Literal segments win over parameters, whatever the table's order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._literal: dict[tuple[str, ...], dict[str, Route]] = {}
        self._patterns: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        for route in self.routes:
            table = self._literal
            if "{" in route.template:
                table = self._patterns.setdefault(len(route.segments), {})
            methods = table.setdefault(route.segments, {})
            if route.method in methods:
                raise ValueError(f"{route.method} {route.template} stands twice in the table")
            methods[route.method] = route

    def match(self, method: str, segments: tuple[str, ...]) -> Match:
        """The route for ``method`` (HEAD counts as GET) and the decoded path segments."""
        methods = self._literal.get(segments)
        parameters: dict[str, str] = {}
        if methods is None:
            for pattern, candidates in self._patterns.get(len(segments), {}).items():
                found = _bind(pattern, segments)
                if found is not None:
                    methods, parameters = candidates, found
                    break
        if methods is None:
            return Match(None)
        route = methods.get("GET" if method == "HEAD" else method)
        allowed = {*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
        return Match(route, parameters, tuple(sorted(allowed)))


def _bind(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    bound: dict[str, str] = {}
    for expected, given in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            if not given:
                return None
            bound[expected[1:-1]] = given
        elif expected != given:
            return None
    return bound
