"""A node as a process: its signals, its ports, and the order in which it leaves."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial

import structlog
import trio

from cluster.settings.schema import Settings
from nodes import open_files
from nodes.api.app import create_app
from nodes.api.limits import MAX_CONNECTIONS, ListenerLimits
from nodes.api.messages import Answering
from nodes.api.metrics import Metrics
from nodes.api.pipeline import Pipeline
from nodes.api.providers import provided_access
from nodes.api.serving import Address, open_listener, tune_gc
from nodes.api.serving import serve as serve_http
from nodes.console.front import open_console
from nodes.listener.listener import WorkerListener
from nodes.listener.metrics import ListenerCollector
from nodes.node import Node, check_store, drain, leave, open_node
from nodes.streams.carriers import with_streams
from nodes.streams.door import PlainDoor, StreamDoor
from nodes.streams.metrics import StreamCollector
from nodes.tracing import spans
from nodes.upkeep_metrics import UpkeepCollector

log = structlog.get_logger(__name__)


async def serve(settings: Settings, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
    """Run one node with its HTTP server until SIGTERM or SIGINT. Raises StartupError.

    Reports the URL it listens on once it serves.
    """
    provided_access(settings)
    files = open_files.raise_limit()
    stop, drained = trio.Event(), trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, ExitStack() as recording:
        async with trio.open_nursery() as outer:
            outer.start_soon(_set_on_signal, signals, stop)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_cancel_on, stop, waiting.cancel_scope)
                await check_store(settings)
                waiting.cancel_scope.cancel()
            if stop.is_set():
                outer.cancel_scope.cancel()
                return
            # Before the node joins: what cannot listen must not take partitions first.
            listener = open_listener(settings.listen_host, settings.listen_port)
            for_workers = None
            if settings.worker_address is not None:
                for_workers = open_listener(*settings.worker_address, "HEADRACE_WORKER_LISTEN")
            recorded = recording.enter_context(spans(settings.tracing, settings.node_name))
            async with (
                open_node(settings, settings.listen, recorded) as node,
                trio.open_nursery() as nursery,
            ):
                metrics = Metrics(node)
                metrics.registry.register(
                    UpkeepCollector(
                        node.store.keys.partitions, node.membership.statistics, node.keeper.counters
                    )
                )
                metrics.registry.register(
                    StreamCollector(node.streams, node.keeper.counters, node.clock, settings.metrics_prefix)
                )
                front, watchers = open_console(node, Pipeline(node, metrics), metrics)
                address: Address = await nursery.start(_serve_all, node, front, listener, files, drained)
                if for_workers is not None:
                    await nursery.start(_serve_workers, node, metrics, for_workers, files, drained)
                tune_gc()
                log.info("serving_started", url=address.url, session=node.membership.incarnation)
                task_status.started(address.url)
                await stop.wait()
                log.info("leaving_started", session=node.membership.incarnation)
                if watchers is not None:
                    watchers.close()
                await drain(node)
                drained.set()
                await leave(node)
            outer.cancel_scope.cancel()


async def _serve_all(
    node: Node,
    front: Answering,
    listener: socket.socket,
    files: int,
    drained: trio.Event,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the main port until ``drained``."""
    size = node.settings.max_payload_bytes
    await serve_http(
        PlainDoor(front),
        with_streams(create_app(front, size), StreamDoor(node, node.streams), size),
        listener,
        ListenerLimits(size, connections=open_files.connections(files, MAX_CONNECTIONS)),
        shutdown=drained.wait,
        is_leaving=lambda: node.stopping,
        max_message_bytes=size,
        task_status=task_status,
    )


async def _serve_workers(
    node: Node,
    metrics: Metrics,
    listener: socket.socket,
    files: int,
    drained: trio.Event,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the routes of workers on a port of their own until ``drained``."""
    settings = node.settings
    serving = WorkerListener(
        Pipeline(node, metrics, for_workers=True),
        ListenerLimits(
            settings.max_payload_bytes,
            connections=open_files.connections(files, settings.worker_connections),
        ),
        is_leaving=lambda: node.stopping,
    )
    metrics.registry.register(ListenerCollector(serving))
    async with trio.open_nursery() as nursery:
        address: Address = await nursery.start(partial(serving.serve, listener, shutdown=drained.wait))
        log.info("worker_serving_started", url=address.url)
        task_status.started(address)


async def _cancel_on(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _set_on_signal(signals: AsyncIterator[int], stop: trio.Event) -> None:
    async for _ in signals:
        stop.set()
