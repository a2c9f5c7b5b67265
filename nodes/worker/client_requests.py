"""Requests about flows: sent again while that cannot do harm, answered in full or with an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec
import trio
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nodes.worker.backoff import pause_before
from nodes.worker.client_errors import ClientError, ServerUnavailable, error_of
from nodes.worker.configuration import checked_urls
from nodes.worker.credentials import Credential
from nodes.worker.payloads import encode

CONTROL_PLANE_VERSION: Final = "2"
RETRY_SECONDS: Final = 30.0
"""How long a request that may be repeated is tried again."""
ANSWER_SECONDS: Final = 30.0
"""How long an answer may take beyond what the request itself allows."""

_propagator = TraceContextTextMapPropagator()


class Requests:
    """Sends requests to the nodes or balancers at ``url``, which are tried in turn, for one namespace."""

    def __init__(self, url: str | Sequence[str], credential: Credential, namespace: str) -> None:
        self._urls = checked_urls(url)
        self._place = 0
        self._credential = credential
        self._http = httpx.AsyncClient(
            headers={
                "accept": "application/json",
                "x-namespace": namespace,
                "x-durable-workflow-control-plane-version": CONTROL_PLANE_VERSION,
            },
            timeout=ANSWER_SECONDS,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        repeatable: bool = False,
        again: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
    ) -> bytes:
        """The body of a successful answer. ``again``: members of the body when it is sent once more."""
        until = trio.current_time() + RETRY_SECONDS
        tries = 0
        while True:
            members = {**(body or {}), **(again or {} if tries else {})}
            try:
                return await self._once(method, path, members if body is not None else None, query, seconds)
            except ServerUnavailable as error:
                if error.maybe_executed and not repeatable:
                    raise
                tries += 1
                pause = pause_before(tries)
                if trio.current_time() + pause > until:
                    raise
            self._place += 1
            await trio.sleep(pause)

    async def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        seconds: float,
    ) -> bytes:
        url = self._urls[self._place % len(self._urls)]
        headers = await self._credential.headers()
        if body is not None:
            headers["content-type"] = "application/json"
        _propagator.inject(headers)  # adds nothing outside a span
        try:
            response = await self._http.request(
                method,
                f"{url}/api/flows{path}",
                content=None if body is None else encode(_given(body)),
                params=_given(query or {}),
                headers=headers,
                timeout=httpx.Timeout(ANSWER_SECONDS, read=seconds + ANSWER_SECONDS),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ServerUnavailable(f"cannot reach {url}: {error}", "unreachable", None, {}) from error
        except httpx.TransportError as error:
            text = f"the connection to {url} broke: {type(error).__name__} {error}".strip()
            raise ServerUnavailable(text, "connection_lost", None, {}, maybe_executed=True) from error
        if response.is_success:
            return response.content
        raise _error(response)


def read_object(answer: bytes) -> dict[str, Any]:
    """The members of an answer that is a JSON object."""
    found: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
    return found


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _error(response: httpx.Response) -> ClientError:
    try:
        fields = read_object(response.content)
    except msgspec.DecodeError:
        fields = {}
    return error_of(response.status_code, fields)
