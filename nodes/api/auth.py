"""Who is asking: the drivers ``token``, ``signature`` and ``none`` (server-behaviour 2.1).

Credentials are compared in constant time and never appear in a message.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cluster.errors import Refused
from cluster.settings.schema import AuthDriver, Settings
from nodes.api.messages import Request
from nodes.api.routes import Role, Route

_SCHEME: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. ``full_access`` passes every role check.

    ``roles``, ``tenant`` and ``claims`` are what a provider of the operator's own adds.
    """

    subject: str
    role: Role
    method: str
    full_access: bool = False
    roles: tuple[Role, ...] = ()
    tenant: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_roles(self) -> list[Role]:
        return sorted({self.role, *self.roles})


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets of one driver: one per role in matching order, and one shared by all."""

    roles: tuple[tuple[Role, bytes], ...]
    shared: bytes | None

    @property
    def usable(self) -> bool:
        return bool(self.roles) or self.shared is not None


class Authenticator(Protocol):
    """Tells who sent a request; raises Refused (401 or 500)."""

    def authenticate(self, request: Request) -> Principal: ...


def _collect(
    settings: Settings,
    shared: str | None,
    worker: str | None,
    operator: str | None,
    admin: str | None,
) -> Credentials:
    by_role = ((Role.WORKER, worker), (Role.OPERATOR, operator), (Role.ADMIN, admin))
    roles = tuple((role, secret.encode()) for role, secret in by_role if secret)
    usable = shared if settings.auth_backward_compatible else None
    return Credentials(roles, usable.encode() if usable else None)


def credentials(settings: Settings) -> Credentials:
    """The secrets the configured driver compares with; none where a provider decides."""
    if settings.auth_provider is not None:
        return Credentials((), None)
    if settings.auth_driver is AuthDriver.SIGNATURE:
        return _collect(
            settings,
            settings.signature_key,
            settings.worker_signature_key,
            settings.operator_signature_key,
            settings.admin_signature_key,
        )
    return _collect(
        settings,
        settings.auth_token,
        settings.worker_token,
        settings.operator_token,
        settings.admin_token,
    )


def _misconfigured(name: str) -> Refused:
    return Refused("server_error", f"Authentication is misconfigured: {name} is not configured.", status=500)


def _unauthorized(message: str) -> Refused:
    return Refused("unauthorized", message, status=401)


ANYBODY: Final = Principal("anonymous", Role.ADMIN, AuthDriver.NONE, full_access=True)
"""Whoever asks a server without authentication."""


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """Driver ``none``: everybody may do everything."""

    def authenticate(self, request: Request) -> Principal:
        return ANYBODY


@dataclass(frozen=True, slots=True)
class TokenDriver:
    """Driver ``token``: ``Authorization: Bearer <token>``."""

    secrets: Credentials

    def authenticate(self, request: Request) -> Principal:
        if not self.secrets.usable:
            raise _misconfigured("DW_AUTH_TOKEN")
        header = request.header(b"authorization") or ""
        given = header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else ""
        wanted = given.encode()
        principal = holder(self.secrets, AuthDriver.TOKEN, lambda own: hmac.compare_digest(own, wanted))
        if principal is None:
            raise _unauthorized("Invalid or missing authentication token.")
        return principal


@dataclass(frozen=True, slots=True)
class SignatureDriver:
    """Driver ``signature``: ``X-Signature`` is the hex HMAC-SHA256 of the raw body."""

    secrets: Credentials

    def authenticate(self, request: Request) -> Principal:
        if not self.secrets.usable:
            raise _misconfigured("DW_SIGNATURE_KEY")
        given = request.header(b"x-signature") or ""
        if not given:
            raise _unauthorized("Missing request signature.")
        wanted, body = given.encode(), request.body

        def signed(own: bytes) -> bool:
            return hmac.compare_digest(hmac.new(own, body, hashlib.sha256).hexdigest().encode(), wanted)

        principal = holder(self.secrets, AuthDriver.SIGNATURE, signed)
        if principal is None:
            raise _unauthorized("Invalid request signature.")
        return principal


def holder(secrets: Credentials, method: AuthDriver, fits: Callable[[bytes], bool]) -> Principal | None:
    """The principal whose secret ``fits``, which has to compare in constant time."""
    for role, secret in secrets.roles:
        if fits(secret):
            return Principal(role.value, role, method)
    if secrets.shared is not None and fits(secrets.shared):
        return Principal("shared", Role.ADMIN, method, full_access=not secrets.roles)
    return None


def authenticator(settings: Settings) -> Authenticator:
    """The driver that ``settings`` ask for."""
    if settings.auth_driver is AuthDriver.NONE:
        return OpenDoor()
    driver = SignatureDriver if settings.auth_driver is AuthDriver.SIGNATURE else TokenDriver
    return driver(credentials(settings))


def may_use(principal: Principal, route: Route) -> bool:
    """Whether the table lets the principal use the route."""
    return principal.full_access or principal.role in route.roles


def authorize(principal: Principal, route: Route) -> None:
    """Raises Refused (403) unless the principal may use the route."""
    if may_use(principal, route):
        return
    raise Refused(
        "forbidden",
        "The credential's role may not use this route.",
        status=403,
        role=principal.role.value,
        allowed_roles=sorted(role.value for role in route.roles),
    )
