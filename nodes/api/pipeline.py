"""The way of a request, in the order clients rely on (server-behaviour 1.1).

body guards, authentication, role, version, namespace, handler, compression. A caller with the
wrong role therefore never learns whether a namespace exists. Nothing here knows a web framework.
"""

from __future__ import annotations

import re
import time
import traceback
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import structlog

from cluster.errors import Refused, StoreError, StoreRefused, ValidationFailed
from nodes.api import compression, guards
from nodes.api.auth import Principal, authenticator, authorize
from nodes.api.call import Call
from nodes.api.discovery import server_capabilities
from nodes.api.envelopes import Envelopes, plane_of
from nodes.api.messages import Request, Response
from nodes.api.metrics import Metrics
from nodes.api.paths import parse_query, split_path
from nodes.api.ports import NodePort
from nodes.api.providers import provided_access
from nodes.api.routes import Match, Plane, Reply, Route, Router
from nodes.api.table import ROUTES
from nodes.api.versions import check_version

RETRY_AFTER_SECONDS: Final = 1

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Exchange:
    """What is known so far about a request; decides the shape of an error."""

    request: Request
    plane: Plane = Plane.CONTROL
    match: Match = field(default_factory=lambda: Match(None))
    problem: Refused | None = None
    text_key: str = "message"
    """Name of the error text: worker routes call it ``error`` from the version check on."""

    @property
    def operation(self) -> str | None:
        return self.match.route.operation if self.match.route else None

    @property
    def template(self) -> str:
        return self.match.route.template if self.match.route else "unmatched"


class Pipeline:
    """Answers requests for one node; ``for_workers`` as those of the worker listener."""

    def __init__(
        self,
        node: NodePort,
        metrics: Metrics,
        router: Router | None = None,
        *,
        for_workers: bool = False,
    ) -> None:
        self._node = node
        self._metrics = metrics
        self._for_workers = for_workers
        self._router = router or Router(ROUTES)
        self._provided = provided_access(node.settings)
        self._authenticator = self._provided or authenticator(node.settings)
        self._envelopes = Envelopes(server_capabilities(node.settings))
        self._operations = frozenset(route.operation for route in self._router.routes if route.operation)

    async def handle(self, request: Request) -> Response:
        """The response to ``request``. Raises nothing but cancellation."""
        began = time.perf_counter()
        exchange = self._locate(request)
        with self._node.spans.request(request.method, exchange.template, request.header) as span:
            response = await self._respond(exchange, None)
            self._node.spans.answered(span, response.status)
        if self._node.settings.compression_enabled:
            compression.apply(request, response)
        if request.method == "HEAD":
            response.headers.append((b"content-length", str(len(response.body)).encode()))
            response.body = b""
        seconds = time.perf_counter() - began
        self._metrics.request(exchange.template, response.status, seconds)
        if exchange.match.route is not None and not exchange.match.route.polls:
            self._metrics.latency.note(seconds)
        return response

    async def handle_for(self, principal: Principal, request: Request) -> Response:
        """The response to a request of somebody who has proved already who they are.

        Everything but the credential is checked as ever. For callers in this process: the answer is not
        compressed, and not counted as a request. Raises nothing but cancellation.
        """
        return await self._respond(self._locate(request), principal)

    def refuse(self, request: Request, refusal: Refused) -> Response:
        """The response to a request that the transport gave up on (too large, too slow)."""
        exchange = self._locate(request)
        self._metrics.request(exchange.template, refusal.status, 0.0)
        return self._refusal(exchange, refusal)

    # -- stages -----------------------------------------------------------------------------

    async def _respond(self, exchange: Exchange, known: Principal | None) -> Response:
        try:
            return await self._answer(exchange, known)
        except Refused as refusal:
            return self._refusal(exchange, refusal)
        except StoreError as error:
            return self._store_error(exchange, error)
        except Exception as error:
            return self._unexpected(exchange, error)

    def _locate(self, request: Request) -> Exchange:
        try:
            segments = split_path(request.raw_path)
        except Refused as problem:
            plane = Plane.WORKER if request.raw_path.startswith(b"/api/worker/") else Plane.CONTROL
            return Exchange(request, plane, problem=problem)
        return Exchange(request, plane_of(segments), self._router.match(request.method, segments))

    async def _answer(self, exchange: Exchange, known: Principal | None) -> Response:
        request, route = exchange.request, exchange.match.route
        if exchange.problem is not None:
            raise exchange.problem
        document = guards.read_body(request, self._node.settings.max_payload_bytes)
        if route is None:
            return self._unrouted(exchange)
        if self._for_workers and not route.for_workers:
            raise self._elsewhere()
        principal: Principal | None = None
        if not route.public:
            principal = known or self._authenticator.authenticate(request)
            self._authorize(exchange, route, principal, document)
        if route.versioned:
            self._say(exchange, "error")
            check_version(exchange.plane, request)
            self._say(exchange, "message")
        query = parse_query(request.query_string)
        namespace = self._namespace(request, query)
        if route.scoped and await self._node.namespaces.get(namespace) is None:
            raise Refused(
                "namespace_not_found",
                f"Namespace [{namespace}] does not exist.",
                status=404,
                namespace=namespace,
                remediation="Create the namespace, or correct X-Namespace.",
            )
        self._say(exchange, "error")
        reply = await route.handler(
            Call(
                self._node,
                request,
                exchange.match.parameters,
                query,
                document,
                namespace,
                principal,
                self._operations,
                self._metrics,
            )
        )
        return self._wrap(exchange, reply)

    def _authorize(self, exchange: Exchange, route: Route, principal: Principal, document: Any) -> None:
        """Raises Refused (403)."""
        if self._provided is None:
            authorize(principal, route)
            return
        request = exchange.request
        namespace = self._namespace(request, parse_query(request.query_string))
        parameters = exchange.match.parameters
        self._provided.authorize(principal, route, request, parameters, document, namespace)

    def _namespace(self, request: Request, query: dict[str, str]) -> str:
        named = request.header(b"x-namespace") or query.get("namespace", "").strip()
        return (named or self._node.settings.default_namespace).lower()

    @staticmethod
    def _say(exchange: Exchange, text_key: str) -> None:
        if exchange.plane is Plane.WORKER:
            exchange.text_key = text_key

    # -- responses --------------------------------------------------------------------------

    def _wrap(self, exchange: Exchange, reply: Reply) -> Response:
        if isinstance(reply.body, bytes):
            return Response(reply.status, [(b"content-type", reply.content_type)], reply.body)
        route = exchange.match.route
        response = self._envelopes.wrap(
            exchange.plane,
            reply.status,
            reply.body,
            versioned=route is None or route.versioned,
            operation=exchange.operation,
            parameters=exchange.match.parameters,
        )
        if reply.retry_after is not None:
            response.headers.append((b"retry-after", str(ceil(reply.retry_after)).encode()))
        response.undelivered = reply.undelivered
        return response

    def _unrouted(self, exchange: Exchange) -> Response:
        allowed = exchange.match.allowed
        if not allowed:
            raise Refused("not_found", "The requested resource was not found.", status=404)
        if exchange.request.method == "OPTIONS":
            response = Response(204)
        else:
            refusal = Refused("method_not_allowed", "The method is not allowed here.", status=405)
            response = self._refusal(exchange, refusal)
        response.headers.append((b"allow", ", ".join(allowed).encode()))
        return response

    def _elsewhere(self) -> Refused:
        port = self._node.settings.listen_port
        return Refused(
            "not_for_workers",
            f"This port serves the routes of workers only; use port {port} (HEADRACE_LISTEN).",
            status=404,
            port=port,
        )

    def _refusal(self, exchange: Exchange, refusal: Refused) -> Response:
        body: dict[str, Any] = dict(refusal.fields)
        text_key = exchange.text_key
        if isinstance(refusal, ValidationFailed):
            text_key = "message"
            body["errors"] = body["validation_errors"] = refusal.errors
        body[text_key] = refusal.message
        body["reason"] = refusal.reason
        if exchange.match.route is not None and exchange.match.route.polls:
            body.setdefault("task", None)
        return self._envelopes.wrap(
            exchange.plane,
            refusal.status,
            body,
            operation=exchange.operation,
            parameters=exchange.match.parameters,
        )

    def _store_error(self, exchange: Exchange, error: StoreError) -> Response:
        if isinstance(error, StoreRefused):
            return self._unexpected(exchange, error)
        route = exchange.match.route
        extra: dict[str, Any] = {"poll_status": "unavailable"} if route is not None and route.polls else {}
        refusal = Refused(
            error.reason,
            _STORE_TEXTS.get(error.reason, "The server cannot reach its store safely."),
            status=503,
            retry_after_seconds=RETRY_AFTER_SECONDS,
            **extra,
        )
        log.warning("store_failed", route=exchange.template, reason=error.reason)
        response = self._refusal(exchange, refusal)
        response.headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        return response

    def _unexpected(self, exchange: Exchange, error: Exception) -> Response:
        # The text of an exception may quote a payload, so only its type and place are logged.
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        # The code alone (WRONGTYPE, NOPERM): the rest of what Redis says may quote what it was sent.
        code = _REDIS_CODE.search(str(error)) if isinstance(error, StoreRefused) else None
        said = {} if code is None else {"said": code[0]}
        log.error(
            "request_failed",
            route=exchange.template,
            method=exchange.request.method,
            error=type(error).__name__,
            **said,
            frames=[f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in frames],
        )
        return self._refusal(
            exchange, Refused("server_error", "The server failed to answer this request.", status=500)
        )


_REDIS_CODE: Final = re.compile(r"\b[A-Z]{4,}\b")
_STORE_TEXTS: Final = {
    "store_durability_lost": "The store would not keep what durability promises; nothing was done.",
    "store_recovering": "The store was restarted or replaced; work is handed out again in a moment.",
    "store_unavailable": "The store is not reachable; nothing was done.",
    "store_contended": "Too much happens to this at the same moment; nothing was done.",
    "store_outcome_unknown": "The store did not confirm in time; the request may have been done.",
    "store_not_durable": "The request was done but could not be confirmed as durable.",
    "store_full": "The store's memory limit is reached; nothing was written.",
}
