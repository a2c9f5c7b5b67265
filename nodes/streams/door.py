"""Who may open a stream: token, role, versions, namespace, in this order (docs/protocol.md 3)."""

from __future__ import annotations

import re
from typing import Final

import orjson
import structlog

from cluster.errors import Refused, StoreError
from cluster.settings.schema import AuthDriver
from nodes.api.auth import authenticator
from nodes.api.messages import Answering, Request, Response
from nodes.api.ports import NodePort
from nodes.api.providers import provided_access
from nodes.api.routes import WORKERS
from nodes.streams.hub import StreamHub
from nodes.streams.versions import VERSION, VERSIONS

log = structlog.get_logger(__name__)

PATH: Final = b"/api/streams"
VERSIONS_HEADER: Final = b"x-headrace-stream-versions"
_INTERVAL: Final = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")


class StreamDoor:
    """Lets workers in for one node."""

    def __init__(self, node: NodePort, hub: StreamHub) -> None:
        self._node = node
        self.hub = hub
        self._authenticator = provided_access(node.settings) or authenticator(node.settings)

    async def admit(self, request: Request) -> str | Response:
        """The namespace of the stream, or the response that refuses it."""
        try:
            return await self._namespace(request)
        except Refused as refusal:
            return _refused(refusal)
        except StoreError as error:
            log.warning("stream_refused", reason=error.reason)
            return _refused(Refused(error.reason, "The store is not reachable.", status=503))

    async def _namespace(self, request: Request) -> str:
        settings = self._node.settings
        if settings.auth_driver is AuthDriver.SIGNATURE and settings.auth_provider is None:
            raise Refused("unauthorized", "A stream cannot be signed; use tokens.", status=401)
        principal = self._authenticator.authenticate(request)
        if not principal.full_access and WORKERS.isdisjoint(principal.all_roles):
            raise Refused("forbidden", "The credential's role may not open streams.", status=403)
        _check_versions(request)
        named = request.header(b"x-namespace") or self._node.settings.default_namespace
        namespace = named.lower()
        if await self._node.namespaces.get(namespace) is None:
            raise Refused("namespace_not_found", f"Namespace [{namespace}] does not exist.", status=404)
        if self._node.stopping or not self.hub.accepting:
            raise Refused("node_leaving", "This node is about to stop; ask another one.", status=503)
        return namespace


def _check_versions(request: Request) -> None:
    asked = request.header(VERSIONS_HEADER)
    match = _INTERVAL.fullmatch(asked) if asked else None
    if match is None or not int(match[1]) <= VERSION <= int(match[2]):
        raise Refused(
            "unsupported_protocol_version",
            f"This node speaks versions {VERSIONS} of the stream protocol.",
            status=400,
            supported_versions=VERSIONS,
            requested_versions=asked,
        )


def _refused(refusal: Refused) -> Response:
    body = {**refusal.fields, "reason": refusal.reason, "message": refusal.message}
    response = Response(refusal.status, [(b"content-type", b"application/json")], orjson.dumps(body))
    response.headers.append((b"content-length", str(len(response.body)).encode()))
    if refusal.status == 503:
        response.headers.append((b"retry-after", b"1"))
    return response


class PlainDoor:
    """Answers requests over HTTP/1.1: says how to ask for a stream, and leaves the rest to ``front``."""

    def __init__(self, front: Answering) -> None:
        self._front = front

    async def handle(self, request: Request) -> Response:
        if request.raw_path == PATH and request.method == "POST":
            return _refused(Refused("upgrade_required", "Use a WebSocket, or POST over HTTP/2.", status=426))
        return await self._front.handle(request)

    def refuse(self, request: Request, refusal: Refused) -> Response:
        return self._front.refuse(request, refusal)
