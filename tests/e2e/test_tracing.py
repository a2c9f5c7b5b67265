"""Spans of a node, as a real collector gets them, and the trace that tasks carry to their workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h11
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headrace import Client, Decision, Flow, StepContext, Worker, complete, step
from tests.cluster_processes import HOST, NodeProcess, environment
from tests.ports import free_ports
from tests.wire import complete as complete_workflow
from tests.wire import open_wire, schedule

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@dataclass
class Collector:
    """An OTLP receiver over HTTP."""

    port: int = 0
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> Span:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    async def serve(self, stream: trio.SocketStream) -> None:
        connection, body = h11.Connection(h11.SERVER), b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                message = ExportTraceServiceRequest.FromString(body)
                for resource in message.resource_spans:
                    for scope in resource.scope_spans:
                        self.spans.extend(scope.spans)
                answer = h11.Response(status_code=200, headers=[("content-length", "0")])
                await stream.send_all(
                    (connection.send(answer) or b"") + (connection.send(h11.EndOfMessage()) or b"")
                )
                body = b""
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        collector.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, collector.serve, [listener])
        yield collector
        nursery.cancel_scope.cancel()


class Traced(Flow, name="traced"):
    @step
    async def only(self, ctx: StepContext) -> Decision:
        return complete(ctx.traceparent)


async def test_a_trace_goes_from_the_start_through_every_task(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    async with collecting() as collector:
        environ = {
            "HEADRACE_KEY_PREFIX": prefix,
            "HEADRACE_TRACING": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{collector.port}",
        }
        (port,) = free_ports(1)
        node = NodeProcess("node", valkey_url, tmp_path, port, environ)
        node.start()
        try:
            await node.ready()
            async with open_wire(node.url) as wire:
                await wire.register("w", "q", workflows=["t"], activities=["a"])
                wire.client.headers["traceparent"] = PARENT
                started = await wire.start("t", "q", "w1")
                del wire.client.headers["traceparent"]
                task = await wire.task("workflow", "w", "q")
                assert TRACE in task["traceparent"]
                await wire.complete_workflow_task(task, schedule("a", "q"))
                activity = await wire.task("activity", "w", "q")
                assert activity["traceparent"] == task["traceparent"]
                await wire.complete_activity(activity)
                await wire.complete_workflow_task(await wire.task("workflow", "w", "q"), complete_workflow())
            async with Worker(node.url, flows=[Traced]) as worker, Client(node.url) as client:
                await worker.wait_pull_registered()
                flow_trace = await (await client.start(Traced)).result()
            assert await node.stop() == 0, node.log
        finally:
            node.kill()
    start = collector.named("POST /api/workflows")
    assert (start.trace_id.hex(), start.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    handed_out = [span for span in collector.spans if span.name == "hand out workflow task t"]
    assert len(handed_out) == 2
    for span in (*handed_out, collector.named("hand out activity a")):
        assert (span.trace_id, span.parent_span_id) == (start.trace_id, start.span_id)
        said = {pair.key: pair.value.string_value for pair in span.attributes}
        assert (said["headrace.run.id"], said["headrace.worker.id"]) == (started["run_id"], "w")
        assert len(span.links) == 1
    flow = collector.named("POST /api/flows")
    ran = collector.named("step only")
    assert (ran.trace_id, ran.parent_span_id) == (flow.trace_id, flow.span_id)
    assert flow_trace.startswith(f"00-{flow.trace_id.hex()}-{flow.span_id.hex()}-")
    assert ran.end_time_unix_nano > ran.start_time_unix_nano
    assert {pair.key: pair.value.string_value for pair in ran.attributes}["headrace.outcome"] == "completed"


async def test_without_tracing_the_callers_trace_is_passed_on(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    node = NodeProcess("node", valkey_url, tmp_path, port, {"HEADRACE_KEY_PREFIX": prefix})
    node.start()
    try:
        await node.ready()
        async with open_wire(node.url) as wire:
            await wire.register("w", "q", workflows=["t"])
            for workflow_id, sent, kept in (
                ("a", PARENT, PARENT),
                ("b", "00-nonsense", None),
                ("c", "", None),
            ):
                wire.client.headers["traceparent"] = sent
                await wire.start("t", "q", workflow_id)
                assert (await wire.task("workflow", "w", "q")).get("traceparent") == kept
    finally:
        node.kill()


def test_tracing_without_its_packages_is_refused_at_the_start(valkey_url: str) -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; "
        "from nodes.cli.main import main; sys.argv = ['headrace', 'serve']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment(
            REDIS_URL=valkey_url, HEADRACE_TRACING="otlp", DW_AUTH_DRIVER="none", HEADRACE_LISTEN=f"{HOST}:0"
        ),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'headrace[tracing]'" in done.stderr
