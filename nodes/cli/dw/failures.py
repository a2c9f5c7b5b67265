"""What can go wrong with a command, the exit code of each, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final


class ExitCode(IntEnum):
    """What ``dw`` exits with (``server-behaviour 10.1``)."""

    OK = 0
    FAILURE = 1
    REFUSED = 2
    NETWORK = 3
    UNAUTHORISED = 4
    NOT_FOUND = 5
    SERVER = 6
    TIMEOUT = 7
    INCOMPATIBLE = 8
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "it was done",
    ExitCode.FAILURE: "it failed: a pass left something undone, a check failed, a run did not end well",
    ExitCode.REFUSED: "wrong usage, or the server refused it (any other 4xx; 409 as well)",
    ExitCode.NETWORK: "the server cannot be reached",
    ExitCode.UNAUTHORISED: "no or a wrong token, or its role may not do this (401, 403)",
    ExitCode.NOT_FOUND: "what was named does not exist (404)",
    ExitCode.SERVER: "the server failed (5xx), or its answer cannot be used",
    ExitCode.TIMEOUT: "no answer, or no end, in time (also 408)",
    ExitCode.INCOMPATIBLE: "server and dw do not speak the same version",
    ExitCode.INTERRUPTED: "ended with Ctrl-C",
}
"""Shown in the reference."""

_VERSION_REASONS: Final = frozenset(
    f"{problem}_{plane}_version"
    for problem in ("missing", "unsupported")
    for plane in ("control_plane", "protocol")
)


class CallFailed(Exception):
    """A command did not succeed. ``status`` is None when there was no usable response.

    ``advice`` says what to do about it, one sentence each.
    """

    def __init__(
        self,
        message: str,
        code: ExitCode,
        *,
        status: int | None = None,
        body: Mapping[str, Any] | None = None,
        advice: tuple[str, ...] = (),
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.body = body or {}
        self.advice = advice
        self.request_id = request_id

    @property
    def reason(self) -> str | None:
        return self.body.get("reason")

    @property
    def validation_errors(self) -> Mapping[str, Any] | None:
        return self.body.get("errors") or self.body.get("validation_errors")


class Finished(Exception):
    """The result was shown; what is left is an exit code that is not 0."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code.name)
        self.code = code


def wrong_usage(message: str, *advice: str) -> CallFailed:
    """What was typed makes no sense; the server was not asked."""
    return CallFailed(message, ExitCode.REFUSED, advice=advice)


def exit_code_of(status: int, reason: str | None = None) -> ExitCode:
    """The exit code for an HTTP status that is not a success."""
    if reason in _VERSION_REASONS:
        return ExitCode.INCOMPATIBLE
    match status:
        case 401 | 403:
            return ExitCode.UNAUTHORISED
        case 404:
            return ExitCode.NOT_FOUND
        case 408:
            return ExitCode.TIMEOUT
        case _ if 400 <= status < 500:
            return ExitCode.REFUSED
        case _:
            return ExitCode.SERVER


def advice_for(status: int, body: Mapping[str, Any], *, has_token: bool) -> tuple[str, ...]:
    """What to do about a refusal; nothing where its message says it."""
    match body.get("reason"):
        case "unauthorized" if not has_token:
            return ("put a token in DURABLE_WORKFLOW_AUTH_TOKEN or in a profile (dw env:set)",)
        case "unauthorized":
            return ("the server does not know this token; check it and the server's DW_*_TOKEN",)
        case "forbidden":
            roles = body.get("allowed_roles")
            wanted = " or ".join(map(str, roles)) if isinstance(roles, list) and roles else "another"
            return (f"use a token of the role {wanted}",)
        case "namespace_not_found":
            return ("dw namespace:list shows those that exist; choose one with --namespace",)
        case "not_found" | "method_not_allowed":
            return ("this server has no such feature; compare dw server:info with dw --version",)
        case reason if reason in _VERSION_REASONS:
            return ("use a dw of the server's release",)
    if status == 503:
        return ("the server's store may be away; dw doctor looks",)
    return ()
