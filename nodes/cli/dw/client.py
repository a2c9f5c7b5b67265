"""Talks to a server's two planes over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import httpx

from nodes.cli.dw.failures import CallFailed, ExitCode, advice_for, exit_code_of, wrong_usage
from nodes.cli.dw.patience import Patience, within

CONTROL_PLANE_VERSION: Final = "2"
WORKER_PROTOCOL_VERSION: Final = "1.0"
CONTROL_HEADER: Final = "X-Durable-Workflow-Control-Plane-Version"
WORKER_HEADER: Final = "X-Durable-Workflow-Protocol-Version"
TIMEOUT_SECONDS: Final = 60.0
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NO_HEADER: Final = "the token or the namespace has characters no HTTP header may have"


def path_of(*parts: str) -> str:
    """A path of single segments: ``("workflows", "a/b")`` is ``/workflows/a%2Fb``. Raises CallFailed."""
    if any(part in ("", ".", "..") for part in parts):
        raise wrong_usage("a name must not be empty, '.' or '..'")
    return "/" + "/".join(quote(part, safe="") for part in parts)


class ApiClient:
    """One server, one namespace, one credential. Use as a context manager.

    ``timeout`` are the seconds an answer may take, or with ``whole`` all answers of the command together.
    """

    def __init__(
        self,
        server: str,
        *,
        namespace: str,
        token: str | None = None,
        verify: bool = True,
        timeout: float = TIMEOUT_SECONDS,
        whole: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if any(_CONTROL.search(value) for value in (namespace, token or "")):
            raise wrong_usage(_NO_HEADER)
        headers = {
            "Accept": "application/json",
            "X-Namespace": namespace,
            CONTROL_HEADER: CONTROL_PLANE_VERSION,
            WORKER_HEADER: WORKER_PROTOCOL_VERSION,
        }
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._server = server
        self.patience = Patience(timeout, whole=whole)
        self._has_token = bool(token)
        try:
            self._http = httpx.Client(
                base_url=server.rstrip("/").removesuffix("/api") + "/api",
                headers=headers,
                verify=verify,
                timeout=timeout,
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise wrong_usage(f"{server} is no URL: {error}") from error
        except (UnicodeEncodeError, ValueError) as error:
            raise wrong_usage(_NO_HEADER) from error

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
        patience: float = 0,
    ) -> dict[str, Any]:
        """The JSON object of a successful response (or of one with a status in ``accept``).

        Raises CallFailed for everything else. None values in ``query`` are left out, and those in
        ``body`` unless ``nulls`` says that they mean something. The server was asked to wait for
        ``patience`` seconds, which come on top of the usual time.
        """
        if body is not None and not nulls:
            body = _given(body)
        left = self.patience.more(patience)
        ask = partial(
            self._http.request,
            method,
            path,
            json=body,
            params=None if query is None else _given(query),
            timeout=max(left, 0.001),
        )
        try:
            response = within(left, ask)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise CallFailed(
                f"no answer from {self._server} in time",
                ExitCode.TIMEOUT,
                advice=("allow more with --timeout, or look with dw doctor",),
            ) from error
        except httpx.UnsupportedProtocol as error:
            raise wrong_usage(f"{self._server} is no http:// or https:// URL") from error
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            raise CallFailed(
                f"cannot reach {self._server}: {error}",
                ExitCode.NETWORK,
                advice=("is it running? name another with --server or DURABLE_WORKFLOW_SERVER_URL",),
            ) from error
        return self._read(response, accept)

    def _read(self, response: httpx.Response, accept: frozenset[int]) -> dict[str, Any]:
        status = response.status_code
        request_id = response.headers.get("X-Request-Id")
        spoken = response.headers.get(CONTROL_HEADER, CONTROL_PLANE_VERSION)
        if spoken != CONTROL_PLANE_VERSION:
            raise incompatible(f"the server speaks control plane version {spoken}, dw speaks 2", {})
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise CallFailed(
                f"{self._server} answered {status} without a JSON object",
                ExitCode.SERVER if response.is_success else exit_code_of(status),
                status=status,
                request_id=request_id,
                advice=("is this the address of a durable workflow server?",),
            )
        if response.is_success or status in accept:
            return document
        message = document.get("message") or document.get("error") or f"HTTP {status}"
        raise CallFailed(
            str(message),
            exit_code_of(status, document.get("reason")),
            status=status,
            body=document,
            request_id=request_id,
            advice=advice_for(status, document, has_token=self._has_token),
        )


def incompatible(message: str, body: Mapping[str, Any]) -> CallFailed:
    """Server and ``dw`` have no version in common."""
    return CallFailed(message, ExitCode.INCOMPATIBLE, body=body, advice=("use a dw of the server's release",))


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
