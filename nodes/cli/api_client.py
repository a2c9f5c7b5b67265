"""Talks to a server's control plane over HTTP, for the ``dw`` command."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import httpx

CONTROL_PLANE_VERSION = "2"
WORKER_PROTOCOL_VERSION = "1.0"
TIMEOUT_SECONDS = 60.0


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


class CallFailed(Exception):
    """A request did not succeed. ``status`` is None when there was no usable response."""

    def __init__(
        self,
        message: str,
        code: ExitCode,
        *,
        status: int | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.body = body or {}

    @property
    def reason(self) -> str | None:
        return self.body.get("reason")

    @property
    def validation_errors(self) -> Mapping[str, Any] | None:
        return self.body.get("errors") or self.body.get("validation_errors")


def exit_code_of(status: int) -> ExitCode:
    """The exit code for an HTTP status that is not a success."""
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


class ApiClient:
    """One server, one namespace, one credential. Use as a context manager."""

    def __init__(
        self,
        server: str,
        *,
        namespace: str,
        token: str | None = None,
        verify: bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.namespace = namespace
        headers = {
            "Accept": "application/json",
            "X-Namespace": namespace,
            "X-Durable-Workflow-Control-Plane-Version": CONTROL_PLANE_VERSION,
            "X-Durable-Workflow-Protocol-Version": WORKER_PROTOCOL_VERSION,
        }
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx.Client(
                base_url=server.rstrip("/").removesuffix("/api") + "/api",
                headers=headers,
                verify=verify,
                timeout=TIMEOUT_SECONDS,
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise CallFailed(f"{server} is no URL: {error}", ExitCode.REFUSED) from error
        self._server = server

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        accept: frozenset[int] = frozenset(),
        nulls: bool = False,
    ) -> dict[str, Any]:
        """The JSON object of a successful response (or of one with a status in ``accept``).

        Raises CallFailed for everything else. None values in ``query`` are left out, and those in
        ``body`` unless ``nulls`` says that they mean something.
        """
        if body is not None and not nulls:
            body = _given(body)
        try:
            response = self._http.request(
                method,
                path,
                json=body,
                params=None if query is None else _given(query),
            )
        except httpx.TimeoutException as error:
            raise CallFailed(f"no answer from {self._server} in time", ExitCode.TIMEOUT) from error
        except httpx.UnsupportedProtocol as error:
            raise CallFailed(f"{self._server} is no http:// or https:// URL", ExitCode.REFUSED) from error
        except httpx.TransportError as error:
            raise CallFailed(f"cannot reach {self._server}: {error}", ExitCode.NETWORK) from error
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            code = ExitCode.SERVER if response.is_success else exit_code_of(response.status_code)
            raise CallFailed(
                f"{self._server} answered {response.status_code} without a JSON object",
                code,
                status=response.status_code,
            )
        if response.is_success or response.status_code in accept:
            return document
        message = document.get("message") or document.get("error") or f"HTTP {response.status_code}"
        raise CallFailed(
            str(message), exit_code_of(response.status_code), status=response.status_code, body=document
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
