"""The front of a node: the console gets its pages, their watchers too, the API everything else."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import Refused
from cluster.pulse import Pulse
from cluster.shared_secret import SharedSecret
from nodes.api.messages import Answering, Request, Response
from nodes.api.metrics import Metrics
from nodes.api.pipeline import Pipeline
from nodes.api.ports import NodePort
from nodes.console import rendering
from nodes.console.door import ROOT, Console, failure
from nodes.console.live import PATH, Watchers
from nodes.console.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Front:
    """Answers requests for all of them."""

    api: Answering
    console: Console
    watchers: Watchers

    async def handle(self, request: Request) -> Response:
        """The response to ``request``; a browser that names no path gets the console."""
        if request.raw_path == PATH and request.method == "GET":
            return await self.watchers.handle(request)
        if _is_ours(request.raw_path):
            return await self.console.handle(request)
        if request.raw_path == b"/" and "text/html" in request.header_list(b"accept"):
            return rendering.redirect("console/")
        return await self.api.handle(request)

    def refuse(self, request: Request, refusal: Refused) -> Response:
        """The response to a request that the transport gave up on."""
        if _is_ours(request.raw_path):
            return failure(None, None, refusal)
        return self.api.refuse(request, refusal)


def _is_ours(raw_path: bytes) -> bool:
    return raw_path == ROOT or raw_path.startswith(ROOT + b"/")


def open_console(node: NodePort, pipeline: Pipeline, metrics: Metrics) -> tuple[Answering, Watchers | None]:
    """The front of ``node``, and those who watch its pages; the API alone if the console is switched off."""
    if not node.settings.console:
        return pipeline, None
    sessions = Sessions(SharedSecret(node.store, "console"), node.settings)
    pulse = Pulse(node.store, node.clock.now_ms, metrics.latency.take)
    console = Console(node, pipeline, sessions, pulse)
    watchers = Watchers(console)
    return Front(pipeline, console, watchers), watchers
