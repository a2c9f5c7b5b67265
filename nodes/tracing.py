"""Spans of one node for OpenTelemetry; nothing of it costs anything while tracing is off.

A run remembers the trace it was started in (W3C ``traceparent``), whether or not this node records spans, and
its tasks carry it to their workers. With ``HEADRACE_TRACING=otlp`` a node adds spans of its own: one for each
request, one for each task it hands out, and one for each step from its hand-out to its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import orjson
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cluster.errors import StartupError
from cluster.queues.model import ActivityTask, WorkflowTask
from cluster.settings.schema import Tracing
from cluster.version import VERSION
from nodes.streams.tasks import RunningStep

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_HEADERS: Final = ("traceparent", "tracestate")
_propagator = TraceContextTextMapPropagator()
_NOTHING: Final = nullcontext[Span | None](None)

Header = Callable[[bytes], str | None]
"""Reads a header of a request by its lower-case name."""


class Spans:
    """What a node records. Without a tracer nothing."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._steps: dict[str, Span] = {}

    def request(self, method: str, template: str, header: Header) -> AbstractContextManager[Span | None]:
        """Around a request to a route; a span of the caller is its parent."""
        return _NOTHING if self._tracer is None else self._request(self._tracer, method, template, header)

    @contextmanager
    def _request(self, tracer: Tracer, method: str, template: str, header: Header) -> Iterator[Span]:
        sent = {name: value for name in _HEADERS if (value := header(name.encode())) is not None}
        with tracer.start_as_current_span(
            f"{method} {template}",
            _propagator.extract(sent, Context()),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": template},
        ) as span:
            yield span

    def answered(self, span: Span | None, status: int) -> None:
        """Note the status of a request's answer."""
        if span is not None:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))

    def begun_in(self, header: Header) -> str:
        """The ``traceparent`` for what a request starts: this node's span, else the caller's, else ""."""
        if self._tracer is not None:
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
            return carrier.get("traceparent", "")
        sent = header(b"traceparent") or ""
        return sent if _TRACEPARENT.fullmatch(sent) else ""

    def handed_out(self, namespace: str, task: WorkflowTask | ActivityTask) -> None:
        """A task was given to the worker that asked for it in the current request."""
        if self._tracer is None:
            return
        if isinstance(task, WorkflowTask):
            kind, task_type, traceparent = "workflow task", task.info.workflow_type, task.info.traceparent
            workflow_id, run_id = task.info.workflow_id, task.info.run_id
        else:
            body = orjson.loads(task.body)
            kind, task_type, traceparent = "activity", body["activity_type"], body.get("traceparent", "")
            workflow_id, run_id = body["workflow_id"], body["run_id"]
        asked = trace.get_current_span().get_span_context()
        self._tracer.start_span(
            f"hand out {kind} {task_type}",
            _parent(traceparent),
            SpanKind.PRODUCER,
            {
                "headrace.namespace": namespace,
                "headrace.workflow.id": workflow_id,
                "headrace.run.id": run_id,
                "headrace.task.id": task.task_id,
                "headrace.attempt": task.attempt,
                "headrace.worker.id": task.owner,
            },
            [Link(asked)] if asked.is_valid else None,
        ).end()

    def step_began(self, step: RunningStep) -> None:
        """A step was sent to a slot of this node."""
        if self._tracer is not None:
            self._steps[step.attempt_id] = self._tracer.start_span(
                f"step {step.step_type}",
                _parent(step.traceparent),
                SpanKind.PRODUCER,
                {
                    "headrace.flow.type": step.flow_type,
                    "headrace.flow.id": step.flow_id,
                    "headrace.step.method": step.method,
                    "headrace.task.id": step.task_id,
                    "headrace.attempt": step.attempt,
                    "headrace.worker.id": step.worker_id,
                },
            )

    def step_ended(self, attempt_id: str, outcome: str, *, accepted: bool) -> None:
        """What became of it."""
        span = self._steps.pop(attempt_id, None)
        if span is not None:
            span.set_attributes({"headrace.outcome": outcome, "headrace.accepted": accepted})
            if outcome != "completed":
                span.set_status(Status(StatusCode.ERROR, outcome))
            span.end()


def _parent(traceparent: str) -> Context:
    return _propagator.extract({"traceparent": traceparent} if traceparent else {}, Context())


@contextmanager
def spans(mode: Tracing, node: str) -> Iterator[Spans]:
    """The spans of a node, sent where the ``OTEL_EXPORTER_OTLP_*`` variables say; the rest at the end.

    Raises StartupError when the packages that send are not installed.
    """
    if mode is Tracing.OFF:
        yield Spans()
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise StartupError(
            "HEADRACE_TRACING=otlp needs further packages: pip install 'headrace[tracing]'"
        ) from error
    provider = TracerProvider(
        resource=Resource.create(
            {"service.name": "headrace", "service.version": VERSION, "service.instance.id": node}
        )
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield Spans(provider.get_tracer("headrace", VERSION))
    finally:
        provider.shutdown()
