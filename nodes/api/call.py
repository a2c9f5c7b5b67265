"""One request on its way through a handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cluster.errors import ValidationFailed
from nodes.api.auth import Principal
from nodes.api.fields import Model, read
from nodes.api.messages import Request
from nodes.api.metrics import Metrics
from nodes.api.ports import NodePort


class Call(msgspec.Struct, frozen=True):
    """What a handler gets. ``principal`` is None on public routes; ``operations`` are all workflow
    operations this server offers.
    """

    node: NodePort
    request: Request
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    document: Any
    namespace: str
    principal: Principal | None
    operations: frozenset[str]
    metrics: Metrics

    @property
    def traceparent(self) -> str:
        """The trace in which what this request starts shall run, "" for none."""
        return self.node.spans.begun_in(self.request.header)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that was sent; {} without a body. Raises ValidationFailed."""
        if not isinstance(self.document, dict):
            raise ValidationFailed({"body": ["The request body must be a JSON object."]})
        return self.document

    def fields(self, model: type[Model], also: Mapping[str, list[str]] | None = None) -> Model:
        """The body as ``model``; ``also`` are faults the caller found. Raises ValidationFailed."""
        return read(model, self.body, also)

    def query_fields(self, model: type[Model]) -> Model:
        """The query string as ``model``. Raises ValidationFailed."""
        return read(model, self.query)
