"""Prometheus metrics of one node.

Labels have bounded values: route templates, status classes, task kinds, poll results. Nothing a
tenant can name is a label. ``/metrics`` needs no credentials, like ``/api/health``; keep it off
public addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cluster.ids import TaskKind
from cluster.queues.model import PollStatus
from cluster.version import VERSION
from cluster.workflows.kept_histories import ReplayMode
from nodes.api.latency import RecentLatency
from nodes.api.ports import NodePort

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST.encode()
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_KINDS: Final = {TaskKind.WORKFLOW: "workflow", TaskKind.ACTIVITY: "activity"}


class Metrics:
    """Counts what the routes do; reads the node's own counters when scraped."""

    def __init__(self, node: NodePort) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # not annotated by its library
        self.registry = CollectorRegistry()
        self.latency = RecentLatency()
        requests = Counter(
            "headrace_http_requests",
            "HTTP requests answered",
            ("route", "status"),
            registry=self.registry,
        )
        seconds = Histogram(
            "headrace_http_request_seconds",
            "Time from a request's last byte to its answer; polls wait on purpose",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        polls = Counter("headrace_polls", "Polls answered", ("kind", "status"), registry=self.registry)
        tasks = Counter(
            "headrace_tasks",
            "Tasks leased to workers, and outcomes they reported",
            ("kind", "outcome"),
            registry=self.registry,
        )
        replays = Counter(
            "headrace_sticky_replays",
            "Workflow tasks of runs whose history a worker keeps, by what their worker was told to expect",
            ("mode",),
            registry=self.registry,
        )
        # Looking a child up by its labels takes longer than counting, so children are kept.
        self._request_count = cache(requests.labels)
        self._request_seconds = cache(seconds.labels)
        self._poll_count = cache(polls.labels)
        self._task_count = cache(tasks.labels)
        self._replay_count = cache(replays.labels)
        for mode in ReplayMode:
            self._replay_count(mode.value)
        build = Gauge("headrace_build_info", "Always 1", ("version",), registry=self.registry)
        build.labels(VERSION).set(1)
        self.registry.register(_NodeCollector(node))

    def request(self, route: str, status: int, seconds: float) -> None:
        """A request to a route template was answered after ``seconds``."""
        self._request_count(route, f"{status // 100}xx").inc()
        self._request_seconds(route).observe(seconds)

    def poll(self, kind: TaskKind, status: PollStatus) -> None:
        """A poll ended."""
        self._poll_count(_KINDS[kind], status.value).inc()
        if status is PollStatus.LEASED:
            self.task(kind, "leased")

    def task(self, kind: TaskKind, outcome: str) -> None:
        """A task was ``leased``, ``completed`` or ``failed``."""
        self._task_count(_KINDS[kind], outcome).inc()

    def replay(self, mode: ReplayMode) -> None:
        """A workflow task was leased whose run remembers a worker's cache."""
        self._replay_count(mode.value).inc()

    def render(self) -> bytes:
        """The text a scraper gets."""
        return generate_latest(self.registry)


class _NodeCollector(Collector):
    """Turns the frozen statistics of the node's parts into samples at scrape time."""

    def __init__(self, node: NodePort) -> None:
        self._node = node

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        node = self._node
        store = node.store.statistics()
        pipe, pubsub = store.pipe, store.pubsub
        yield GaugeMetricFamily("headrace_polls_parked", "Polls waiting on this node", node.polls.parked)
        yield GaugeMetricFamily(
            "headrace_query_polls_parked", "Polls for queries waiting on this node", node.query_polls.parked
        )
        yield GaugeMetricFamily(
            "headrace_queries_waiting",
            "Clients waiting on this node for a query's answer",
            node.queries.waiting,
        )
        yield GaugeMetricFamily(
            "headrace_partitions_owned",
            "Partitions this node keeps house for",
            len(node.membership.held),
        )
        yield GaugeMetricFamily(
            "headrace_upkeep_resting",
            "Timers, lapsed leases and chunks that failed here and wait for another try",
            node.due.resting,
        )
        for name, text, value in (
            ("headrace_upkeep_failures", "Timers, lapsed leases and chunks that failed", node.due.failures),
            ("headrace_store_commands", "Redis commands sent", pipe.commands),
            ("headrace_store_round_trips", "Batches sent to Redis", pipe.round_trips),
            (
                "headrace_store_lost_connections",
                "Connections to Redis that broke",
                pipe.lost_connections,
            ),
            ("headrace_pubsub_lost_connections", "Subscriptions that broke", pubsub.lost_connections),
            ("headrace_store_ambiguous", "Redis commands whose reply was lost", pipe.ambiguous),
            ("headrace_commits", "Transactions sent to Redis", store.commits),
            (
                "headrace_sticky_misses",
                "Workers that had lost a history they said they keep",
                node.engine.sticky_misses,
            ),
        ):
            yield CounterMetricFamily(name, text, value)
        said = CounterMetricFamily(
            "headrace_hand_outs_reasserted",
            "Running tasks this node told its store of after a restart or fail-over",
            labels=["outcome"],
        )
        for state, number in node.barrier.statistics().states.items():
            said.add_metric([state], number)
        yield said
