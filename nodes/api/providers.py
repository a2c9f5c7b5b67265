"""Authentication by code of the operator's own (``DW_AUTH_PROVIDER``; server-behaviour 2.1, 2.3).

A provider replaces the built-in drivers: it says who sent a request and, for every route, whether
they may use it. It is asked before anything is looked up, so it never learns whether a namespace
exists. It runs in the node's event loop and must not block: check tokens locally.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, cast

from cluster.errors import Refused, StartupError
from cluster.settings.schema import Settings
from nodes.api.auth import Principal
from nodes.api.messages import Request
from nodes.api.routes import Route

ACTION: Final = "server.route.access"
"""The only action a provider is asked about."""

_FAMILIES: Final = {
    "namespaces": "namespace",
    "workflows": "workflow",
    "activities": "workflow",
    "workers": "worker_management",
    "task-queues": "task_queue",
    "admission": "task_queue",
    "schedules": "schedule",
    "search-attributes": "search_attribute",
    "flows": "flow",
}
_IDENTIFIERS: Final = (
    "activity_attempt_id",
    "activity_id",
    "build_id",
    "flow_id",
    "lease_owner",
    "poll_request_id",
    "query_name",
    "query_task_attempt",
    "query_task_id",
    "run_id",
    "runtime",
    "schedule_id",
    "signal_name",
    "task_id",
    "task_queue",
    "update_name",
    "worker_id",
    "workflow_id",
    "workflow_task_attempt",
    "workflow_type",
)


class AuthProvider(Protocol):
    """What the object or class that ``DW_AUTH_PROVIDER`` names has to offer."""

    def authenticate(self, request: Request) -> Principal:
        """Who sent ``request``. Raises Refused with status 401, or 500 when it cannot tell."""
        ...

    def authorize(self, principal: Principal, action: str, resource: Mapping[str, Any]) -> bool:
        """Whether ``principal`` may do ``action`` on ``resource``."""
        ...


@dataclass(frozen=True, slots=True)
class ProvidedAccess:
    """The configured provider, asked safely: what it does wrong is a refusal, never a way in."""

    provider: AuthProvider
    settings: Settings

    def authenticate(self, request: Request) -> Principal:
        """Who sent ``request``. Raises Refused (401, 500)."""
        principal = self.provider.authenticate(request)
        if not isinstance(principal, Principal):
            raise Refused("server_error", "The authentication provider named nobody.", status=500)
        return principal

    def authorize(
        self,
        principal: Principal,
        route: Route,
        request: Request,
        parameters: Mapping[str, str],
        document: Any,
        namespace: str,
    ) -> None:
        """Raises Refused (403) unless the provider lets ``principal`` use the route."""
        if principal.full_access:
            return
        resource = self._resource(route, request, parameters, document, namespace)
        if self.provider.authorize(principal, ACTION, resource) is not True:
            raise Refused(
                "forbidden",
                "The authentication provider does not allow this.",
                status=403,
                role=principal.role.value,
                allowed_roles=resource["allowed_roles"],
            )

    def _resource(
        self,
        route: Route,
        request: Request,
        parameters: Mapping[str, str],
        document: Any,
        namespace: str,
    ) -> dict[str, Any]:
        """What the request is about, as far as it says so itself; nothing is looked up."""
        body = document if isinstance(document, dict) else {}
        area = route.segments[1] if len(route.segments) > 1 else route.segments[0]
        found: dict[str, Any] = {
            "allowed_roles": sorted(role.value for role in route.roles),
            "method": request.method,
            "path": request.raw_path.decode("ascii", "replace"),
            "route_uri": route.template,
            "route_parameters": dict(parameters),
            "operation_family": _FAMILIES.get(area, area),
            "operation_name": route.operation or _handler_name(route),
            "default_namespace": self.settings.default_namespace.lower(),
            "requested_namespace": namespace,
            "namespace": namespace,
        }
        target = (parameters.get("namespace") or body.get("name")) if area == "namespaces" else None
        if isinstance(target, str):
            found["target_namespace"] = target.lower()
        given = {name: parameters.get(name) or body.get(name) for name in _IDENTIFIERS}
        if area == "search-attributes":
            given["search_attribute_name"] = parameters.get("name") or body.get("name")
        return found | {name: value for name, value in given.items() if value not in (None, "")}


def _handler_name(route: Route) -> str:
    """``poll_workflow_tasks`` for ``workflow_tasks.poll``; a name of several words stands by itself."""
    name = route.handler.__name__.strip("_")
    return name if "_" in name else f"{name}_{route.handler.__module__.rpartition('.')[2]}"


def provided_access(settings: Settings) -> ProvidedAccess | None:
    """The configured provider, or None where a built-in driver decides. Raises StartupError."""
    if settings.auth_provider is None:
        return None
    return ProvidedAccess(_load(settings.auth_provider), settings)


@cache
def _load(path: str) -> AuthProvider:
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        provider = found() if inspect.isclass(found) else found
    except Exception as error:
        raise StartupError(
            f"DW_AUTH_PROVIDER={path}: cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    for method in ("authenticate", "authorize"):
        if not callable(getattr(provider, method, None)):
            raise StartupError(f"DW_AUTH_PROVIDER={path}: has no method {method}")
    return cast(AuthProvider, provider)
